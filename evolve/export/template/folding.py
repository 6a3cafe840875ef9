"""Folding: tensors of any rank become an op's tensors, whose first dim holds all leading dims; results are unfolded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from evolve.export.template.calls import ALIGNMENT, NoKernelError
from reference_ops.op import Op, TensorSpec, Workload
from reference_ops.precision import TORCH_DTYPES

Shape = tuple[int, ...]
LEADING = (2, 3)  # leading dims with which an op is tried out
MOST_RANK = 2  # tensors of more dims, such as images, are never folded


@dataclass(frozen=True)
class Folds:
    """The shapes of an op's inputs for one call, and the leading dims that are folded into one."""

    inputs: tuple[Shape, ...]
    dim: str
    leading: Shape | None  # None if the inputs have the op's own ranks

    def unfolded(self, spec: TensorSpec, shape: Shape) -> Shape:
        """Return the shape in which the caller gets an output."""
        if self.leading is None or spec.dims[:1] != (self.dim,):
            return shape
        return (*self.leading, *shape[1:])


def folds(op: Op, shapes: Sequence[Shape]) -> Folds:
    """Return how inputs of these shapes are folded. Raise a NoKernelError if they do not fit the op."""
    dim = _folded_dim(op)
    inputs: list[Shape] = []
    leading: set[Shape] = set()
    for spec, shape in zip(op.inputs, shapes, strict=True):
        extra = len(shape) - len(spec.dims)
        if spec.dims[:1] == (dim,) and len(spec.dims) <= MOST_RANK and extra >= -1:
            leading.add(tuple(shape[: extra + 1]))
            inputs.append(folded(shape, len(spec.dims)))
        elif extra:
            raise NoKernelError(f"`{spec.name}` has {len(shape)} dims, the kernels accept {len(spec.dims)}")
        else:
            inputs.append(tuple(shape))
    if len(leading) > 1:
        raise NoKernelError(f"the leading dims differ: {', '.join(map(str, sorted(leading)))}")
    only = next(iter(leading), None)
    return Folds(tuple(inputs), dim, None if only is None or len(only) == 1 else only)


def folded(shape: Shape, rank: int) -> Shape:
    """Return a shape with this number of dims, the first of which holds all leading dims."""
    leading = len(shape) - rank + 1
    return (math.prod(shape[:leading]), *shape[leading:]) if rank else ()


def as_kernel_reads(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return the tensor in this shape, contiguous and aligned. It is copied only if necessary."""
    if x.shape != shape:
        x = x.reshape(shape)
    # an imaginary part may be marked as negated; no kernel reads complex tensors
    if not x.is_contiguous() or x.is_neg():
        x = x.contiguous().resolve_neg()
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def takes_more_dims(op: Op) -> bool:
    """Return whether PyTorch treats leading dims as rows, as found by a small call on the CPU."""
    dim, small = _folded_dim(op), op.emulated[0]
    later = {name for spec in (*op.inputs, *op.outputs) for name in spec.dims[1:]}
    if not op.by_rows or dim not in dict(small.dims) or dim in later:
        return False
    rows = replace(small, dims=tuple((name, math.prod(LEADING) if name == dim else size) for name, size in small.dims))
    if not op.is_valid(rows):
        return False
    whole = [_drawn(op.shape(spec, rows), spec.dtype or "float32") for spec in op.inputs]
    unfolded = [x.view(_split(op, spec, rows)) for spec, x in zip(op.inputs, whole, strict=True)]
    try:
        if folds(op, [x.shape for x in unfolded]).leading != LEADING:
            return False
        expected, found = (_outputs(op, given, rows) for given in (whole, unfolded))
        pairs = zip(op.outputs, expected, found, strict=True)
        return all(_alike(out.view(_split(op, spec, rows)), other) for spec, out, other in pairs)
    except Exception:  # noqa: BLE001 - whatever PyTorch raises when it refuses more dims
        return False


def _folded_dim(op: Op) -> str:
    return (*op.outputs[0].dims[:1], *op.inputs[0].dims[:1])[0]


def _split(op: Op, spec: TensorSpec, rows: Workload) -> Shape:
    """Return the shape of a tensor after the op's folded dim is split in two."""
    shape = op.shape(spec, rows)
    return (*LEADING, *shape[1:]) if spec.dims[:1] == (_folded_dim(op),) else shape


def _drawn(shape: Shape, dtype: str) -> torch.Tensor:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(TORCH_DTYPES[dtype])
    return x if x.is_floating_point() or x.dtype == torch.bool else torch.zeros_like(x)


def _outputs(op: Op, inputs: list[torch.Tensor], rows: Workload) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        outputs = op.reference(*inputs, **dict(rows.parameters))
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _alike(out: torch.Tensor, other: torch.Tensor) -> bool:
    return out.shape == other.shape and torch.allclose(out.float(), other.float(), rtol=1e-4, atol=1e-5, equal_nan=True)
