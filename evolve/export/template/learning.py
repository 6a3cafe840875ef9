"""Repeated calls that require gradients: the launch of a plan as a function of autograd.

Its backward, once made, becomes a plan as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import repeat
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.folding import folded
from evolve.export.template.gradients import Deciding, Gradients, Known, Step, apart, by_autograd
from evolve.export.template.plans import Launchable, Made, Plan, Reading, modes_are_plain, planned
from evolve.export.template.unrolled import Kinds, Run, Shape, Source, defined, numbered
from reference_ops.op import GRADIENT, Number

NOTHING: Mapping[str, Any] = {}
Gradient = Tensor | None


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor for a kernel: the order of its dims in which the elements are contiguous."""

    shape: Shape
    order: tuple[int, ...]

    @classmethod
    def of(cls, shape: Shape, stride: Shape) -> "Layout":
        """Return the order in which the elements lie in memory."""
        return cls(shape, tuple(sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))))

    @classmethod
    def of_source(cls, x: Tensor, source: Source) -> "Layout | None":
        """Return the order in which a kernel reads a tensor; None if it does not read exactly all of it."""
        shape = tuple(x.shape)
        if source.view is None:
            return cls.of(shape, x.stride()) if torch.Size(source.shape).numel() == x.numel() else None
        own, read = list(zip(shape, x.stride(), strict=True)), zip(source.view.shape, source.view.stride, strict=True)
        order = tuple([own.index(dim) if dim in own else -1 for dim in read])
        return cls(shape, order) if sorted(order) == list(range(len(shape))) else None

    @cached_property
    def is_plain(self) -> bool:
        return self.order == tuple(range(len(self.order)))

    def flattened(self, x: Tensor, shape: Shape) -> Tensor:
        """Return a tensor with this layout's dims as another shape over the same order of elements."""
        return self.read(x).reshape(shape)

    def read(self, x: Tensor) -> Tensor:
        return x if self.is_plain else x.permute(self.order)

    def restored(self, x: Tensor) -> Tensor:
        """Undo `flattened`."""
        if self.is_plain:
            return x.reshape(self.shape)
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return x.reshape([self.shape[dim] for dim in self.order]).permute(inverse)


@dataclass(frozen=True)
class Learning:
    """The data for the backward of a plan: the op's gradients, and the places of the op's tensors in the call."""

    gradients: Gradients
    parameters: Mapping[str, Number]
    sources: tuple[Source, ...]
    layouts: Mapping[str, Layout]  # layouts of the op's inputs and outputs
    kinds: Mapping[str, tuple[Shape, torch.dtype]]  # shapes and dtypes in which the op's backward reads these tensors
    kinds_of_backward: Kinds = field(default_factory=Kinds)

    def backward(
        self, needs: tuple[bool, ...], saved: tuple[Tensor, ...], grads: tuple[Gradient, ...]
    ) -> tuple[Gradient, ...]:
        """Return the gradients of the call's tensors that need one."""
        op = self.gradients.op
        places = {spec.name: one.tensor for spec, one in zip(op.inputs, self.sources, strict=True)}
        asked = {name: place for name, place in places.items() if needs[place]}
        steps = [step for step in self.gradients.steps if step.gives & asked.keys()]
        names = (*self.gradients.kept, *[GRADIENT + spec.name for spec in op.outputs])
        every = {name: x for name, x in zip(names, (*saved, *grads), strict=True) if x is not None}
        if (
            self.gradients.is_rectified
            or by_autograd(grads)
            or not all(name in every for step in steps for name in step.reads)
        ):
            return self._by_names(needs, saved, grads)
        found: list[Gradient] = [None] * len(needs)
        made = [self._stepped(step, every, asked) for step in steps]
        for one in made:
            for place, number in one.places.items():
                found[place] = one.gradients[number]
        if all(one.run for one in made) and modes_are_plain() and not any(map(_captures, steps, repeat(grads))):
            run, uses_tf32 = _together(made, len(found)), any(step.op.tf32 for step in steps)
            self.kinds_of_backward.remember((*saved, *grads), NOTHING, tuple(every.values()), run, uses_tf32)
        return tuple(found)

    def _stepped(self, step: Step, known: Mapping[str, Tensor], asked: Mapping[str, int]) -> "Stepped":
        """Return a step's gradients of the tensors that require them, and a function that repeats the step."""
        at, every = {name: place for place, name in enumerate(known)}, tuple(known.values())
        names = [(name, name.removeprefix(GRADIENT)) for name in step.reads]
        inputs = [Input(at[name], self.layouts[one], self.kinds[one][0]) for name, one in names]
        sizes = Known({}, self.kinds).sizes(self.gradients.op)
        values = {name: self.parameters.get(name, sizes.get(name, 0)) for name in step.op.parameters}
        wanted = {asked[name]: (place, self.layouts[name]) for name, place in step.places.items() if name in asked}
        outputs = list(dict.fromkeys(wanted.values()))  # two tensors with the same gradient get one object
        given = tuple([one.of(every) for one in inputs])
        places = {place: outputs.index(output) for place, output in wanted.items()}
        by_pytorch = _by_pytorch(step, values, inputs, outputs, tuple(known.values()))
        if step.deciding is None:
            return Stepped(by_pytorch(*every), places, by_pytorch)
        decision = step.deciding.decision(given, values)
        if not decision.ready:
            again = partial(_unless_captured, step.deciding, by_pytorch) if decision.is_slow_to_launch else by_pytorch
            return Stepped(by_pytorch(*every), places, again)
        written = step.deciding.launch(decision, given, values)
        found = apart([_restored(layout, layout.shape, written[place]) for place, layout in outputs])
        reads = [Reading(one.layout.read(every[one.place]), one.shape) for one in inputs]
        plan = planned(decision.ready, Made(reads, written, found, values), every)
        return Stepped(found, places, plan.gathered(plan.run, found) if plan else None)

    def _by_names(
        self, needs: tuple[bool, ...], saved: tuple[Tensor, ...], grads: tuple[Gradient, ...]
    ) -> tuple[Gradient, ...]:
        """Return the gradient of each tensor.

        Some of `grads` may be missing or batches, and the result may be differentiated again.
        """
        compute = self.gradients.computing(grads)
        with torch.set_grad_enabled(by_autograd(grads)):
            return self._computed(compute, needs, saved, grads)

    def _computed(
        self,
        compute: Callable[..., dict[str, Tensor]],
        needs: tuple[bool, ...],
        saved: tuple[Tensor, ...],
        grads: tuple[Gradient, ...],
    ) -> tuple[Gradient, ...]:
        gradients = self.gradients
        found: list[Gradient] = [None] * len(needs)
        if all(grad is None for grad in grads):
            return tuple(found)
        pairs = zip(gradients.op.outputs, grads, strict=True)
        given = {spec.name: None if grad is None else self._flattened(spec.name, grad) for spec, grad in pairs}
        kept = {name: self._flattened(name, x) for name, x in zip(gradients.kept, saved, strict=True)}
        inputs = list(zip(gradients.op.inputs, self.sources, strict=True))
        needed = frozenset(spec.name for spec, one in inputs if needs[one.tensor])
        of_inputs = compute(Known(kept, self.kinds), given, self.parameters, needed)
        for spec, one in inputs:
            if (gradient := of_inputs.get(spec.name)) is not None:
                layout = self.layouts[spec.name]
                found[one.tensor] = _restored(layout, layout.shape, gradient)
        return apart(found)

    def _flattened(self, name: str, x: Tensor) -> Tensor:
        return self.layouts[name].flattened(x, self.kinds[name][0])


