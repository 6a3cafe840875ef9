"""Folding: tensors of any rank become an op's tensors, whose first dim holds all leading dims; results are unfolded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from evolve.export.template.calls import ALIGNMENT, NoKernelError
from reference_ops.op import Op, TensorSpec

Shape = tuple[int, ...]
MOST_RANK = 2  # tensors of more dims, such as images, are never folded


@dataclass(frozen=True)
class Folds:
    """The shapes of an op's inputs for one call, and the leading dims that its folded dim stands for."""

    inputs: tuple[Shape, ...]
    dim: str
    leading: Shape | None  # None: the inputs have the op's own ranks

    def unfolded(self, spec: TensorSpec, shape: Shape) -> Shape:
        """Return the shape of an output as the caller gets it."""
        if self.leading is None or spec.dims[:1] != (self.dim,):
            return shape
        return (*self.leading, *shape[1:])


def folds(op: Op, shapes: Sequence[Shape]) -> Folds:
    """Return how inputs of these shapes are folded. Raise a NoKernelError if they do not fit the op."""
    dim = (*op.outputs[0].dims[:1], *op.inputs[0].dims[:1])[0]
    folded: list[Shape] = []
    leading: set[Shape] = set()
    for spec, shape in zip(op.inputs, shapes, strict=True):
        extra = len(shape) - len(spec.dims)
        if spec.dims[:1] == (dim,) and len(spec.dims) <= MOST_RANK and extra >= -1:
            leading.add(tuple(shape[: extra + 1]))
            folded.append((math.prod(shape[: extra + 1]), *shape[extra + 1 :]))
        elif extra:
            raise NoKernelError(f"`{spec.name}` has {len(shape)} dims, the kernels take {len(spec.dims)}")
        else:
            folded.append(tuple(shape))
    if len(leading) > 1:
        raise NoKernelError(f"the leading dims differ: {', '.join(map(str, sorted(leading)))}")
    only = next(iter(leading), None)
    return Folds(tuple(folded), dim, None if only is None or len(only) == 1 else only)


def as_kernel_reads(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return the tensor in this shape, contiguous and aligned, which copies it only if it is not."""
    if tuple(x.shape) != shape:
        x = x.reshape(shape)
    if not x.is_contiguous() or x.is_neg() or x.is_conj():
        x = x.contiguous().resolve_neg().resolve_conj()
    return x.clone() if x.data_ptr() % ALIGNMENT else x
