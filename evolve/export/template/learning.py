"""Calls that are known by a key and ask for gradients: the launch of a plan as a function of autograd."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.gradients import Gradients, Known
from evolve.export.template.launching import Source, Written
from evolve.export.template.unrolled import Run
from reference_ops.op import GRADIENT, Number

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a tensor lies in memory: its shape, and its dims in the order of memory, from the outermost."""

    shape: Shape
    order: tuple[int, ...]

    @classmethod
    def of(cls, shape: Shape, stride: Shape) -> "Layout":
        return cls(shape, tuple(sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))))

    def flattened(self, x: Tensor, shape: Shape) -> Tensor:
        """Return a tensor with this layout's dims as another shape over the same order of elements in memory."""
        return x.permute(self.order).reshape(shape)

    def restored(self, x: Tensor) -> Tensor:
        """Undo `flattened`."""
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        return x.reshape([self.shape[dim] for dim in self.order]).permute(inverse)


@dataclass(frozen=True)
class Learning:
    """What autograd needs of a plan: its launch, the op's gradients, and where the op's tensors are in the call's."""

    run: Run
    gradients: Gradients
    parameters: Mapping[str, Number]
    sources: tuple[Source, ...]
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    kinds: Mapping[str, tuple[Shape, torch.dtype]]  # of the op's inputs and outputs, as its backward takes them
    kept: tuple[tuple[int, Layout], ...]  # which of a call's tensors, followed by its outputs, the backward reads
    fixed: tuple[int, ...]  # outputs through which no gradient flows, counted in the same way
    is_single: bool  # whether there is one output
    steps: tuple["Followed", ...] | None  # None: where tensors lie in another order of dims than the op's


@dataclass(frozen=True)
class Followed:
    """A step of a backward, and where its inputs and outputs are.

    Inputs are counted among the kept tensors, followed by the gradients of the outputs; outputs among the call's
    tensors. A shape is given where it is another one there.
    """

    run: Callable[[tuple[Tensor, ...], Mapping[str, Number]], Sequence[Tensor]]
    parameters: Mapping[str, Number]
    inputs: tuple[tuple[int, Shape | None], ...]
    outputs: tuple[tuple[int, int, Shape | None], ...]  # the first number counts the step's own outputs


class UnreadableError(Exception):
    """The kernel cannot read at the addresses of a call's tensors."""


def learned(
    run: Run,
    gradients: Gradients,
    parameters: Mapping[str, Number],
    sources: tuple[Source, ...],
    written: Sequence[Written],
    shapes: Sequence[Shape],
    tensors: Sequence[Tensor],
) -> Run | None:
    """Return what launches a plan so that gradients flow. None if an input is only a part of a call's tensor."""
    read = [tensors[one.tensor] for one in sources]
    places = {one.tensor for one in sources}
    if len(places) < len(sources) or any(x.requires_grad and at not in places for at, x in enumerate(tensors)):
        return None
    if any(one.offset or torch.Size(one.shape).numel() != x.numel() for one, x in zip(sources, read, strict=True)):
        return None
    dtypes = [*[x.dtype for x in read], *[out.dtype for out in written]]
    kinds_in_order = zip([*[one.shape for one in sources], *shapes], dtypes, strict=True)
    kinds = dict(zip(gradients.names, kinds_in_order, strict=True))
    inputs = tuple(Layout.of(tuple(x.shape), x.stride()) for x in read)
    outputs = tuple(Layout.of(out.shape, out.stride) for out in written)
    own = range(len(tensors), len(tensors) + len(written))
    every = list(zip(gradients.names, (*[one.tensor for one in sources], *own), (*inputs, *outputs), strict=True))
    learns = [spec.name in gradients.learned for spec in gradients.op.outputs]
    known = Learning(
        run,
        gradients,
        dict(parameters),
        sources,
        inputs,
        outputs,
        kinds,
        tuple((at, layout) for name, at, layout in every if name in gradients.kept),
        tuple(at for at, flows in zip(own, learns, strict=True) if not flows),
        len(written) == 1,
        _followed(gradients, parameters, kinds, {name: (at, layout) for name, at, layout in every}, tensors),
    )
    # What the class method `apply` does, besides looking for transforms of torch.func, which was done.
    apply: Any = super(torch.autograd.Function, Launched).apply

    def launched(*tensors: Tensor) -> Any:
        try:
            return apply(known, *tensors)
        except UnreadableError:
            return None

    return launched


