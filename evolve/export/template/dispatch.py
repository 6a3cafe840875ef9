"""Each function of the package, per call: a kernel where one is known to win, PyTorch otherwise."""

import inspect
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from archive.kernel import Kernel
from evolve.export.template import manifest
from evolve.export.template.calls import NoKernelError, check_outputs, obstacle, workload_of
from evolve.export.template.launching import Ready, prepare, present
from evolve.export.template.manifest import Entry
from evolve.export.template.selection import Question, choices
from evolve.op_on_device import point
from reference_ops.op import Number, Op, ops_of

Tensors = tuple[torch.Tensor, ...]
CAPTURING = (
    "PyTorch runs, because the first call for these sizes falls into the capture of a CUDA graph; "
    "call it once before, so that the kernel can be compiled"
)


@dataclass(frozen=True)
class Decision:
    """What runs for one workload on one GPU, and why: a kernel that is ready, or PyTorch."""

    reason: str
    kernel: str = ""
    ready: Ready | None = None


@dataclass(frozen=True)
class Explanation:
    """What a call would run, and why. Without a kernel it is PyTorch."""

    op: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}: {f'kernel {self.kernel}' if self.kernel else 'PyTorch'}, because {self.reason}"


class Primitive:
    """One op of the package. Safe to call from several threads and for several GPUs."""

    def __init__(self, op: Op, entry: Entry, folder: Path) -> None:
        self.op = op
        self.entry = entry
        self._folder = folder
        self._decisions: dict[object, Decision] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        if torch.compiler.is_compiling() or obstacle(inputs, parameters, self.op):
            return self.pytorch(inputs, parameters)
        ready = self._decide(inputs, parameters).ready
        return ready.launch(inputs) if ready else self.pytorch(inputs, parameters)

    @property
    def signature(self) -> inspect.Signature:
        """The function's own: the inputs, then the parameters with their defaults."""
        parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        defaults = {name: inspect.Parameter.empty if d is None else d for name, d in self.entry.parameters.items()}
        return inspect.Signature(
            [
                *(parameter(spec.name) for spec in self.op.inputs),
                *(parameter(name, default=default) for name, default in defaults.items()),
            ]
        )

    def pytorch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """What a user would call without this package."""
        outputs = (self.op.baseline or self.op.reference)(*inputs, **parameters)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)

    def explain(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Explanation:
        reason = obstacle(inputs, parameters, self.op)
        decision = Decision(reason) if reason else self._decide(inputs, parameters)
        return Explanation(self.op.name, decision.kernel, decision.reason)

    def _decide(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Decision:
        deterministic = torch.are_deterministic_algorithms_enabled()
        shapes = tuple((x.shape, x.dtype) for x in inputs)
        key = (shapes, tuple(parameters.items()), inputs[0].device, deterministic)
        decision = self._decisions.get(key)
        if decision is None:
            with self._lock, torch.cuda.device(inputs[0].device):
                decision = self._decisions.get(key) or self._decided(inputs, parameters, deterministic)
                if decision.reason != CAPTURING:
                    self._decisions[key] = decision
        return decision

    def _decided(self, inputs: Tensors, parameters: Mapping[str, Number], deterministic: bool) -> Decision:
        if torch.cuda.is_current_stream_capturing():
            warnings.warn(f"{self.op.name}: {CAPTURING}", stacklevel=5)
            return Decision(CAPTURING)
        device = inputs[0].device
        info = present(device)
        try:
            workload = workload_of(self.op, inputs, parameters)
            question = Question(info.name, workload, point(self.op, workload, info), deterministic)
            check_outputs(self.op, workload)
            return self._chosen(question, device)
        except NoKernelError as error:
            return Decision(str(error))

    def _chosen(self, question: Question, device: torch.device) -> Decision:
        for choice in choices(self.entry, self._kernels, question):
            if find_spec("cupy") is None:
                raise NoKernelError("CuPy is not installed; the extras cuda13 and cuda12 of this package bring it")
            try:
                ready = prepare(self.op, question.workload, choice.bound, device)
            except NoKernelError:
                continue
            measured = choice.measured
            reason = (
                f"it was {measured.speedup:.2f} times as fast as the best of eager and torch.compile "
                f"at {measured.times.workload} on {measured.device}"
            )
            return Decision(reason, choice.shipped.id, ready)
        raise AssertionError("choices end with a NoKernelError")

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {shipped.id: shipped.load(self._folder) for shipped in self.entry.kernels}


def op(module: ModuleType, name: str) -> Op:
    """The op of this name that a file of the package defines."""
    return next(op for op in ops_of(module) if op.name == name)


def load(folder: Path, ops: Iterable[Op]) -> dict[str, Primitive]:
    """The primitives of the package that lies in this folder."""
    entries = manifest.read(folder)
    return {op.name: Primitive(op, entries[op.name], folder) for op in ops}


def explain(
    primitives: Mapping[str, Primitive], name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Explanation:
    """What a call with these arguments would run. Compiles the kernel if that was not done yet."""
    if name not in primitives:
        raise ValueError(f"there is no `{name}` in this package, only {', '.join(primitives)}")
    primitive = primitives[name]
    bound = primitive.signature.bind(*arguments, **named)
    bound.apply_defaults()
    values = dict(bound.arguments)
    inputs = tuple(values.pop(spec.name) for spec in primitive.op.inputs)
    return primitive.explain(inputs, values)
