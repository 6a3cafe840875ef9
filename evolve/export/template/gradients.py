"""Gradients of an op from its backward ops, which run as kernels where these win, and in PyTorch elsewhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from evolve.export.template.rectified import RECTIFIED, before_relu
from reference_ops.op import GRADIENT, Number, Op

if TYPE_CHECKING:
    from evolve.export.template.deciding import Decision

Tensors = tuple[torch.Tensor, ...]
# Backward ops whose formula divides by an input or output of the forward; autograd's own formula handles zeros.
DIVIDE = ("cumprod_backward", "l2_norm_backward")
# Outputs that a backward op may read in place of an input, as PyTorch does: relu's output is positive where its input
# is.
INSTEAD = {"relu_backward": {"x": "out"}}
# Inputs with the same gradient as another input, because the forward reads only the sum of both.
ALIKE = {"add_rms_norm_backward": {"residual": "x"}, "add_layer_norm_backward": {"residual": "x"}}


class Deciding(Protocol):
    """Decides whether a kernel runs for the tensors of an op, and launches it."""

    def decision(self, views: Tensors, parameters: Mapping[str, Number]) -> "Decision": ...
    def launch(self, decision: "Decision", views: Tensors, parameters: Mapping[str, Number]) -> Tensors: ...
    def captures(self, device: torch.device) -> bool: ...
    def gains_us(self, metas: Tensors, device: torch.device, parameters: Mapping[str, Number], where: str) -> float: ...


@dataclass(frozen=True)
class Step:
    """A backward op, which is run by a kernel or by PyTorch."""

    op: Op
    run: Callable[[Tensors, Mapping[str, Number]], Tensors]
    pytorch: Callable[[Tensors, Mapping[str, Number]], Tensors]
    deciding: Deciding | None = None  # None if the op always runs in PyTorch or in a graph

    @cached_property
    def places(self) -> Mapping[str, int]:
        """The forward's inputs whose gradients the op returns, each with its place among the op's outputs."""
        found = {spec.name.removeprefix(GRADIENT): place for place, spec in enumerate(self.op.outputs)}
        return found | {name: found[other] for name, other in ALIKE.get(self.op.name, {}).items()}

    @property
    def gives(self) -> frozenset[str]:
        """The names of the forward's inputs whose gradients the op returns."""
        return frozenset(self.places)

    @property
    def reads(self) -> tuple[str, ...]:
        """The forward's inputs and outputs, and gradients of outputs, that the op reads, in the order of its inputs."""
        instead = INSTEAD.get(self.op.name, {})
        return tuple(instead.get(spec.name, spec.name) for spec in self.op.inputs)

    def wants(self, outputs: frozenset[str]) -> frozenset[str]:
        """Return the forward's outputs whose gradients the op reads."""
        return outputs & {name.removeprefix(GRADIENT) for name in self.reads if name.startswith(GRADIENT)}