@dataclass(frozen=True)
class Input:
    """An input of a step: its place among the kept tensors and the gradients of outputs, and how the step reads it."""

    place: int
    layout: Layout
    shape: Shape

    def of(self, every: Sequence[Tensor]) -> Tensor:
        return self.read(every[self.place])

    def read(self, x: Tensor) -> Tensor:
        return x if self.layout.is_plain and x.shape == self.shape else self.layout.flattened(x, self.shape)


@dataclass(frozen=True)
class Stepped:
    """The gradients of a step, their numbers by the call's tensors, and a function that repeats the step."""

    gradients: tuple[Tensor, ...]
    places: Mapping[int, int]
    run: Run | None


def _by_pytorch(
    step: Step,
    parameters: Mapping[str, Number],
    inputs: Sequence[Input],
    outputs: Sequence[tuple[int, Layout]],
    every: Sequence[Tensor],
) -> Run:
    """Return a function that computes a step with PyTorch for tensors like these, in as few operations as possible."""
    values: dict[str, Any] = {"pytorch": step.op.baseline or step.op.reference, "restored": _restored}
    values |= {"parameters": dict(parameters), "kind": Tensor}
    read, written = [], []
    for at, one in enumerate(inputs):
        x = every[one.place]
        values |= {f"in{at}": one, f"shape{at}": one.shape}
        as_it_is = f"x{one.place}" if x.shape == one.shape else f"x{one.place}.view(shape{at})"
        # Contiguous, because PyTorch's backward functions do not check that they are.
        is_as_read = one.layout.is_plain and x.is_contiguous()
        read.append(as_it_is if is_as_read else f"in{at}.read(x{one.place}).contiguous()")
    for at, (place, layout) in enumerate(outputs):
        values |= {f"layout{at}": layout, f"own{at}": layout.shape}
        written.append(f"restored(layout{at}, own{at}, found[{place}])")
    result = f"({''.join(f'{one}, ' for one in written)})"
    if len({place for place, _ in outputs}) < len(outputs):
        values["apart"], result = apart, f"apart({result})"
    lines = [
        f"def call({numbered('x', range(len(every)))}):",
        f"    found = pytorch({''.join(f'{one}, ' for one in read)}**parameters)",
        "    if type(found) is kind:\n            found = (found,)",
        f"    return {result}",
    ]
    return defined(lines, values)


