"""Gradients of an op by its backward ops, which are kernels where they win and PyTorch's elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from reference_ops.op import GRADIENT, Number, Op

Tensors = tuple[torch.Tensor, ...]
# Backward ops whose formula divides by a forward's input or output; autograd's own takes care of zeros.
DIVIDE = ("cumprod_backward", "l2_norm_backward")


@dataclass(frozen=True)
class Step:
    """A backward op, and how it runs: by a kernel or by PyTorch."""

    op: Op
    run: Callable[[Tensors, Mapping[str, Number]], Tensors]
    pytorch: Callable[[Tensors, Mapping[str, Number]], Tensors]

    @property
    def gives(self) -> frozenset[str]:
        """The names of the forward's inputs whose gradients it returns."""
        return frozenset(spec.name.removeprefix(GRADIENT) for spec in self.op.outputs)

    def wants(self, outputs: frozenset[str]) -> frozenset[str]:
        """Return the forward's outputs whose gradients it takes."""
        wanted = {spec.name.removeprefix(GRADIENT) for spec in self.op.inputs if spec.name.startswith(GRADIENT)}
        return outputs & wanted


@dataclass(frozen=True)
class Gradients:
    """All that autograd needs of an op: the steps of its backward."""

    op: Op
    steps: tuple[Step, ...]

    def missing(self, names: frozenset[str]) -> frozenset[str]:
        """Return the inputs to which no step gives a gradient."""
        return names - frozenset().union(*(step.gives for step in self.steps))

    @property
    def learned(self) -> frozenset[str]:
        """The outputs through which gradients flow. Statistics for the backward are not among them."""
        outputs = frozenset(spec.name for spec in self.op.outputs)
        return frozenset().union(*(step.wants(outputs) for step in self.steps))

    def of(
        self,
        saved: Mapping[str, torch.Tensor],
        grads: Mapping[str, torch.Tensor | None],
        parameters: Mapping[str, Number],
        needed: frozenset[str],
    ) -> dict[str, torch.Tensor]:
        """Return the gradients to the needed inputs from what the forward read and wrote and its outputs' gradients."""
        sizes = self._sizes(saved)
        found: dict[str, torch.Tensor] = {}
        for step in self.steps:
            if step.gives & needed:
                given = tuple(_given(spec.name, saved, grads) for spec in step.op.inputs)
                values = {name: parameters.get(name, sizes.get(name, 0)) for name in step.op.parameters}
                names = (spec.name.removeprefix(GRADIENT) for spec in step.op.outputs)
                found.update(zip(names, step.run(given, values), strict=True))
        return {name: gradient for name, gradient in found.items() if name in needed}

    def _sizes(self, saved: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Return the size of every dim of the forward's inputs and outputs."""
        sizes: dict[str, int] = {}
        for spec in (*self.op.inputs, *self.op.outputs):
            if spec.name in saved:
                sizes.update(zip(spec.dims, saved[spec.name].shape, strict=True))
        return sizes

    def twice(
        self,
        inputs: Tensors,
        grads: Sequence[torch.Tensor | None],
        parameters: Mapping[str, Number],
        needed: Sequence[bool],
    ) -> tuple[torch.Tensor | None, ...]:
        """Return gradients that can be differentiated again, which PyTorch computes from the inputs."""
        with torch.enable_grad():
            outputs = self.op.reference(*inputs, **parameters)
            outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
            pairs = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
            pairs = [(out, grad.to(out.dtype)) for out, grad in pairs if out.requires_grad]
            wanted = [x for x, need in zip(inputs, needed, strict=True) if need]
            outs, given = zip(*pairs, strict=True)
            found = iter(torch.autograd.grad(outs, wanted, given, create_graph=True, allow_unused=True))
        return tuple(next(found) if need else None for need in needed)


def _given(name: str, saved: Mapping[str, torch.Tensor], grads: Mapping[str, torch.Tensor | None]) -> torch.Tensor:
    """Return an input of a backward op; the gradient of an output that nothing depends on is zero."""
    if name in saved:
        return saved[name]
    of = name.removeprefix(GRADIENT)
    gradient = grads[of]
    return torch.zeros_like(saved[of]) if gradient is None else gradient


class Differentiable(torch.autograd.Function):
    """A forward by a kernel with the backward of `Gradients`."""

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
        ctx.save_for_backward(*inputs, *outputs)
        learned = gradients.learned
        fixed = [out for spec, out in zip(gradients.op.outputs, outputs, strict=True) if spec.name not in learned]
        ctx.mark_non_differentiable(*fixed)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> Any:
        gradients: Gradients = ctx.gradients
        op, needed = gradients.op, ctx.needs_input_grad[3:]
        inputs = ctx.saved_tensors[: len(op.inputs)]
        if torch.is_grad_enabled():
            return (None, None, None, *gradients.twice(inputs, grads, ctx.parameters, needed))
        names = [spec.name for spec in (*op.inputs, *op.outputs)]
        saved = dict(zip(names, ctx.saved_tensors, strict=True))
        of_outputs = {spec.name: grad for spec, grad in zip(op.outputs, grads, strict=True)}
        wanted = frozenset(spec.name for spec, need in zip(op.inputs, needed, strict=True) if need)
        if all(grad is None for grad in of_outputs.values()):
            return (None,) * (3 + len(op.inputs))
        found = gradients.of(saved, of_outputs, ctx.parameters, wanted)
        return (None, None, None, *(found.get(spec.name) for spec in op.inputs))
