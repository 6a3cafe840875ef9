"""Dispatch of calls in an exported package: to the kernel that was fastest at the nearest sizes, or to PyTorch."""

import logging
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from archive.kernel import Kernel
from evolve.export.template.calls import (
    MissingError,
    NoKernelError,
    check_outputs,
    obstacle,
    parameter_fault,
    workload_of,
)
from evolve.export.template.choosing import Choice, Question, choices
from evolve.export.template.folding import Folds, Shape, as_kernel_reads, folds, takes_more_dims
from evolve.export.template.free import free_for_kernel, free_for_sizes
from evolve.export.template.gradients import DIVIDE, Differentiable, Gradients, Step
from evolve.export.template.launching import Gpus, Launchable, Machine, Tensors
from evolve.export.template.manifest import ExportedEntry, Measured
from evolve.export.template.options import current
from evolve.export.template.tuning import MOST_TIMED, Tuned, name_of, remember, remembered, timed
from evolve.op_on_device import point
from reference_ops.op import Number, Op, Workload

EAGER, COMPILED = "eager", "compiled"  # where a call is made: this decides what a kernel must beat
CAPTURING = (
    "PyTorch runs, because the first call for these sizes is made while a CUDA graph is captured and its kernel is not "
    "compiled yet; call it once before the capture"
)
LOG = logging.getLogger(__name__)
NOTHING = ExportedEntry("", (), (), {}, (), ())
SHORT_US = 60.0  # above this, no launch takes longer than its kernel
MOST_DECISIONS = 4096  # more than a model has shapes; lengths that never repeat would fill the memory


