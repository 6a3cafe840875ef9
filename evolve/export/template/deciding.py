"""Decisions: the compiled kernel that runs for a workload on a device, or the reason why PyTorch runs.

The measurements of the package decide. With autotuning, the first call for new sizes times the kernels that may run and
PyTorch, and the cache on disk stores the fastest.
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from itertools import starmap
from pathlib import Path
from typing import Any

import torch

from archive.kernel import Kernel
from evolve.export.template.cached import keep, kept
from evolve.export.template.calls import (
    MissingError,
    NoKernelError,
    check_outputs,
    contiguous_outputs,
    parameter_fault,
    placed,
    workload_of,
)
from evolve.export.template.choosing import Choice, Question, choices, nearest
from evolve.export.template.folding import Folds, Shape, as_kernel_reads, folds
from evolve.export.template.free import free_for_kernel, free_for_sizes
from evolve.export.template.launching import Machine, Tensors
from evolve.export.template.manifest import ExportedEntry, Measured
from evolve.export.template.options import current
from evolve.export.template.plans import Launchable, Reading, sources_of
from evolve.export.template.unrolled import Run, Source, Written, contiguous
from evolve.op_on_device import point
from reference_ops.op import Number, Op, Workload
from reference_ops.precision import TORCH_DTYPES

# The places where a call is made, which determine the time that a kernel must beat. While a graph is captured, nothing
# can be timed.
EAGER, COMPILED, CAPTURED = "eager", "compiled", "captured"
FOR_BACKWARD = "for the backward"  # in a graph that contains an op only because of the kernel of its backward
SHORT_US = 60.0  # the launch of a longer kernel never takes longer than the kernel
MOST_TIMED = 8  # kernels, those measured at the nearest sizes first


class SlowLaunchError(NoKernelError):
    """Raised when the host takes longer to launch the kernel than to call PyTorch."""


@dataclass(frozen=True)
class Decision:
    """Decision for one workload on one device: the compiled kernel, or None if PyTorch runs, and the reason."""

    reason: str
    kernel: str = ""
    ready: Launchable | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Shape, ...] = ()  # shapes in which the kernel reads the inputs
    outputs: tuple[Shape, ...] | None = None  # shapes in which the caller gets the outputs, if they differ
    # times at the nearest measured sizes, scaled down to smaller sizes
    saves_us: float = 0.0  # time that the kernel saves
    kernel_us: float = math.inf
    is_slow_to_launch: bool = False  # the only reason why PyTorch runs; a captured graph does not count the host's time


@dataclass(frozen=True)
class Tuned:
    """The fastest kernel at some sizes on a device, and times in microseconds; None if PyTorch is the fastest."""

    kernel: str
    kernel_us: float  # time of the fastest kernel
    pytorch_us: float

    @property
    def saves_us(self) -> float:
        return max(0.0, self.pytorch_us - self.kernel_us)

    def __str__(self) -> str:
        times = f"{self.kernel_us:.1f} us for the fastest kernel and {self.pytorch_us:.1f} us for PyTorch"
        return f"autotuning measured {times}"


@dataclass(frozen=True)
class ByPyTorch:
    """PyTorch's forward, where a kernel wins only in the backward."""

    op: Op

    def launch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        return contiguous_outputs(by_pytorch(self.op, inputs, parameters), inputs)

    def planned(self, sources: Sequence[Source], outputs: Sequence[Written], parameters: Mapping[str, Number]) -> Run:
        def run(*tensors: torch.Tensor) -> Any:
            inputs = tuple([one.read(tensors[one.tensor]) for one in sources])
            pairs = zip(self.launch(inputs, parameters), outputs, strict=True)
            found = tuple([_placed(out, wanted) for out, wanted in pairs if wanted.is_wanted])
            return found[0] if len(found) == 1 else found

        return run


def _placed(out: torch.Tensor, wanted: Written) -> torch.Tensor:
    """Return an output as the caller gets it.

    It is not a view, because autograd refuses in-place changes of such a view.
    """
    if out.shape == wanted.shape and out.stride() == wanted.stride:
        return out
    return out.new_empty(0).set_(out.untyped_storage(), out.storage_offset(), wanted.shape, wanted.stride)


