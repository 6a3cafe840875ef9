"""Dispatch of calls in an exported package: to the kernel that was fastest at the nearest sizes, or to PyTorch."""

import inspect
import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from archive.kernel import Kernel
from evolve.export.template import manifest
from evolve.export.template.calls import NoKernelError, check_outputs, obstacle, workload_of
from evolve.export.template.choosing import Question, choices
from evolve.export.template.free import free_for_kernel, free_for_sizes
from evolve.export.template.launching import Gpus, Launchable, Machine, Tensors
from evolve.export.template.manifest import ExportedEntry
from evolve.op_on_device import point
from reference_ops.op import Number, Op, ops_of

CAPTURING = (
    "PyTorch runs, because the first call for these sizes is made while a CUDA graph is captured and its kernel is not "
    "compiled yet; call it once before the capture"
)
MOST_DECISIONS = 4096  # more than a model has shapes; lengths that never repeat would fill the memory


@dataclass(frozen=True)
class Decision:
    """Decision for one workload on one device: the compiled kernel, or none if PyTorch runs, and the reason."""

    reason: str
    kernel: str = ""
    ready: Launchable | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    """What a call would run: a kernel, or none if PyTorch would run, and the reason."""

    op: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}: {f'kernel {self.kernel}' if self.kernel else 'PyTorch'}, because {self.reason}"


class Primitive:
    """One op of the package. Safe to call from several threads and for several devices."""

    def __init__(self, op: Op, entry: ExportedEntry, folder: Path, machine: Machine | None = None) -> None:
        self.op = op
        self.entry = entry
        self._folder = folder
        self._machine = machine or Gpus()
        self._decisions: dict[object, Decision] = {}
        self._lock = threading.Lock()

    def __call__(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        if torch.compiler.is_compiling() or obstacle(inputs, parameters, self.op, self._machine.device_type):
            return self.pytorch(inputs, parameters)
        ready = self._decide(inputs, parameters).ready
        return ready.launch(inputs, parameters) if ready else self.pytorch(inputs, parameters)

    @property
    def signature(self) -> inspect.Signature:
        """The exported function's signature: the inputs, then the parameters with their defaults."""
        parameter = partial(inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
        defaults = {name: inspect.Parameter.empty if d is None else d for name, d in self.entry.parameters.items()}
        return inspect.Signature(
            [
                *(parameter(spec.name) for spec in self.op.inputs),
                *(parameter(name, default=default) for name, default in defaults.items()),
            ]
        )

    def pytorch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run PyTorch, as a user would without this package.

        Inputs are made contiguous first, because PyTorch's backward functions do not check that they are.
        """
        inputs = tuple(x.contiguous() if isinstance(x, torch.Tensor) else x for x in inputs)
        outputs = (self.op.baseline or self.op.reference)(*inputs, **parameters)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)

    def explain(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Explanation:
        reason = obstacle(inputs, parameters, self.op, self._machine.device_type)
        decision = Decision(reason) if reason else self._decide(inputs, parameters)
        return Explanation(self.op.name, decision.kernel, decision.reason)

    def _decide(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Decision:
        deterministic = torch.are_deterministic_algorithms_enabled()
        shapes = tuple((x.shape, x.dtype) for x in inputs)
        fixed = tuple(parameters[name] for name in self._fixed)
        key = (shapes, fixed, inputs[0].device, deterministic)
        decision = self._decisions.get(key)
        if decision is None:
            with self._lock:
                decision = self._decisions.get(key) or self._decided(inputs, parameters, deterministic)
                if len(self._decisions) >= MOST_DECISIONS:
                    self._decisions.clear()
                if decision.reason != CAPTURING:
                    self._decisions[key] = decision
        if decision.ready and self.op.valid and not self.op.valid({**decision.sizes, **parameters}):
            return Decision(f"no kernel was tested with the combination {dict(parameters)}")
        return decision

    def _decided(self, inputs: Tensors, parameters: Mapping[str, Number], deterministic: bool) -> Decision:
        if self._machine.capturing():
            warnings.warn(f"{self.op.name}: {CAPTURING}", stacklevel=5)
            return Decision(CAPTURING)
        device = inputs[0].device
        info = self._machine.info(device)
        try:
            workload = workload_of(self.op, inputs, parameters)
            at, elements = point(self.op, workload, info), self.op.largest_tensor(workload)
            question = Question(info.name, workload, at, deterministic, elements, self._free)
            check_outputs(self.op, workload, inputs)
            return self._chosen(question, device)
        except NoKernelError as error:
            return Decision(str(error))

    def _chosen(self, question: Question, device: torch.device) -> Decision:
        for choice in choices(self.entry, self._kernels, question):
            try:
                ready = self._machine.prepare(self.op, question.workload, choice.bound, device)
            except NoKernelError:
                continue
            measured = choice.measured
            reason = (
                f"it was {measured.speedup:.2f} times as fast as the best of eager and torch.compile "
                f"at {measured.times.workload} on {measured.device}"
            )
            return Decision(reason, choice.shipped.id, ready, self.op.sizes(question.workload))
        raise AssertionError("`choices` must end with a NoKernelError")

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {shipped.id: shipped.load(self._folder) for shipped in self.entry.kernels}

    @cached_property
    def _free(self) -> dict[str, frozenset[str]]:
        """The free parameters of each kernel, and under "" those of PyTorch."""
        free = {name: free_for_kernel(self.op, kernel) for name, kernel in self._kernels.items()}
        return {**free, "": free_for_sizes(self.op)}

    @cached_property
    def _fixed(self) -> tuple[str, ...]:
        """The parameters that are not free for some kernel. Only on these does a decision depend."""
        return tuple(name for name in self.op.parameters if not all(name in free for free in self._free.values()))


def op(module: ModuleType, name: str) -> Op:
    """Return the op of this name that a module of the package defines."""
    return next(op for op in ops_of(module) if op.name == name)


def load(folder: Path, ops: Iterable[Op]) -> dict[str, Primitive]:
    """Return the primitives of the package in this folder, by name."""
    entries = manifest.read(folder)
    return {op.name: Primitive(op, entries[op.name], folder) for op in ops}


def explain(
    primitives: Mapping[str, Primitive], name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]
) -> Explanation:
    """Return what a call with these arguments would run. Compiles the kernel if necessary."""
    if name not in primitives:
        raise ValueError(f"there is no `{name}` in this package, only {', '.join(primitives)}")
    primitive = primitives[name]
    bound = primitive.signature.bind(*arguments, **named)
    bound.apply_defaults()
    values = dict(bound.arguments)
    inputs = tuple(values.pop(spec.name) for spec in primitive.op.inputs)
    return primitive.explain(inputs, values)
