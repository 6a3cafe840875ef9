"""Dispatch of calls in an exported package to the kernel that was fastest at the nearest sizes, or to PyTorch."""

import logging
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from evolve.export.template.calls import NoKernelError, autograd_inside, contiguous_outputs, obstacle
from evolve.export.template.choosing import Question, bytes_per_us
from evolve.export.template.deciding import (
    CAPTURED,
    COMPILED,
    EAGER,
    FOR_BACKWARD,
    Decider,
    Decision,
    by_pytorch,
    launched,
    metas_of,
)
from evolve.export.template.folding import as_kernel_reads, takes_more_dims
from evolve.export.template.forms import BYTES_PER_US, NOTHING_LOST, Lost, copied_bytes, copying_us
from evolve.export.template.gradients import DIVIDE, Differentiable, Gradients, Step
from evolve.export.template.launching import Gpus, Machine, Tensors
from evolve.export.template.learning import runnable
from evolve.export.template.manifest import ExportedEntry, Shipped
from evolve.export.template.opaque_costs import Costs
from evolve.export.template.options import current
from evolve.export.template.plans import Made, Reading, modes_are_plain
from evolve.export.template.rectified import RECTIFIED
from evolve.export.template.unrolled import Kinds, Run
from reference_ops.op import GRADIENT, Number, Op
from reference_ops.precision import TORCH_DTYPES

LOG = logging.getLogger(__name__)
NOTHING = ExportedEntry("", (), (), {}, (), ())
TOO_LITTLE = Decision("the copies before the kernel and the operations after it take longer than it saves")
MARGIN_US = 20.0  # time that the kernels of a backward must save if PyTorch computes the forward
# more than the number of shapes in a model; without a limit, varying lengths would fill the memory
MOST_DECISIONS = 4096


