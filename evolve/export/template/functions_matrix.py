"""Products of matrices, attention and lookups with PyTorch's signatures."""

import operator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import LOW, NOTHING, Call, Form, Lowered, as_input, copied_bytes, first


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Lowered:
    """The product of the input and the transposed weight."""
    if weight.dim() != 2 or not input.dim():
        return "the weight is not a matrix"
    if bias is not None:
        if bias.dtype != input.dtype or bias.shape != weight.shape[:1] or bias.device != input.device:
            return "the bias does not fit"
        after_bytes = input.numel() // max(1, input.shape[-1]) * weight.shape[0] * input.dtype.itemsize
        return Call("skinny_gemm", (input, weight), {}, lambda outputs: outputs[0] + bias, after_bytes)
    calls = [Call("skinny_gemm", (input, weight), {}, first)]
    # The product with a vector: the weight's rows are the matrix.
    return [Call("gemv", (weight, input), {}, first), *calls] if input.dim() == 1 else calls


def matmul(input: Tensor, other: Tensor) -> Lowered:
    """The product of two matrices, or of two batches of matrices, or of a matrix and a vector."""
    if other.dim() == 1 and input.dim() >= 2:
        return Call("gemv", (input, other), {}, first)
    if other.dim() == 2 and input.dim() >= 2:
        return _by_matrix(input, other)
    if other.dim() > 2 and input.shape[:-2] == other.shape[:-2]:
        return Call("batched_gemm", (input, other) if input.dim() == 3 else (_batch(input), _batch(other)), {},
                    lambda outputs: outputs[0].view(*input.shape[:-1], other.shape[-1]))  # fmt: skip
    return "the batches differ"


def _by_matrix(input: Tensor, other: Tensor) -> Lowered:
    calls = [Call("gemm", (input, other), {}, first)]
    # A transposed weight, as in `x @ weight.T`, has the layout of another op's weight.
    transposed = not other.is_contiguous() and other.mT.is_contiguous()
    return [Call("skinny_gemm", (input, other.mT), {}, first), *calls] if transposed else calls


def _batch(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])


def mm(input: Tensor, mat2: Tensor) -> Lowered:
    """The product of two matrices."""
    return _by_matrix(input, mat2) if input.dim() == 2 == mat2.dim() else "the inputs are not matrices"


def bmm(input: Tensor, mat2: Tensor) -> Lowered:
    """The products of two batches of matrices."""
    if input.dim() != 3 or mat2.dim() != 3:
        return "the inputs are not batches"
    return Call("batched_gemm", (input, mat2), {}, first)


def mv(input: Tensor, vec: Tensor) -> Lowered:
    """The product of a matrix and a vector."""
    return Call("gemv", (input, vec), {}, first) if input.dim() == 2 and vec.dim() == 1 else "there is no matrix"


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Lowered:
    """Softmax of scaled products of queries and keys, times values."""
    if attn_mask is not None or dropout_p:
        return "the kernels accept no mask and have no dropout"
    if query.dim() != 4 or key.dim() != 4 or key.shape[:-1] != value.shape[:-1] or value.shape[-1] != query.shape[-1]:
        return "the kernels accept heads of one size in four dims"
    if scale is not None and scale != query.shape[-1] ** -0.5:
        return "the kernels divide by the square root of the head size"
    views = (query, key, value)
    # Where heads follow their positions in memory, as projections leave them, the result has that layout, too, because
    # models view it.
    by_position = not query.is_contiguous() and query.transpose(1, 2).is_contiguous()
    finish, after_bytes = (lambda o: as_input(o[0], query), copied_bytes(query)) if by_position else (first, 0)
    shared = query.shape[1] != key.shape[1]
    square = query.shape[2] == key.shape[2]
    if shared and not enable_gqa:
        return "the numbers of heads differ"
    if is_causal and square:
        alone = [Call("grouped_query_attention", views, {}, finish, after_bytes)]
        return alone if shared else [Call("causal_attention", views, {}, finish, after_bytes), *alone]
    if is_causal or shared:
        return "no kernel has this mask with these heads"
    return Call("attention", views, {}, finish, after_bytes)


def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Lowered:
    """The rows of the weight at given indices."""
    if max_norm is not None or scale_grad_by_freq or sparse:
        return "the kernels neither renormalise nor scale gradients"
    if input.dtype != torch.int64:
        return "the indices are not int64"
    if padding_idx is not None and not -weight.shape[0] <= padding_idx < weight.shape[0]:
        return "the weight has no row `padding_idx`"
    if padding_idx is None or not (weight.requires_grad and torch.is_grad_enabled()):
        return Call("embedding", (weight, input), {}, first)
    apply: Any = _Padded.apply
    padded, make = apply(weight, padding_idx), partial(_padded, padding=padding_idx)
    # Clearing the row of the gradient takes one more launch.
    return Call("embedding", (padded, input), {}, first, 1, replaced=(weight, padded, make))


