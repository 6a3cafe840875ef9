"""Functions over one dim with PyTorch's signatures: softmax, sums, scans, extremes, sorting, norms."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import (
    FLOAT32,
    NOTHING,
    Call,
    Form,
    Lowered,
    as_input,
    back,
    contiguous,
    copied_bytes,
    first,
    last,
)

NO_DIM = "no dim is given"
SCALAR = "the input has no dims"
OTHER_DTYPE = "the result has another dtype than the input"
SEVERAL = "several dims are given"
BY_HEADS = 4  # dims of attention scores: batch, heads, queries, keys
WITH_POSITIONS = 5  # bytes of the values only: a position has two to four times as many bytes as a value


def _mapped(op: str, input: Tensor, dim: int | None, dtype: torch.dtype | None) -> Lowered:
    """Return the call of an op whose result has rows of the same size."""
    if dim is None:
        return NO_DIM
    if dtype not in {None, input.dtype}:
        return OTHER_DTYPE
    if not input.dim():
        return SCALAR
    return _along(op, input, dim)


def _along(op: str, x: Tensor, dim: int) -> Call:
    """Return the call of an op on rows along a dim, whose result is contiguous like PyTorch's."""
    moved = _moved_bytes(x, dim, x.numel())
    return Call(op, (last(x, dim),), {}, lambda outputs: contiguous(outputs[0], dim), moved)


def _moved_bytes(x: Tensor, dim: int, count: int) -> int:
    """Return the bytes of a result with `count` elements, if its last dim is moved back to its place in the input."""
    return 0 if dim in {-1, x.dim() - 1} or x.numel() == x.shape[dim] else count * x.dtype.itemsize