class Decider:
    """The decisions about calls of one op."""

    def __init__(self, op: Op, entry: ExportedEntry, folder: Path, machine: Machine) -> None:
        self.op = op
        self.entry = entry
        self.machine = machine
        self._folder = folder

    def decided(self, views: Tensors, parameters: Mapping[str, Number], where: str) -> Decision:
        """Return the decision for tensors on a device. Compile a kernel, and time it unless a graph is captured."""
        try:
            # PyTorch cannot compute some ops for tensors without memory, and a graph must not capture them.
            given = metas_of(views) if where == CAPTURED else views
            question, found = self._question(given, views[0].device, parameters, where)
            return self._chosen(question, views, found, where)
        except SlowLaunchError as error:
            return Decision(str(error), is_slow_to_launch=True)
        except NoKernelError as error:
            return Decision(str(error))

    def saves_here_us(self, question: Question) -> float:
        """Return the time that a kernel saves. Raise a NoKernelError if no kernel wins."""
        choice = next(choices(self.entry, self._kernels, question))
        return _saves_us(choice, question)

    def loses_us(self, question: Question) -> float:
        """Return how much longer the op's formula takes in eager PyTorch than when it is compiled.

        Without a measurement on this GPU, one on another GPU counts. Without any, the formula counts as fast enough.
        """
        if self.op.baseline:  # one call of PyTorch, as autograd makes it
            return 0.0
        for device in dict.fromkeys((question.device, *[measured.device for _, measured in self.entry.table()])):
            with suppress(NoKernelError):
                near = nearest(self.entry, replace(question, device=device))
                return max(0.0, near.times.eager_us - near.times.baseline_us) * _share(question, near)
        return 0.0

    def costs_us(self, question: Question) -> float:
        """Return the extra time of an opaque op over the compiler's code where no kernel wins.

        In that case, a kernel runs if it was as fast, and otherwise eager PyTorch. Raise a NoKernelError if nothing was
        measured.
        """
        near = nearest(self.entry, question).times
        ours = near.eager_us
        with suppress(NoKernelError):
            ours = min(ours, next(choices(self.entry, self._kernels, question)).measured.times.median_us)
        return max(0.0, ours - near.baseline_us)

    def asked(self, metas: Tensors, device: torch.device, parameters: Mapping[str, Number], where: str) -> Question:
        """Return the workload to decide for tensors without memory.

        Raise a NoKernelError if no kernel can take them.
        """
        if device.type != self.machine.device_type:
            raise NoKernelError(placed(device))
        if fault := parameter_fault(parameters, self.op):
            raise NoKernelError(fault)
        return self._question(metas, device, parameters, where)[0]

    def forward_by_pytorch(self, views: Tensors, parameters: Mapping[str, Number], reason: str) -> Decision:
        """Return the decision that PyTorch computes these outputs and kernels compute the backward."""
        question, found = self._question(metas_of(views), views[0].device, parameters, EAGER)
        shapes = [(spec, self.op.shape(spec, question.workload)) for spec in self.op.outputs]
        outputs = tuple(found.unfolded(*pair) for pair in shapes) if found.leading is not None else None
        sizes = self.op.sizes(question.workload)
        return Decision(reason, "", ByPyTorch(self.op), sizes, found.inputs, outputs)

    def _question(
        self, views: Tensors, device: torch.device, parameters: Mapping[str, Number], where: str
    ) -> tuple[Question, Folds]:
        """Return the workload to decide for these tensors. Raise a NoKernelError if they do not fit the op."""
        info = self.machine.info(device)
        with torch.no_grad():
            found = folds(self.op, [x.shape for x in views])
            inputs = [x.reshape(shape) for x, shape in zip(views, found.inputs, strict=True)]
            workload = workload_of(self.op, inputs, parameters)
            check_outputs(self.op, workload, inputs)
        question = Question(
            op=self.op.name,
            device=info.name,
            workload=workload,
            point=point(self.op, workload, info),
            options=current(),
            elements=self.op.elements(workload),
            free=self._free,
            sizes=self._sizes,
            arch=info.arch,
            compiled=where in {COMPILED, FOR_BACKWARD},
            for_backward=where == FOR_BACKWARD,
        )
        return question, found

    def _chosen(self, question: Question, views: Tensors, found: Folds, where: str) -> Decision:
        workload, device = question.workload, views[0].device
        tuned = self._tuned(question, views, found, where) if question.tunes else None
        if tuned and not tuned.kernel:
            raise NoKernelError(str(tuned))
        for choice in choices(self.entry, self._kernels, question):
            if tuned and choice.shipped.id != tuned.kernel:
                continue
            if not (ready := self._prepared(choice, workload, device)):
                continue
            if where == EAGER and not tuned:
                self._check_launch(ready, choice.measured, question, views)
            shapes = [(spec, self.op.shape(spec, workload)) for spec in self.op.outputs]
            outputs = tuple(found.unfolded(*pair) for pair in shapes) if found.leading is not None else None
            saves_us = tuned.saves_us if tuned else _saves_us(choice, question)
            reason = str(tuned) if tuned else _reason(choice.measured, question)
            measured_us = choice.measured.times.median_us * _share(question, choice.measured)
            kernel_us = tuned.kernel_us if tuned else measured_us
            sizes = self.op.sizes(workload)
            return Decision(reason, choice.shipped.id, ready, sizes, found.inputs, outputs, saves_us, kernel_us)
        raise AssertionError("`choices` must end with a NoKernelError")

    def _tuned(self, question: Question, views: Tensors, found: Folds, where: str) -> Tuned | None:
        """Return the fastest kernel on this machine, or PyTorch: from the cache, or by timing all of them.

        Return None if the cache has no entry and a graph is being captured.
        """
        device, parameters = views[0].device, dict(question.workload.parameters)
        facts = (self.op.name, question.workload, question.options, question.options.is_deterministic)
        name = _name_of(*facts, self.machine.described(device))
        if (known := _remembered(name)) and known.kernel in {"", *self._kernels}:
            return known
        if where == CAPTURED:
            return None
        kernels: dict[str, Callable[[], object]] = {}
        try:
            for choice in choices(self.entry, self._kernels, question):
                if ready := self._prepared(choice, question.workload, device):
                    kernels[choice.shipped.id] = self._known_call(ready, question.workload, views, found.inputs)
                if len(kernels) == MOST_TIMED:
                    break
        except NoKernelError:
            if not kernels:
                raise
        with torch.inference_mode(False), torch.no_grad():
            device_us, given = self.machine.device_us, _of_usual_mode(views)
            fastest = _timed(
                kernels, lambda: by_pytorch(self.op, given, parameters), lambda call: device_us(call, device)
            )
        _remember(name, fastest)
        return fastest

    def _prepared(self, choice: Choice, workload: Workload, device: torch.device) -> Launchable | None:
        """Return the kernel, compiled; None if these sizes exceed a limit of the device."""
        try:
            return self.machine.prepare(self.op, workload, choice.bound, device)
        except MissingError:
            raise
        except NoKernelError:
            return None

    def _check_launch(self, ready: Launchable, measured: Measured, question: Question, views: Tensors) -> None:
        """Raise a SlowLaunchError if the host takes longer to launch a short kernel than to call PyTorch."""
        share = _share(question, measured)
        kernel_us, eager_us = measured.times.median_us * share, measured.times.eager_us * share
        if question.options.pinned(self.op.name) or kernel_us > SHORT_US:
            return
        parameters = dict(question.workload.parameters)
        with torch.inference_mode(False), torch.no_grad():
            shapes = folds(self.op, [x.shape for x in views]).inputs
            inputs = _of_usual_mode(tuple(map(as_kernel_reads, views, shapes)))
            ours = self.machine.host_us(self._known_call(ready, question.workload, inputs, shapes))
            theirs = self.machine.host_us(lambda: by_pytorch(self.op, inputs, parameters))
        theirs = max(theirs, eager_us)
        if max(ours, kernel_us) > theirs:
            raise SlowLaunchError(f"launching it takes {ours:.0f} us of the host's time, and PyTorch {theirs:.0f} us")

    def _known_call(
        self, ready: Launchable, workload: Workload, views: Tensors, shapes: Sequence[Shape]
    ) -> Callable[[], object]:
        """Return a function that launches the kernel as repeated calls do."""
        parameters = dict(workload.parameters)
        sources = sources_of(tuple(starmap(Reading, zip(views, shapes, strict=True))), views)
        if sources is None:
            return partial(launched, Decision("", ready=ready, inputs=tuple(shapes)), parameters, views)
        written = []
        for spec in self.op.outputs:
            shape = self.op.shape(spec, workload)
            dtype = TORCH_DTYPES[spec.dtype or workload.dtype]
            written.append(Written(shape, contiguous(shape), dtype, is_wanted=True))
        return partial(ready.planned(sources, written, parameters), *views)

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {shipped.id: shipped.load(self._folder) for shipped in self.entry.kernels}

    @cached_property
    def _free(self) -> dict[str, frozenset[str]]:
        """The free parameters of each kernel, and under "" those of PyTorch."""
        free = {name: free_for_kernel(self.op, kernel) for name, kernel in self._kernels.items()}
        return {**free, "": free_for_sizes(self.op)}

    @cached_property
    def _sizes(self) -> frozenset[str]:
        """The parameters that are the size of a tensor."""
        dims = {dim for spec in (*self.op.inputs, *self.op.outputs) for dim in spec.dims}
        return frozenset(self.op.parameters) & dims

    @cached_property
    def fixed(self) -> tuple[str, ...]:
        """The parameters that are not free for some kernel. A decision depends only on these."""
        return tuple(name for name in self.op.parameters if not all(name in free for free in self._free.values()))