def _padded(weight: Tensor, *, padding: int) -> Tensor:
    # This does the work of the class method `apply` without its search for transforms of torch.func, which was done
    # before.
    kind: Any = _Padded
    found: Tensor = super(torch.autograd.Function, kind).apply(weight, padding)
    return found


class _Padded(torch.autograd.Function):
    """A weight of which one row gets no gradient."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, padding: int) -> Tensor:
        ctx.padding = padding
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if gradient.requires_grad:
            gradient = gradient.clone()
        gradient[ctx.padding].zero_()
        return gradient, None


def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Lowered:
    """Rows of `source` added to the rows of the input at given indices."""
    if alpha != 1 or dim not in {0, -input.dim()} or index.dtype != torch.int64 or index.dim() != 1:
        return "the kernels add whole rows by int64 indices"
    if input.dim() == 2:
        return Call("scatter_add", (input, index, source), {}, first)
    if input.dim() < 2 or not input.numel() or not source.numel():
        return "there are no rows"
    views = (input.flatten(1), index, source.flatten(1))
    return Call("scatter_add", views, {}, lambda outputs: outputs[0].view(input.shape))


def _index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Any:
    return torch.index_add(input, dim, index, source, alpha=alpha)


ATTENTION = ("attention", "causal_attention", "grouped_query_attention")
OF_MATMUL = (operator.matmul, Tensor.matmul, Tensor.__matmul__)
OF_ATTENTION = functional.scaled_dot_product_attention


def rope(cos: Tensor, sin: Tensor, x: Tensor, *, half: int | None) -> Lowered:
    """The halves of a tensor, rotated by angles of positions."""
    by_tokens = rotary_embedding(torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), x, half=half)
    if isinstance(by_tokens, str) or x.dim() != 4:
        return by_tokens
    if any(one.shape[-2] != x.shape[2] or one.numel() != x.shape[2] * one.shape[-1] for one in (cos, sin)):
        return by_tokens
    by_heads = Call("rope", (x, *(one.reshape(one.shape[-2:]).float() for one in (cos, sin))), {}, first)
    return [by_heads, by_tokens] if x.is_contiguous() else [by_tokens, by_heads]


def rotary_embedding(cos: Tensor, sin: Tensor, x: Tensor, *, half: int | None) -> Call | str:
    """A tensor times cosines plus its rotated halves times sines; heads share the angles of a token."""
    if x.dim() < 3 or x.shape[-1] % 2 or half not in {None, x.shape[-1] // 2}:
        return "the tensor does not consist of heads with two halves"
    if torch.promote_types(x.dtype, torch.promote_types(cos.dtype, sin.dtype)) != x.dtype:
        return "the result has another dtype than the input"
    if cos.shape != sin.shape or not 2 <= cos.dim() <= x.dim():
        return "the cosines and sines have other shapes"
    tables = [one.reshape((1,) * (x.dim() - one.dim()) + one.shape) for one in (cos, sin)]
    at = tables[0].shape
    heads, tokens = (-3, -2) if at[-3] == 1 and at[-2] == x.shape[-2] else (-2, -3)
    shared = all(one in {1, size} for one, size in zip(at[:-3], x.shape[:-3], strict=True))
    if at[heads] != 1 or at[tokens] != x.shape[tokens] or at[-1] != x.shape[-1] or not shared:
        return "the angles are not one for each token and element of a head"
    of_tokens = x.movedim(heads, -2)
    sizes = (*of_tokens.shape[:-2], x.shape[-1])
    angles = [one.squeeze(heads).float().expand(sizes) for one in tables]
    # bytes copied before the leading dims are folded
    copied = sum(map(copied_bytes, (of_tokens, *angles))) if x.dim() > 3 else 0
    views = (of_tokens.flatten(0, -3), *(one.flatten(0, -2) for one in angles))

    def finish(outputs: tuple[Tensor, ...]) -> Tensor:
        return outputs[0].reshape(of_tokens.shape).movedim(-2, heads)

    return Call("rotary_embedding", views, {}, finish, copied)


FORMS = (
    Form("linear", ("skinny_gemm", "gemv"), linear, functional.linear, LOW),
    Form(
        "matmul",
        ("gemm", "skinny_gemm", "batched_gemm", "gemv"),
        matmul,
        torch.matmul,
        LOW,
        OF_MATMUL,
    ),
    Form("mm", ("gemm", "skinny_gemm"), mm, torch.mm, LOW, (Tensor.mm,)),
    Form("bmm", ("batched_gemm",), bmm, torch.bmm, LOW, (Tensor.bmm,)),
    Form("mv", ("gemv",), mv, torch.mv, LOW, (Tensor.mv,)),
    Form("scaled_dot_product_attention", ATTENTION, scaled_dot_product_attention, OF_ATTENTION, LOW),
    Form("embedding", ("embedding",), embedding, functional.embedding, NOTHING),
    Form("index_add", ("scatter_add",), index_add, _index_add, "", (torch.index_add, Tensor.index_add)),
)