def softmax(input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Lowered:
    """Exponentials along a dim, divided by their sum."""
    return _mapped("softmax", input, dim, dtype)


def log_softmax(input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Lowered:
    """The logarithm of softmax along a dim."""
    return _mapped("log_softmax", input, dim, dtype)


def masked_softmax(
    x: Tensor,
    mask: Tensor,
    like: Tensor | None = None,
    *,
    dim: int | None,
    scale: float,
    value: float,
    stays: bool,
    within: torch.dtype | None,
    to: torch.dtype | None,
) -> Lowered:
    """Softmax of `x` times `scale` along a dim, with `value` where the mask is true, or where it is not (`stays`).

    It is computed in the dtype `within`, if any, and the result gets the dtype `to` or that of `like`.
    """
    if value != -math.inf:
        return f"where {value} hides all keys of a row, PyTorch's result is not NaN, but the op's is"
    if (to or (within if like is None else like.dtype) or x.dtype) is not x.dtype:
        return OTHER_DTYPE
    if not 2 <= x.dim() <= BY_HEADS or dim not in {-1, x.dim() - 1}:
        return "the kernels accept scores of two to four dims, along the last one"
    pairs = zip(mask.shape[::-1], x.shape[::-1], strict=False)
    if mask.dtype is not torch.bool or mask.dim() > x.dim() or any(size not in (1, of_x) for size, of_x in pairs):
        return "the mask is not one of booleans for these scores"
    hidden = (mask.logical_not() if stays else mask).expand(x.shape)
    made_bytes = mask.numel() if stays else 0
    if x.dim() < BY_HEADS:  # a single head
        scores, hidden = x.reshape(-1, 1, *x.shape[-2:]), hidden.reshape(-1, *x.shape[-2:])
    elif mask.dim() > 2 and mask.shape[-3] != 1:  # each head has its own mask, so heads are treated like batches
        made_bytes += hidden.numel()
        scores, hidden = x.flatten(0, 1).unsqueeze(1), hidden.flatten(0, 1)
    else:
        scores, hidden = x, hidden[:, 0]
    return Call("masked_softmax", (scores, hidden), {"scale": scale}, lambda o: o[0].view(x.shape), made_bytes)


def cumsum(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Lowered:
    """Sums of all elements up to each one along a dim."""
    return _mapped("cumsum", input, dim, dtype)


def cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Lowered:
    """Products of all elements up to each one along a dim."""
    return _mapped("cumprod", input, dim, dtype)


def _reduced(op: str, input: Tensor, dim: Any, keepdim: bool, dtype: torch.dtype | None = None) -> Lowered:
    """Return the call of an op with one number for each row."""
    if dim is None:
        return NO_DIM
    if dtype not in {None, input.dtype}:
        return OTHER_DTYPE
    if not isinstance(dim, int):
        if len(dim) != 1:
            return SEVERAL
        (dim,) = dim
        if type(dim) is not int:
            return "the dim is not an integer"
    if not input.dim():
        return SCALAR
    finish = (lambda outputs: outputs[0].unsqueeze(dim)) if keepdim else first
    if op == "sum" and dim in {0, -input.dim()} and input.dim() == 2 and input.is_contiguous():
        return [Call("sum_columns", (input,), {}, finish), Call(op, (last(input, dim),), {}, finish)]
    return Call(op, (last(input, dim),), {}, finish)


def sum(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Lowered:
    """The sum along a dim."""
    return _reduced("sum", input, dim, keepdim, dtype)


def mean(
    input: Tensor, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Lowered:
    """The mean along a dim."""
    return _reduced("mean", input, dim, keepdim, dtype)


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Lowered:
    """The position of the largest element along a dim."""
    return _reduced("argmax", input, dim, keepdim)


def vector_norm(
    x: Tensor,
    ord: float = 2,
    dim: int | Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Lowered:
    """The Euclidean norm along a dim (`torch.linalg.vector_norm`)."""
    if ord != 2:
        return "the kernels compute Euclidean norms"
    return _reduced("l2_norm", x, dim, keepdim, dtype)


def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Tensor | None = None) -> Lowered:
    """Vectors along a dim, divided by their Euclidean norm."""
    if p != 2 or eps != 1e-12 or out is not None or not isinstance(dim, int):
        return "the kernels support only p=2 and eps=1e-12, without `out`"
    if not input.dim():
        return SCALAR
    view = last(input, dim)
    return Call("l2_normalize", (view,), {}, lambda o: as_input(back(o[0], dim), input), copied_bytes(view))


def max(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Lowered:
    """The largest elements along a dim, and their positions."""
    if not isinstance(dim, int):
        return NO_DIM
    if not input.dim():
        return SCALAR
    at = dim
    return Call(
        "max", (last(input, at),), {}, lambda o: _pair(torch.return_types.max, *(_kept(x, at, keepdim) for x in o))
    )


def _kept(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return x.unsqueeze(dim) if keepdim else x


def _pair(kind: Any, values: Tensor, indices: Tensor) -> Any:
    return kind((values, indices))


def topk(input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Lowered:
    """The `k` largest elements along a dim in descending order, and their positions."""
    if not largest:
        return "the kernels return the largest elements"
    if not input.dim():
        return SCALAR
    kind = torch.return_types.topk
    moved = _moved_bytes(input, dim, WITH_POSITIONS * k * input.numel() // (input.shape[dim] or 1))
    return Call("topk", (last(input, dim),), {"k": k}, lambda o: _pair(kind, *(contiguous(x, dim) for x in o)), moved)


def sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Lowered:
    """The elements along a dim in ascending order, and their positions."""
    if descending:
        return "the kernels sort in ascending order"
    if not input.dim():
        return SCALAR
    kind = torch.return_types.sort
    view = last(input, dim)
    return Call(
        "sort",
        (view,),
        {},
        lambda o: _pair(kind, *(as_input(back(x, dim), input) for x in o)),
        WITH_POSITIONS * copied_bytes(view),
    )


def gather(input: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Lowered:
    """The elements at given positions along a dim."""
    if sparse_grad or not input.dim() or input.dim() != index.dim():
        return "the gradient is sparse, or the index has another rank"
    x, at = last(input, dim), last(index, dim)
    if x.shape[:-1] != at.shape[:-1]:
        return "the index is smaller than the input in other dims"
    moved = _moved_bytes(input, dim, index.numel())
    return Call("gather", (x, at), {}, lambda outputs: contiguous(outputs[0], dim), moved)


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Lowered:
    """The cosine of the angle between vectors along a dim."""
    if x1.shape != x2.shape or not x1.dim():
        return "the shapes differ"
    return Call("cosine_similarity", (last(x1, dim), last(x2, dim)), {"eps": eps}, first)


def _sort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
    return torch.sort(input, dim=dim, descending=descending, stable=stable)


def _optional(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of torch that is called without a dim if none is given."""

    def called(input: Tensor, dim: Any = None, keepdim: bool = False, **named: Any) -> Any:
        return function(input, **named) if dim is None else function(input, dim, keepdim, **named)

    return called


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(input: Tensor, dim: int | None = None, dtype: torch.dtype | None = None) -> Any:
        return function(input, dim, dtype=dtype)

    return called


PAIR = "tuple[Tensor, Tensor]"
SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)
LOG_SOFTMAX = (functional.log_softmax, torch.log_softmax, Tensor.log_softmax)
FORMS = (
    Form("softmax", ("softmax",), softmax, _softmax(functional.softmax), FLOAT32, SOFTMAX),
    Form("log_softmax", ("log_softmax",), log_softmax, _softmax(functional.log_softmax), FLOAT32, LOG_SOFTMAX),
    Form("cumsum", ("cumsum",), cumsum, torch.cumsum, FLOAT32, (Tensor.cumsum,)),
    Form("cumprod", ("cumprod",), cumprod, torch.cumprod, FLOAT32, (Tensor.cumprod,)),
    Form("sum", ("sum", "sum_columns"), sum, _optional(torch.sum), FLOAT32, (torch.sum, Tensor.sum)),
    Form("mean", ("mean",), mean, _optional(torch.mean), NOTHING, (torch.mean, Tensor.mean)),
    Form("argmax", ("argmax",), argmax, torch.argmax, NOTHING, (Tensor.argmax,)),
    Form("vector_norm", ("l2_norm",), vector_norm, torch.linalg.vector_norm),
    Form("normalize", ("l2_normalize",), normalize, functional.normalize),
    Form("max", ("max",), max, _optional(torch.max), NOTHING, (torch.max, Tensor.max), PAIR),
    Form("topk", ("topk",), topk, torch.topk, NOTHING, (Tensor.topk,), PAIR),
    Form("sort", ("sort",), sort, _sort, NOTHING, (torch.sort, Tensor.sort), PAIR),
    Form("gather", ("gather",), gather, torch.gather, NOTHING, (Tensor.gather,)),
    Form("cosine_similarity", ("cosine_similarity",), cosine_similarity, functional.cosine_similarity, FLOAT32),
)