def _saves_us(choice: Choice, question: Question) -> float:
    """Return the time by which a kernel is faster than its alternative; infinity if the kernel was requested."""
    if question.options.pinned(question.op):
        return math.inf
    times = choice.measured.times
    alternative_us = times.baseline_us if question.compiled else times.eager_us
    return (alternative_us - times.median_us) * _share(question, choice.measured)


def _reason(measured: Measured, question: Question) -> str:
    over, speedup = "eager PyTorch", measured.speedup_over_eager
    if question.compiled:
        over, speedup = "the best of eager and torch.compile", measured.speedup
    return f"it was {speedup:.2f} times as fast as {over} at {measured.times.workload} on {measured.device}"


def launched(decision: Decision, parameters: Mapping[str, Number], inputs: Tensors) -> Tensors:
    ready: Any = decision.ready
    launched: Tensors = ready.launch(tuple(map(as_kernel_reads, inputs, decision.inputs)), parameters)
    return launched


def by_pytorch(op: Op, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
    """Run PyTorch, as a user would without this package.

    Inputs are made contiguous first, because PyTorch's backward functions do not check that they are.
    """
    inputs = tuple(x.contiguous() if isinstance(x, torch.Tensor) else x for x in inputs)
    outputs = (op.baseline or op.reference)(*inputs, **parameters)
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _share(question: Question, measured: Measured) -> float:
    """Return the size of the workload as a share of the measured size, at most 1."""
    return min(1.0, math.prod(size for _, size in question.workload.dims) / math.prod(measured.dims.values()))


def metas_of(views: Tensors) -> Tensors:
    return tuple(torch.empty(x.shape, dtype=x.dtype, device="meta") for x in views)


def _of_usual_mode(views: Tensors) -> Tensors:
    """Return copies of tensors of inference mode, which may not require gradients as in PyTorch's attention."""
    return tuple(x.clone() if x.is_inference() else x for x in views)


def _timed(
    kernels: Mapping[str, Callable[[], object]],
    pytorch: Callable[[], object],
    device_us: Callable[[Callable[[], object]], float],
) -> Tuned:
    """Time the calls of kernels, given by their ids, and PyTorch's call."""
    times = {name: device_us(call) for name, call in kernels.items()}
    fastest, pytorch_us = min(times, key=times.__getitem__), device_us(pytorch)
    return Tuned(fastest if times[fastest] < pytorch_us else "", times[fastest], pytorch_us)


def _name_of(*facts: object) -> str:
    """Return the name under which the cache stores a result that depends on these facts."""
    return f"{hashlib.sha256(repr(facts).encode()).hexdigest()}.json"


def _remembered(name: str) -> Tuned | None:
    """Return the cache's entry of a name; None if there is none or it was damaged."""
    content = kept(name)
    try:
        return None if content is None else Tuned(**json.loads(content))
    except (ValueError, TypeError):  # the entry was written by another version
        return None


def _remember(name: str, tuned: Tuned) -> None:
    keep(name, json.dumps(asdict(tuned)).encode())