def _restored(layout: Layout, shape: Shape, x: Tensor) -> Tensor:
    return x if layout.is_plain and x.shape == shape else layout.restored(x)


def _captures(step: Step, grads: tuple[Gradient, ...]) -> bool:
    """Return whether a CUDA graph is being captured."""
    device = next(grad.device for grad in grads if grad is not None)
    return step.deciding is not None and step.deciding.captures(device)


def _unless_captured(deciding: Deciding, run: Run, *every: Tensor) -> Any:
    """Run PyTorch where only its launches are faster, unless a graph is captured, in which launches do not count."""
    return None if deciding.captures(every[0].device) else run(*every)


def _together(made: Sequence[Stepped], tensors: int) -> Run:
    """Return a function that runs the steps of a backward and returns the gradients of this many tensors."""
    values: dict[str, Any] = {f"run{at}": one.run for at, one in enumerate(made)}
    lines = ["def call(*every):"]
    for at in range(len(made)):
        lines += [f"    found{at} = run{at}(*every)", f"    if found{at} is None:\n            return None"]
    from_ = {place: f"found{at}[{number}]" for at, one in enumerate(made) for place, number in one.places.items()}
    lines.append(f"    return ({''.join(f'{from_.get(place)}, ' for place in range(tensors))})")
    return defined(lines, values)


def runnable(ready: Launchable, made: Made, tensors: Sequence[Tensor], gradients: Gradients) -> Run | None:
    """Return a function that repeats a call with gradients, or None if there is none."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    plan = planned(ready, made, tensors, all_wanted=learns)
    if plan is None:
        return None
    run = _learned(plan, gradients, made, tensors) if learns else plan.run
    return run and plan.gathered(run, made.result)


def _learned(plan: Plan, gradients: Gradients, made: Made, tensors: Sequence[Tensor]) -> Run | None:
    """Return a function that launches a plan with gradients; None if an input is only a part of a call's tensor."""
    places = [one.tensor for one in plan.sources]
    if len({*places}) < len(places) or any(x.requires_grad and at not in places for at, x in enumerate(tensors)):
        return None
    inputs = [Layout.of_source(tensors[one.tensor], one) for one in plan.sources]
    if None in inputs or any(one.offset for one in plan.sources):
        return None
    op, written = gradients.op, plan.written
    shapes = [folded(tuple(out.shape), len(spec.dims)) for spec, out in zip(op.outputs, made.outputs, strict=True)]
    dtypes = [*[tensors[at].dtype for at in places], *[out.dtype for out in written]]
    kinds = zip([*[one.shape for one in plan.sources], *shapes], dtypes, strict=True)
    layouts = [*inputs, *[Layout.of(out.shape, out.stride) for out in written]]
    known = Learning(
        gradients,
        dict(made.parameters),
        plan.sources,
        {name: layout for name, layout in zip(gradients.names, layouts, strict=True) if layout},
        dict(zip(gradients.names, kinds, strict=True)),
    )
    every = [*[f"x{at}" for at in places], *[f"out{at}" for at in range(len(written))]]
    kept = [name for name, one in zip(every, gradients.names, strict=True) if one in gradients.kept]
    fixed = [f"out{at}" for at, spec in enumerate(op.outputs) if spec.name not in gradients.learned]
    return _applied(plan.run, known, len(tensors), (kept, fixed))


def _applied(run: Run, known: Learning, tensors: int, kept_and_fixed: tuple[list[str], list[str]]) -> Run:
    """Return the function of autograd that runs a plan, keeps these tensors, and marks these as not differentiable.

    Each plan has its own class, so that a call looks up nothing by name, which takes a quarter of the time of the
    context's methods.
    """
    kept, fixed = kept_and_fixed
    outputs = len(known.gradients.op.outputs)
    given, outs = numbered("x", range(tensors)), "out0" if outputs == 1 else numbered("out", range(outputs))
    lines = [
        f"def call(ctx, {given}):",
        f"    result = {outs} = run({given})",
        f"    ctx.to_save = ({''.join(f'{name}, ' for name in kept)})",
        "    ctx.materialize_grads = False",
        *([f"    ctx.mark_non_differentiable({', '.join(fixed)})"] if fixed else []),
        "    return result",
    ]
    recall, compute = known.kinds_of_backward.recall, known.backward

    def backward(ctx: Any, *grads: Gradient) -> Any:
        saved = ctx.saved_tensors  # read once, because each access may compute them again
        found = recall((*saved, *grads), NOTHING)
        return compute(ctx.needs_input_grad, saved, grads) if found is None else found

    methods = {"forward": staticmethod(defined(lines, {"run": run})), "backward": staticmethod(backward)}
    kind: Any = type("Launched", (torch.autograd.Function,), methods)
    # This does the work of the class method `apply` without its search for transforms of torch.func, which was done
    # before.
    return super(torch.autograd.Function, kind).apply  # type: ignore[no-any-return]