class Launched(torch.autograd.Function):
    """The launch of a plan, with the backward of the op's `Gradients`."""

    @staticmethod
    def forward(ctx: Any, known: Learning, *tensors: Tensor) -> Any:
        outputs = known.run(*tensors)
        if outputs is None:
            raise UnreadableError
        every = (*tensors, outputs) if known.is_single else (*tensors, *outputs)
        # As the methods of the context do, in a quarter of their time.
        ctx.known, ctx.to_save, ctx.materialize_grads = known, tuple([every[at] for at, _ in known.kept]), False
        if known.fixed:
            ctx.mark_non_differentiable(*[every[at] for at in known.fixed])
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        known: Learning = ctx.known
        if known.steps is None or torch.is_grad_enabled():
            return _by_names(ctx, known, grads)
        every = (*ctx.saved_tensors, *grads)
        found: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
        for step in known.steps:
            given = []
            for at, shape in step.inputs:
                x = every[at]
                if x is None:
                    return _by_names(ctx, known, grads)
                given.append(x if shape is None else x.reshape(shape))
            written = step.run(tuple(given), step.parameters)
            for at, place, shape in step.outputs:
                found[place] = written[at] if shape is None else written[at].reshape(shape)
        return tuple(found)


def _by_names(ctx: Any, known: Learning, grads: tuple[Tensor | None, ...]) -> Any:
    """Return the gradients of a call, in whatever order of dims and whether or not they can be differentiated again."""
    gradients = known.gradients
    needs: tuple[bool, ...] = ctx.needs_input_grad[1:]
    found: list[Tensor | None] = [None] * len(needs)
    if all(grad is None for grad in grads):
        return (None, *found)
    given = {
        spec.name: None if grad is None else layout.flattened(grad, known.kinds[spec.name][0])
        for spec, grad, layout in zip(gradients.op.outputs, grads, known.outputs, strict=True)
    }
    kept = {
        name: layout.flattened(x, known.kinds[name][0])
        for name, (_, layout), x in zip(gradients.kept, known.kept, ctx.saved_tensors, strict=True)
    }
    inputs = zip(gradients.op.inputs, known.sources, strict=True)
    needed = frozenset(spec.name for spec, one in inputs if needs[one.tensor])
    compute = gradients.twice if torch.is_grad_enabled() else gradients.of
    of_inputs = compute(Known(kept, known.kinds), given, known.parameters, needed)
    for spec, one, layout in zip(gradients.op.inputs, known.sources, known.inputs, strict=True):
        gradient = of_inputs.get(spec.name)
        found[one.tensor] = None if gradient is None else layout.restored(gradient)
    return (None, *found)


def _followed(
    gradients: Gradients,
    parameters: Mapping[str, Number],
    kinds: Mapping[str, tuple[Shape, torch.dtype]],
    places: Mapping[str, tuple[int, Layout]],
    tensors: Sequence[Tensor],
) -> tuple[Followed, ...] | None:
    """Return the steps of a backward that give the gradients which a call asks for."""
    if any(layout.order != tuple(range(len(layout.order))) for _, layout in places.values()):
        return None
    other = {name: None if layout.shape == kinds[name][0] else kinds[name][0] for name, (_, layout) in places.items()}
    outputs = [GRADIENT + spec.name for spec in gradients.op.outputs]
    given = {name: at for at, name in enumerate((*gradients.kept, *outputs))}
    asked = {spec.name for spec in gradients.op.inputs if tensors[places[spec.name][0]].requires_grad}
    sizes = Known({}, kinds).sizes(gradients.op)
    found = []
    for step in gradients.steps:
        if asked & step.gives:
            names = [spec.name.removeprefix(GRADIENT) for spec in step.op.outputs]
            to = [(at, *places[name], other[name]) for at, name in enumerate(names) if name in asked]
            found.append(
                Followed(
                    step.run,
                    {name: parameters.get(name, sizes.get(name, 0)) for name in step.op.parameters},
                    tuple((given[name], other[name.removeprefix(GRADIENT)]) for name in step.reads),
                    tuple((at, 1 + place, None if one is None else layout.shape) for at, place, layout, one in to),
                )
            )
    return tuple(found)