@dataclass(frozen=True)
class Decision:
    """Decision for one workload on one device: the compiled kernel, or none if PyTorch runs, and the reason."""

    reason: str
    kernel: str = ""
    ready: Launchable | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Shape, ...] = ()  # shapes in which the kernel reads the inputs
    outputs: tuple[Shape, ...] | None = None  # shapes in which the caller gets the outputs, if they differ
    saves_us: float = 0.0  # time that the kernel saved at the nearest measured size


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
        self.gradients = Gradients(op, ())
        self._folder = folder
        self.machine = machine or Gpus()
        self._decisions: dict[object, Decision] = {}
        self._lock = threading.RLock()

    def __call__(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run a kernel where one wins, PyTorch elsewhere."""
        outputs = self.run(inputs, parameters)
        return self.pytorch(inputs, parameters) if outputs is None else outputs

    @property
    def device_type(self) -> str:
        return self.machine.device_type

    def run(
        self, views: Tensors, parameters: Mapping[str, Number], where: str = EAGER, after_us: float = 0.0
    ) -> Tensors | None:
        """Return the op's outputs if a kernel wins for these inputs, whose leading dims may be unfolded; else None.

        With `after_us`, it must save at least this time.
        """
        if self._obstacle(views, parameters):
            return None
        decision = self._decide(views, parameters, where)
        ready = decision.ready
        if ready is None or decision.saves_us < after_us:
            return None
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in views)):
            outputs = ready.launch(tuple(map(as_kernel_reads, views, decision.inputs)), parameters)
        else:
            folded = tuple(x.reshape(shape) for x, shape in zip(views, decision.inputs, strict=True))
            apply: Any = Differentiable.apply
            outputs = apply(self.gradients, partial(_launched, decision, parameters), parameters, *folded)
        if decision.outputs is None:
            return outputs
        return tuple([out.view(shape) for out, shape in zip(outputs, decision.outputs, strict=True)])

    def pytorch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run PyTorch, as a user would without this package.

        Inputs are made contiguous first, because PyTorch's backward functions do not check that they are.
        """
        inputs = tuple(x.contiguous() if isinstance(x, torch.Tensor) else x for x in inputs)
        outputs = (self.op.baseline or self.op.reference)(*inputs, **parameters)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)

    def pays(self, views: Tensors, parameters: Mapping[str, Number], after_us: float) -> bool:
        """Return whether a kernel saves at least this time."""
        return self._decide(views, parameters).saves_us >= after_us

    def explain(self, views: Tensors, parameters: Mapping[str, Number]) -> Explanation:
        reason = self._obstacle(views, parameters)
        decision = Decision(reason) if reason else self._decide(views, parameters)
        return Explanation(self.op.name, decision.kernel, decision.reason)

    def _obstacle(self, views: Tensors, parameters: Mapping[str, Number]) -> str:
        return obstacle(views, parameters, self.op, self.machine.device_type) or self._no_gradient(views)

    def _no_gradient(self, views: Tensors) -> str:
        if not torch.is_grad_enabled():
            return ""
        learning = frozenset(s.name for s, x in zip(self.op.inputs, views, strict=True) if x.requires_grad)
        if learning and (missing := self.gradients.missing(learning)):
            return f"the package has no gradient of {self.op.name} to {', '.join(sorted(missing))}"
        return ""

    def _decide(self, views: Tensors, parameters: Mapping[str, Number], where: str = EAGER) -> Decision:
        chosen = current()
        key = (
            tuple([(x.shape, x.dtype) for x in views]),
            tuple([parameters[name] for name in self._fixed]),
            views[0].device,
            chosen,
            chosen.is_deterministic,
            where,
        )
        decision = self._decisions.get(key)
        if decision is None:
            # Measuring calls PyTorch: a redirection would lead these calls back here.
            with self._lock, torch._C.DisableTorchFunction():  # noqa: SLF001 - there is no public way
                decision = self._decisions.get(key) or self._decided(views, parameters, where)
                if len(self._decisions) >= MOST_DECISIONS:
                    self._decisions.clear()
                if decision.reason != CAPTURING:
                    self._decisions[key] = decision
                LOG.debug("%s", Explanation(self.op.name, decision.kernel, decision.reason))
        if decision.ready and self.op.valid and not self.op.valid({**decision.sizes, **parameters}):
            return Decision(f"no kernel was tested with the combination {dict(parameters)}")
        return decision

    def wins(self, metas: Tensors, device: torch.device, parameters: Mapping[str, Number]) -> bool:
        """Return whether a kernel wins in a compiled graph, for tensors without memory. Compiles nothing."""
        if device.type != self.machine.device_type or parameter_fault(parameters, self.op):
            return False
        try:
            question, _ = self._question(metas, device, parameters, COMPILED)
            next(choices(self.entry, self._kernels, question))
        except NoKernelError:
            return False
        return True

    def _decided(self, views: Tensors, parameters: Mapping[str, Number], where: str) -> Decision:
        if self.machine.capturing(views[0].device):
            warnings.warn(f"{self.op.name}: {CAPTURING}", stacklevel=6)
            return Decision(CAPTURING)
        try:
            question, found = self._question(views, views[0].device, parameters, where)
            return self._chosen(question, views, found)
        except NoKernelError as error:
            return Decision(str(error))

    def _question(
        self, views: Tensors, device: torch.device, parameters: Mapping[str, Number], where: str
    ) -> tuple[Question, Folds]:
        """Return what must be decided for these tensors. Raise a NoKernelError if they do not fit the op."""
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
            elements=self.op.largest_tensor(workload),
            free=self._free,
            sizes=self._sizes,
            compiled=where == COMPILED,
        )
        return question, found

    def _chosen(self, question: Question, views: Tensors, found: Folds) -> Decision:
        workload, device = question.workload, views[0].device
        tuned = self._tuned(question, views, found) if question.tunes else None
        if tuned and not tuned.kernel:
            raise NoKernelError(str(tuned))
        for choice in choices(self.entry, self._kernels, question):
            if tuned and choice.shipped.id != tuned.kernel:
                continue
            if not (ready := self._prepared(choice, workload, device)):
                continue
            times = choice.measured.times
            if not tuned and (fault := self._costs_more(ready, choice.measured, question, views)):
                raise NoKernelError(fault)
            shapes = [(spec, self.op.shape(spec, workload)) for spec in self.op.outputs]
            outputs = tuple(found.unfolded(*pair) for pair in shapes) if found.leading is not None else None
            saves_us = tuned.saves_us if tuned else times.eager_us - times.median_us
            reason = str(tuned) if tuned else _reason(choice.measured, question)
            return Decision(reason, choice.shipped.id, ready, self.op.sizes(workload), found.inputs, outputs, saves_us)
        raise AssertionError("`choices` must end with a NoKernelError")

    def _tuned(self, question: Question, views: Tensors, found: Folds) -> Tuned:
        """Return which kernel is the fastest here, or that PyTorch is: from the cache, or by timing all of them."""
        device, parameters = views[0].device, dict(question.workload.parameters)
        facts = (self.op.name, question.workload, question.options, question.options.is_deterministic)
        name = name_of(*facts, self.machine.described(device))
        if (known := remembered(name)) and known.kernel in {"", *self._kernels}:
            return known
        kernels: dict[str, Callable[[], object]] = {}
        try:
            for choice in choices(self.entry, self._kernels, question):
                if ready := self._prepared(choice, question.workload, device):
                    decision = Decision("", ready=ready, inputs=found.inputs)
                    kernels[choice.shipped.id] = partial(_launched, decision, parameters, views)
                if len(kernels) == MOST_TIMED:
                    break
        except NoKernelError:
            if not kernels:
                raise
        with torch.no_grad():
            device_us = self.machine.device_us
            fastest = timed(kernels, lambda: self.pytorch(views, parameters), lambda call: device_us(call, device))
        remember(name, fastest)
        return fastest

    def _prepared(self, choice: Choice, workload: Workload, device: torch.device) -> Launchable | None:
        """Return the kernel, compiled; None if these sizes exceed a limit of the device."""
        try:
            return self.machine.prepare(self.op, workload, choice.bound, device)
        except MissingError:
            raise
        except NoKernelError:
            return None

    def _costs_more(self, ready: Launchable, measured: Measured, question: Question, views: Tensors) -> str:
        """Return why a short kernel does not pay: the host may take longer to launch it than to call PyTorch."""
        times = measured.times
        if question.compiled or question.options.pinned(self.op.name) or times.median_us > SHORT_US:
            return ""
        parameters = dict(question.workload.parameters)
        with torch.no_grad():
            inputs = tuple(map(as_kernel_reads, views, folds(self.op, [x.shape for x in views]).inputs))
            ours = self.machine.host_us(lambda: ready.launch(inputs, parameters))
            theirs = self.machine.host_us(lambda: self.pytorch(inputs, parameters))
        if max(ours, times.median_us) < max(theirs, times.eager_us):
            return ""
        return f"launching it takes {ours:.0f} us of the host's time, and PyTorch {max(theirs, times.eager_us):.0f} us"

    @cached_property
    def _kernels(self) -> dict[str, Kernel]:
        return {shipped.id: shipped.load(self._folder) for shipped in self.entry.kernels}

    @cached_property
    def _free(self) -> dict[str, frozenset[str]]:
        """The free parameters of each kernel, and under "" those of PyTorch."""
        free = {name: free_for_kernel(self.op, kernel) for name, kernel in self._kernels.items()}
        return {**free, "": free_for_sizes(self.op)}

    @cached_property
    def takes_more_dims(self) -> bool:
        """Whether leading dims may be folded into rows, found by trying."""
        with _disable_current_modes():
            return takes_more_dims(self.op)

    @cached_property
    def _sizes(self) -> frozenset[str]:
        """The parameters that are the size of a tensor."""
        dims = {dim for spec in (*self.op.inputs, *self.op.outputs) for dim in spec.dims}
        return frozenset(self.op.parameters) & dims

    @cached_property
    def _fixed(self) -> tuple[str, ...]:
        """The parameters that are not free for some kernel. Only on these does a decision depend."""
        return tuple(name for name in self.op.parameters if not all(name in free for free in self._free.values()))


def _reason(measured: Measured, question: Question) -> str:
    over, speedup = "eager PyTorch", measured.speedup_over_eager
    if question.compiled:
        over, speedup = "the best of eager and torch.compile", measured.speedup
    return f"it was {speedup:.2f} times as fast as {over} at {measured.times.workload} on {measured.device}"


def _launched(decision: Decision, parameters: Mapping[str, Number], inputs: Tensors) -> Tensors:
    ready: Any = decision.ready
    launched: Tensors = ready.launch(tuple(map(as_kernel_reads, inputs, decision.inputs)), parameters)
    return launched


def gradients_of(
    op: Op, ops: Mapping[str, Op], primitives: Mapping[str, Primitive], machine: Machine | None
) -> Gradients:
    """Return the steps of an op's backward: exported ops, or else PyTorch's own backward."""
    steps = []
    for name in op.backward:
        if name not in DIVIDE and ops.get(name) is not None:
            primitive = primitives.get(name) or Primitive(ops[name], NOTHING, Path(), machine)
            run = primitive if name in primitives else primitive.pytorch
            steps.append(Step(ops[name], run, primitive.pytorch))
    return Gradients(op, tuple(steps))