@dataclass(frozen=True)
class Known:
    """The data that a forward leaves for its backward: the kept tensors, and the shapes and dtypes of all, by name."""

    kept: Mapping[str, torch.Tensor]
    kinds: Mapping[str, tuple[tuple[int, ...], torch.dtype]]

    def sizes(self, op: Op) -> dict[str, int]:
        """Return the size of every dim of the forward's inputs and outputs."""
        sizes: dict[str, int] = {}
        for spec in (*op.inputs, *op.outputs):
            sizes.update(zip(spec.dims, self.kinds[spec.name][0], strict=True))
        return sizes

    def given(self, name: str, grads: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
        """Return an input of a backward op. The gradient of an unused output is zero."""
        if name in self.kept:
            return self.kept[name]
        of = name.removeprefix(GRADIENT)
        gradient = grads[of]
        if gradient is not None:
            return gradient
        device = next(one.device for one in (*grads.values(), *self.kept.values()) if one is not None)
        shape, dtype = self.kinds[of]
        return torch.zeros(shape, dtype=dtype, device=device)


@dataclass(frozen=True)
class Gradients:
    """The data of an op that autograd needs: the steps of its backward."""

    op: Op
    steps: tuple[Step, ...]

    @property
    def is_rectified(self) -> bool:
        """Whether the steps take the gradient before the ReLU with which the op ends."""
        return self.op.name in RECTIFIED

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The op's inputs and outputs."""
        return tuple(spec.name for spec in (*self.op.inputs, *self.op.outputs))

    @cached_property
    def kept(self) -> tuple[str, ...]:
        """The inputs and outputs that a forward keeps for the backward: those that its steps read.

        If only parameters of fewer dims are missing, such as a bias, these are kept too, because they exist in any
        case. PyTorch can then differentiate twice from the inputs. Running statistics are not kept, because they
        change.
        """
        read = {name for step in self.steps for name in step.reads}
        if self.is_rectified and self.steps:
            read.add(self.op.outputs[0].name)
        most = max(len(spec.dims) for spec in self.op.inputs)
        missing = [spec for spec in self.op.inputs if spec.name not in read]
        learned = frozenset().union(*(step.gives for step in self.steps))
        if all(len(spec.dims) < most and spec.name in learned for spec in missing):
            read |= {spec.name for spec in missing}
        return tuple(name for name in self.names if name in read)

    def missing(self, names: frozenset[str]) -> frozenset[str]:
        """Return the inputs whose gradient no step computes."""
        return names - frozenset().union(*(step.gives for step in self.steps))

    @property
    def learned(self) -> frozenset[str]:
        """The outputs that have gradients. Statistics for the backward are not among them."""
        outputs = frozenset(spec.name for spec in self.op.outputs)
        return frozenset().union(*(step.wants(outputs) for step in self.steps))

    def computing(self, grads: Iterable[torch.Tensor | None]) -> Callable[..., dict[str, torch.Tensor]]:
        """Return the function that computes gradients from these gradients of the outputs: `twice` or `of`."""
        return partial(self.twice, again=torch.is_grad_enabled()) if by_autograd(grads) else self.of

    def of(
        self,
        known: Known,
        grads: Mapping[str, torch.Tensor | None],
        parameters: Mapping[str, Number],
        needed: frozenset[str],
    ) -> dict[str, torch.Tensor]:
        """Return the gradients of the needed inputs, computed from the forward's data and its outputs' gradients."""
        return self.by_steps(known, grads, parameters, needed, lambda step: step.run)

    def twice(
        self,
        known: Known,
        grads: Mapping[str, torch.Tensor | None],
        parameters: Mapping[str, Number],
        needed: frozenset[str],
        *,
        again: bool = True,
    ) -> dict[str, torch.Tensor]:
        """Return gradients that can be differentiated `again` or of which there is a batch, which PyTorch computes.

        It computes them from the inputs if they were kept, and by its own backward functions otherwise.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel

        inputs = [spec.name for spec in self.op.inputs]
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # the other backends cannot be differentiated twice
            if not known.kept.keys() >= set(inputs):
                with torch.set_grad_enabled(again):
                    return self.by_steps(known, grads, parameters, needed, lambda step: _as_called(step.op))
            # All contiguous: PyTorch's batch norm on the CPU is wrong if a gradient has another memory layout than the
            # output.
            outputs = _as_called(self.op)(tuple(known.kept[name].contiguous() for name in inputs), parameters)
            pairs = [(out.contiguous(), grads[spec.name]) for spec, out in zip(self.op.outputs, outputs, strict=True)]
            given = [
                (out, grad.to(out.dtype).contiguous()) for out, grad in pairs if grad is not None and out.requires_grad
            ]
            outs, of_outs = zip(*given, strict=True)
            wanted = [name for name in inputs if name in needed]
            found = torch.autograd.grad(
                outs, [known.kept[name] for name in wanted], of_outs, create_graph=again, allow_unused=True
            )
        return {name: one for name, one in zip(wanted, found, strict=True) if one is not None}

    def by_steps(
        self,
        known: Known,
        grads: Mapping[str, torch.Tensor | None],
        parameters: Mapping[str, Number],
        needed: frozenset[str],
        run: Callable[[Step], Callable[[Tensors, Mapping[str, Number]], Tensors]],
    ) -> dict[str, torch.Tensor]:
        sizes = known.sizes(self.op)
        if self.is_rectified and "out" in grads and grads["out"] is not None:
            grads = {**grads, "out": before_relu(grads["out"], known.kept["out"])}
        found: dict[str, torch.Tensor] = {}
        for step in self.steps:
            if step.gives & needed:
                given = tuple(known.given(name, grads) for name in step.reads)
                values = {name: parameters.get(name, sizes.get(name, 0)) for name in step.op.parameters}
                outputs = run(step)(given, values)
                found.update({name: outputs[place] for name, place in step.places.items()})
        return {name: gradient for name, gradient in found.items() if name in needed}


def _as_called(op: Op) -> Callable[[Tensors, Mapping[str, Number]], Tensors]:
    """Return the function that a user of PyTorch would call, which can be differentiated."""

    def run(inputs: Tensors, parameters: Mapping[str, Number]) -> Tensors:
        outputs = (op.baseline or op.reference)(*inputs, **parameters)
        return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)

    return run


_is_alias: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]  # noqa: SLF001 - no public way


def is_batch(gradient: torch.Tensor | None) -> bool:
    """Return whether this is a batch of gradients, as torch.autograd.grad makes it with is_grads_batched.

    PyTorch can batch its own backward, but not the formula of every backward op: some change tensors in place.
    """
    return gradient is not None and torch._C._functorch.is_legacy_batchedtensor(gradient)  # noqa: SLF001 - there is no public way to ask


def by_autograd(grads: Iterable[torch.Tensor | None]) -> bool:
    """Return whether autograd must compute a backward: its result may be differentiated again, or is a batch."""
    return torch.is_grad_enabled() or any(map(is_batch, grads))


def apart(gradients: Sequence[Any], *, are_viewed: bool = False) -> tuple[Any, ...]:
    """Return gradients of which no two share memory, except for one that occurs twice, unless they `are_viewed` later.

    Autograd would take two views of one gradient for the gradients of two leaves, and add to both at once; it copies an
    object that it gets twice.
    """
    found: list[Any] = []
    for one in gradients:
        others = [] if one is None or is_batch(one) else [other for other in found if other is not None]
        is_view = any((other is not one or are_viewed) and _is_alias(one, other) for other in others)
        found.append(one.clone() if is_view else one)
    return tuple(found)


def keep(ctx: Any, gradients: Gradients, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Save the tensors that a function's backward needs, and mark the outputs that have no gradient."""
    tensors = dict(zip(gradients.names, (*inputs, *outputs), strict=True))
    ctx.kinds = {name: (tuple(x.shape), x.dtype) for name, x in tensors.items()}
    ctx.save_for_backward(*[tensors[name] for name in gradients.kept])
    pairs, learned = zip(gradients.op.outputs, outputs, strict=True), gradients.learned
    ctx.mark_non_differentiable(*[out for spec, out in pairs if spec.name not in learned])


def left(ctx: Any, gradients: Gradients) -> Known:
    """Return the tensors that `keep` saved."""
    return Known(dict(zip(gradients.kept, ctx.saved_tensors, strict=True)), ctx.kinds)


class Differentiable(torch.autograd.Function):
    """A forward that runs a kernel, with the backward of `Gradients`."""

    @staticmethod
    def forward(
        ctx: Any,
        gradients: Gradients,
        launch: Callable[[Tensors], Tensors],
        parameters: Mapping[str, Number],
        *inputs: torch.Tensor,
    ) -> Tensors:
        outputs = launch(inputs)
        ctx.gradients, ctx.parameters = gradients, dict(parameters)
        keep(ctx, gradients, inputs, outputs)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        gradients: Gradients = ctx.gradients
        op = gradients.op
        if all(grad is None for grad in grads):
            return (None,) * (3 + len(op.inputs))
        of_outputs = {spec.name: grad for spec, grad in zip(op.outputs, grads, strict=True)}
        needs = ctx.needs_input_grad[3:]
        wanted = frozenset(spec.name for spec, need in zip(op.inputs, needs, strict=True) if need)
        found = gradients.computing(grads)(left(ctx, gradients), of_outputs, ctx.parameters, wanted)
        return (None, None, None, *apart([found.get(spec.name) for spec in op.inputs], are_viewed=True))