@dataclass(frozen=True)
class Explanation:
    """The outcome of a call: the kernel that it would run, or None if PyTorch would run, and the reason."""

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
        self.machine = machine or Gpus()
        self._decider = Decider(op, entry, folder, self.machine)
        self._decisions: dict[object, Decision] = {}
        self._kinds, self._kinds_in_graphs = Kinds(), Kinds()
        self._lock = threading.RLock()

    def __call__(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run a kernel where one wins, PyTorch elsewhere."""
        outputs = self.run(inputs, parameters)
        return self.pytorch(inputs, parameters) if outputs is None else outputs

    def repeated(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run as `__call__` does.

        In most cases, shapes and parameters are those of an earlier call, as in a backward.
        """
        outputs: Tensors | None = self._kinds.recall(inputs, parameters)
        if outputs is not None:
            return outputs
        decision = self.decision(inputs, parameters)
        if decision.ready:
            outputs = self.launch(decision, inputs, parameters)
            self._remember(self._kinds, inputs, parameters, self._again(decision, inputs, outputs, parameters))
            return outputs
        outputs = self.pytorch(inputs, parameters)
        if not decision.is_slow_to_launch:
            run = partial(_together, partial(self.pytorch, parameters=dict(parameters)))
            self._remember(self._kinds, inputs, parameters, run)
        return outputs

    def in_graph(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run as an opaque op, by a kernel or by PyTorch, whose outputs are contiguous."""
        outputs: Tensors | None = self._kinds_in_graphs.recall(inputs, parameters)
        if outputs is not None:
            return outputs
        decision = self.decision(inputs, parameters, COMPILED)
        if not decision.ready and self.gradients.steps:
            decision = self.decision(inputs, parameters, FOR_BACKWARD)
        if not decision.ready:
            with autograd_inside():
                return contiguous_outputs(self.pytorch(inputs, parameters), inputs)
        outputs = self.launch(decision, inputs, parameters)
        self._remember(self._kinds_in_graphs, inputs, parameters, self._again(decision, inputs, outputs, parameters))
        return outputs

    def _again(
        self, decision: Decision, inputs: Tensors, outputs: Tensors, parameters: Mapping[str, Number]
    ) -> Run | None:
        """Return a function that repeats a call that was just made; None if there is none."""
        reads = tuple(starmap(Reading, zip(inputs, decision.inputs, strict=True)))
        made = Made(reads, outputs, outputs, parameters)
        return runnable(decision.ready, made, inputs, self.gradients) if decision.ready else None

    def _remember(self, kinds: Kinds, inputs: Tensors, parameters: Mapping[str, Number], run: Run | None) -> None:
        if run and modes_are_plain() and not self.captures(inputs[0].device):
            kinds.remember(inputs, parameters, inputs, run, self.op.tf32)

    @property
    def kernels(self) -> tuple[Shipped, ...]:
        """The package's kernels of the op and of its backward."""
        backward = [s.deciding.entry.kernels for s in self.gradients.steps if isinstance(s.deciding, Primitive)]
        return tuple(chain(self.entry.kernels, *backward))

    @property
    def device_type(self) -> str:
        return self.machine.device_type

    def run(
        self, views: Tensors, parameters: Mapping[str, Number], where: str = EAGER, after_bytes: int = 0
    ) -> Tensors | None:
        """Return the op's outputs if a kernel wins for these inputs, whose leading dims may be unfolded; else None.

        With `after_bytes`, the kernel must save at least the time of copying so many bytes.
        """
        decision = self.decision(views, parameters, where, after_bytes)
        return self.launch(decision, views, parameters) if decision.ready else None

    def decision(
        self, views: Tensors, parameters: Mapping[str, Number], where: str = EAGER, after_bytes: int = 0
    ) -> Decision:
        """Return the kernel that runs for these inputs, or the reason why PyTorch runs.

        The time of copies of inputs counts.
        """
        if reason := self._obstacle(views, parameters):
            return Decision(reason)
        decision = self._decide(views, parameters, where)
        if where == EAGER and self.gradients.steps and (learning := self._learning(views)):
            chosen = self._with_own_backward if decision.ready else self._for_backward
            decision = chosen(decision, views, parameters, learning)
        if not decision.ready or where == FOR_BACKWARD:
            return decision
        return TOO_LITTLE if decision.saves_us < _copies_us(views, after_bytes) else decision

    def launch(self, decision: Decision, views: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run the decision's kernel, and return its outputs as the caller gets them."""
        ready: Any = decision.ready
        if not (torch.is_grad_enabled() and any(x.requires_grad for x in views)):
            outputs: Tensors = ready.launch(tuple(map(as_kernel_reads, views, decision.inputs)), parameters)
            reshaped: Any = torch.ops.aten._unsafe_view  # noqa: SLF001 - no view, which `detach_` refuses; no public way
        else:
            reshaped = torch.Tensor.view  # shares the count of changes with the output that is saved for the backward
            folded = tuple(x.reshape(shape) for x, shape in zip(views, decision.inputs, strict=True))
            apply: Any = Differentiable.apply
            outputs = apply(self.gradients, partial(launched, decision, parameters), parameters, *folded)
        if decision.outputs is None:
            return outputs
        return tuple([reshaped(out, shape) for out, shape in zip(outputs, decision.outputs, strict=True)])

    def captures(self, device: torch.device) -> bool:
        """Return whether a CUDA graph is being captured."""
        return device.type == self.device_type and self.machine.capturing(device)

    def pytorch(self, inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        """Run PyTorch, as a user would without this package."""
        return by_pytorch(self.op, inputs, parameters)

    def explain(self, views: Tensors, parameters: Mapping[str, Number], after_bytes: int = 0) -> Explanation:
        decision = self.decision(views, parameters, EAGER, after_bytes)
        return Explanation(self.op.name, decision.kernel, decision.reason)

    def _obstacle(self, views: Tensors, parameters: Mapping[str, Number]) -> str:
        return obstacle(views, parameters, self.op, self.machine.device_type) or self._no_gradient(views)

    def _learning(self, views: Tensors) -> frozenset[str]:
        """Return the inputs that require gradients."""
        if not torch.is_grad_enabled():
            return frozenset()
        return frozenset([s.name for s, x in zip(self.op.inputs, views, strict=True) if x.requires_grad])

    def _no_gradient(self, views: Tensors) -> str:
        learning = self._learning(views)
        if learning and (missing := self.gradients.missing(learning)):
            return f"the package has no gradient of {self.op.name} with respect to {', '.join(sorted(missing))}"
        return ""

    def _for_backward(
        self, decision: Decision, views: Tensors, parameters: Mapping[str, Number], learning: Collection[str]
    ) -> Decision:
        """Return the decision where no kernel wins the forward: PyTorch, perhaps with a kernel for the backward."""
        if decision.is_slow_to_launch:
            return decision

        def with_kernels() -> Decision:
            gains = self._backward_gains_us(metas_of(views), views[0].device, parameters, learning, EAGER)
            saves_us = _saved(gains)
            if saves_us <= MARGIN_US:
                return decision
            told = f"a kernel computes {_named(gains, 1)}, and {decision.reason}"
            return replace(self._decider.forward_by_pytorch(views, parameters, told), saves_us=saves_us)

        return self._known((decision.reason, learning, *self._key(views, parameters, EAGER)), with_kernels, decision)

    def _with_own_backward(
        self, decision: Decision, views: Tensors, parameters: Mapping[str, Number], learning: Collection[str]
    ) -> Decision:
        """Return the decision where a kernel wins the forward: PyTorch if the backward would lose more than that saves.

        Without a kernel, the backward is the formula of its op, which autograd may compute in fewer steps.
        """

        def compared() -> Decision:
            gains = self._backward_gains_us(metas_of(views), views[0].device, parameters, learning, EAGER)
            if decision.saves_us + sum(gains.values()) >= 0:
                return decision
            reason = "and PyTorch's own gradient takes less time than its formula"
            return Decision(f"no kernel computes {_named(gains, -1)}, {reason}")

        return self._known((decision.kernel, learning, *self._key(views, parameters, EAGER)), compared, decision)

    def _known(self, key: Hashable, decide: Callable[[], Decision], otherwise: Decision) -> Decision:
        """Return the decision that is known for a key, or else decide, and remember that."""
        known = self._decisions.get(key)
        if known is None:
            with self._lock, torch._C.DisableTorchFunction(), suppress(NoKernelError):  # noqa: SLF001 - there is no public way
                known = decide()
            known = self._decisions[key] = known or otherwise
        return known

    def _backward_gains_us(
        self,
        metas: Tensors,
        device: torch.device,
        parameters: Mapping[str, Number],
        learning: Collection[str],
        where: str,
    ) -> dict[str, float]:
        """Return what each needed op of the backward gains, as `gains_us` does."""
        workload = self._decider.asked(metas, device, parameters, where).workload
        sizes, gains = self.op.sizes(workload), dict[str, float]()
        kinds = {one.name: (self.op.shape(one, workload), TORCH_DTYPES[one.dtype or workload.dtype])
                 for one in (*self.op.inputs, *self.op.outputs)}  # fmt: skip
        for step in self.gradients.steps:
            if step.deciding is None or step.gives.isdisjoint(learning):
                continue
            shapes = [kinds[name.removeprefix(GRADIENT)] for name in step.reads]
            given = tuple(torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in shapes)
            values = {name: parameters.get(name, sizes.get(name, 0)) for name in step.op.parameters}
            gains[step.op.name] = step.deciding.gains_us(given, device, values, where)
        return gains

    def gains_us(self, metas: Tensors, device: torch.device, parameters: Mapping[str, Number], where: str) -> float:
        """Return the time that a kernel saves for tensors without memory.

        If no kernel wins, the result is negative: the time that the op's formula loses in eager PyTorch.
        """
        with suppress(NoKernelError):
            question = self._decider.asked(metas, device, parameters, where)
            try:
                return self._decider.saves_here_us(question)
            except NoKernelError:
                return -self._decider.loses_us(question)
        return 0.0

    def _key(self, views: Tensors, parameters: Mapping[str, Number], where: str) -> tuple[object, ...]:
        chosen = current()
        return (
            tuple([(x.shape, x.dtype) for x in views]),
            tuple([parameters[name] for name in self._decider.fixed]),
            views[0].device,
            chosen,
            chosen.is_deterministic,
            where,
        )

    def _decide(self, views: Tensors, parameters: Mapping[str, Number], where: str = EAGER) -> Decision:
        key = self._key(views, parameters, where)
        decision = self._decisions.get(key)
        if decision is None or (decision.is_slow_to_launch and self.machine.capturing(views[0].device)):
            decision = self._first_decision(key, views, parameters, where)
        if decision.ready and self.op.valid and not self.op.valid({**decision.sizes, **parameters}):
            return Decision(f"no kernel was tested with the combination { ({**decision.sizes, **parameters}) }")
        return decision

    def _first_decision(
        self, key: tuple[Any, ...], views: Tensors, parameters: Mapping[str, Number], where: str
    ) -> Decision:
        if where == EAGER and self.machine.capturing(views[0].device):
            key, where = (*key, CAPTURED), CAPTURED
        # Measuring calls PyTorch: a redirection would send these calls back to this function.
        with self._lock, torch._C.DisableTorchFunction():  # noqa: SLF001 - there is no public way
            if known := self._decisions.get(key):
                return known
            if len(self._decisions) >= MOST_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[key] = self._decider.decided(views, parameters, where)
            LOG.debug("%s", Explanation(self.op.name, decision.kernel, decision.reason))
            return decision

    def loses(
        self,
        metas: Tensors,
        device: torch.device,
        parameters: Mapping[str, Number],
        after_bytes: int = 0,
        lost: Lost = NOTHING_LOST,
        learning: Collection[str] = (),
    ) -> str:
        """Return the reason why no kernel wins in a compiled graph, for tensors without memory; empty if one wins.

        The time of copies counts, and so do the host's time and the bytes that are moved because the compiler fuses
        nothing with an opaque op. Nothing is compiled. Where these inputs require gradients, a kernel of the backward
        may win, and the graph of the backward makes the same choice.
        """
        try:
            question = self._decider.asked(metas, device, parameters, COMPILED)
        except NoKernelError as error:
            return str(error)
        costs = self._costs(question, metas, after_bytes, lost)
        saves_us, reason = 0.0, ""
        try:
            saves_us = self._decider.saves_here_us(question)
        except NoKernelError as error:
            reason = str(error)
            with suppress(NoKernelError):
                of_backward = self._decider.asked(metas, device, parameters, FOR_BACKWARD)
                costs = replace(costs, slower_us=self._decider.costs_us(of_backward))
        if not reason and saves_us >= costs.us:
            return ""
        gains: Mapping[str, float] = {}
        with suppress(NoKernelError):
            gains = self._backward_gains_us(metas, device, parameters, learning, COMPILED)
        in_backward_us = sum(max(0.0, gain - costs.of_backward_us) for gain in gains.values())
        if in_backward_us and saves_us + in_backward_us >= costs.us:
            return ""
        return reason or f"the kernel saves {saves_us:.1f} us, which costs more as an opaque op: {costs}"

    def _costs(self, question: Question, metas: Tensors, after_bytes: int, lost: Lost) -> Costs:
        """Return the costs of an opaque op for tensors without memory."""
        rate = bytes_per_us(self.entry, question.device)
        return Costs(_copies_us(metas, after_bytes, rate), rate, self.machine.opaque_us, 0.0, lost)

    @cached_property
    def takes_more_dims(self) -> bool:
        """Whether leading dims may be folded into rows, found by trial."""
        with _disable_current_modes():
            return takes_more_dims(self.op)


def _copies_us(views: Tensors, after_bytes: int, rate: float = BYTES_PER_US) -> float:
    """Return the time of the copies before and after a kernel."""
    return sum(copying_us(nbytes, rate) for nbytes in [*map(copied_bytes, views), after_bytes])


def _saved(gains_us: Mapping[str, float]) -> float:
    return sum(max(0.0, gain) for gain in gains_us.values())


def _named(gains_us: Mapping[str, float], sign: int) -> str:
    """Return the names of the ops whose gain has this sign."""
    return " and ".join(name for name, gain in gains_us.items() if gain * sign > 0)


def _together(function: Callable[[Tensors], Tensors], *tensors: torch.Tensor) -> Tensors:
    return function(tensors)


def gradients_of(
    op: Op, ops: Mapping[str, Op], primitives: Mapping[str, Primitive], machine: Machine | None
) -> Gradients:
    """Return the steps of an op's backward: exported ops, or else PyTorch's own backward."""
    steps = []
    for one in RECTIFIED.get(op.name, op.backward):
        of_step = one if isinstance(one, Op) else ops.get(one) if one not in DIVIDE else None
        if of_step is not None:
            known = primitives.get(of_step.name)
            primitive = known or Primitive(of_step, NOTHING, Path(), machine)
            run = known.repeated if known else primitive.pytorch
            steps.append(Step(of_step, run, primitive.pytorch, known))
    return Gradients(op, tuple(steps))
