"""Dispatch of calls in an exported package: to the kernel that was fastest at the nearest sizes, or to PyTorch."""

import inspect
import math
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from archive.binding import Bound, IllegalError, Point, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError
from evolve.export.template import manifest
from evolve.export.template.calls import NoKernelError, check_outputs, obstacle, workload_of
from evolve.export.template.launching import Ready, prepare, present
from evolve.export.template.manifest import ExportedEntry, Measured, Shipped
from evolve.op_on_device import point
from reference_ops.op import Number, Op, Workload, ops_of

Row = tuple[Shipped | None, Measured]
Tensors = tuple[torch.Tensor, ...]
CAPTURING = (
    "PyTorch runs, because the first call for these sizes is made while a CUDA graph is captured and its kernel is not "
    "compiled yet; call it once before the capture"
)


@dataclass(frozen=True)
class Decision:
    """Decision for one workload on one GPU: the compiled kernel, or none if PyTorch runs, and the reason."""

    reason: str
    kernel: str = ""
    ready: Ready | None = None


@dataclass(frozen=True)
class Explanation:
    """What a call would run: a kernel, or none if PyTorch would run, and the reason."""

    op: str
    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op}: {f'kernel {self.kernel}' if self.kernel else 'PyTorch'}, because {self.reason}"


@dataclass(frozen=True)
class Question:
    """A workload on one GPU for which to choose a kernel."""

    device: str  # name of the GPU
    workload: Workload
    point: Point
    deterministic: bool  # allow only kernels that were found to be deterministic
    elements: int  # of the largest tensor


@dataclass(frozen=True)
class Choice:
    """A kernel that accepts the workload, and the measurement because of which it was chosen."""

    shipped: Shipped
    measured: Measured
    bound: Bound


class Primitive:
    """One op of the package. Safe to call from several threads and for several GPUs."""

    def __init__(self, op: Op, entry: ExportedEntry, folder: Path) -> None:
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
        """Run PyTorch, as a user would without this package."""
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
            at, elements = point(self.op, workload, info), self.op.largest_tensor(workload)
            question = Question(info.name, workload, at, deterministic, elements)
            check_outputs(self.op, workload, inputs)
            return self._chosen(question, device)
        except NoKernelError as error:
            return Decision(str(error))

    def _chosen(self, question: Question, device: torch.device) -> Decision:
        for choice in choices(self.entry, self._kernels, question):
            if find_spec("cupy") is None:
                raise NoKernelError("CuPy is not installed; the extras cuda13 and cuda12 of this package install it")
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
        raise AssertionError("`choices` must end with a NoKernelError")

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {shipped.id: shipped.load(self._folder) for shipped in self.entry.kernels}


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


def choices(entry: ExportedEntry, kernels: Mapping[str, Kernel], question: Question) -> Iterator[Choice]:
    """Yield the kernels to try, best first, then raise a NoKernelError that says why each was refused."""
    refusals: list[str] = []
    for shipped, measured in _ranked(_comparable(entry, question), question.workload):
        if shipped is None or not measured.wins:
            raise NoKernelError(f"PyTorch was the fastest at {measured.times.workload}, the nearest that was measured")
        if question.deterministic and not measured.deterministic:
            refusals.append(f"{shipped.id} is not known to be deterministic")
            continue
        if excess := _beyond(shipped, question):
            refusals.append(f"{shipped.id} is refused: {excess}")
            continue
        try:
            if accepts(kernels[shipped.id], question.point):
                yield Choice(shipped, measured, bind(kernels[shipped.id], question.point))
                refusals.append(f"{shipped.id} exceeds a limit of this GPU")
            else:
                refusals.append(f"{shipped.id} does not accept {question.workload.key}")
        except (IllegalError, PlanError) as error:
            refusals.append(f"{shipped.id} cannot be launched here: {error}")
    raise NoKernelError("; ".join(dict.fromkeys(refusals)))


def _beyond(shipped: Shipped, question: Question) -> str:
    """Return what exceeds every envelope in which the kernel was tested on this GPU, or an empty string."""
    sizes = dict((*question.workload.dims, *question.workload.parameters))
    tested = [found.envelope for found in shipped.tested if found.device == question.device and found.envelope]
    found = [envelope.excess(sizes, question.elements) for envelope in tested]
    return found[0] if found and all(found) else ""


def _comparable(entry: ExportedEntry, question: Question) -> list[Row]:
    """Return the measurements on this GPU with this dtype and these parameters."""
    workload = question.workload
    rows = list(entry.table())
    if not rows:
        raise NoKernelError("the package has no kernel for it")
    rows, devices = _kept(rows, [m.device for _, m in rows], question.device)
    if not rows:
        raise NoKernelError(f"nothing was measured on {question.device}, only on {devices}")
    rows, dtypes = _kept(rows, [m.dtype for _, m in rows], workload.dtype)
    if not rows:
        raise NoKernelError(f"nothing was measured at {workload.dtype}, only at {dtypes}")
    rows, parameters = _kept(rows, [m.parameters for _, m in rows], dict(workload.parameters))
    if not rows:
        raise NoKernelError(f"nothing was measured with {dict(workload.parameters)}, only with {parameters}")
    return rows


def _kept(rows: list[Row], values: list[object], requested: object) -> tuple[list[Row], str]:
    """Return the rows with the requested value, and a list of all values."""
    kept = [row for row, value in zip(rows, values, strict=True) if value == requested]
    return kept, ", ".join(dict.fromkeys(str(value) for value in values))


def _ranked(rows: list[Row], workload: Workload) -> list[Row]:
    """Return the rows sorted by distance from the workload, and by time if they are equally near."""
    return sorted(rows, key=lambda row: (_distance(row[1].dims, dict(workload.dims)), row[1].times.median_us))


def _distance(measured: Mapping[str, int], requested: Mapping[str, int]) -> float:
    """Return a distance based on ratios of sizes: 1 and 2 are as far apart as 1000 and 2000."""
    return math.hypot(*(math.log(measured[name] / size) for name, size in requested.items()))
