"""Shared code of the attention ops: attention and its gradients in plain torch, and the drawing of inputs."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.arrangements import nan_in, then
from reference_ops.op import NOT_FINITE, OF_PRODUCTS, Arrange, Tensors, Tolerance
from reference_ops.precision import wide
from reference_ops.scores import of_keys_ahead, of_scores

aten = torch.ops.aten
MATH, FLASH, EFFICIENT, CUDNN = range(4)  # the backends of scaled_dot_product_attention
EVERYTHING = 1 << 30  # a window that hides no key
# Inputs are clamped to this. Sums of their products can already exceed the range of float32's exponential. With larger
# numbers, rounding alone would decide which key has all the weight.
FARTHEST = 4.0
# This factor makes each query attend to a few keys. Without it, results would shrink with the number of keys, and a
# wrong result among thousands would be smaller than the rounding of the first results, which are the largest.
SHARPER = 3.0
MODERATE = 2.0  # gradients of such numbers neither overflow nor are differences of much larger numbers
# With constant inputs all queries have the same log-sum-exp, and fewer bits may happen to represent it. If one value is
# thousands of times larger than the others, the rounding of its weight to 16 bits decides the whole result.
VALUES = tuple(name for name in OF_PRODUCTS if name not in {"constant", "heavy_tail"})
# The default factor suffices: PyTorch also multiplies weights of the dtype and sums in float32. One thread may sum a
# score, and if a query attends to few keys, the error of that score affects all its results.
TOLERANCE = Tolerance(in_turn="dim", products="dim")
# With equal values, the gradient is only rounding. With large values, one key has all the weight. Very small values are
# lost where PyTorch rounds the matrices of all pairs to 16 bits.
VARIED = ("heavy_tail",)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int = EVERYTHING
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute in float32 or wider; only the weights are rounded to the dtype, as for tensor cores.

    16-bit products are too inexact, because cuBLAS may round partial sums in PyTorch.
    """
    keys, values = (repeated(tensor, q) for tensor in (k, v))
    scores = scores_of(q, keys, causal, window)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp_().to(v.dtype)
    return (wide(weights) @ wide(values)).to(v.dtype), lse


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    causal: bool,
    window: int = EVERYTHING,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute gradients from `saved`: out, lse and grad_out. The two matrices of all pairs are rounded to the dtype."""
    out, lse, grad_out = saved
    keys, values = (repeated(tensor, q) for tensor in (k, v))
    weights = scores_of(q, keys, causal, window).sub_(lse.unsqueeze(-1)).exp_()
    grad_v = wide(weights.to(v.dtype)).mT @ wide(grad_out)
    grad_weights = wide(grad_out) @ wide(values).mT
    sums = (wide(out) * wide(grad_out)).sum(-1, keepdim=True)
    grad_scores = weights.mul_(grad_weights.sub_(sums)).mul_(q.shape[-1] ** -0.5)
    grad_scores = wide(grad_scores.to(q.dtype))
    grad_q, grad_k = grad_scores @ wide(keys), grad_scores.mT @ wide(q)
    return grad_q.to(q.dtype), summed(grad_k, k).to(k.dtype), summed(grad_v, v).to(v.dtype)


def scores_of(q: torch.Tensor, keys: torch.Tensor, causal: bool, window: int) -> torch.Tensor:
    scores = (wide(q) @ wide(keys).mT).mul_(q.shape[-1] ** -0.5)
    hidden = ~visible(scores.shape[-2], scores.shape[-1], window, q.device)
    return scores.masked_fill_(hidden, -torch.inf) if causal else scores


def visible(queries: int, keys: int, window: int, device: torch.device) -> torch.Tensor:
    """Return the mask of visible keys: query i attends to keys i - window + 1 to i."""
    back = torch.arange(queries, device=device).unsqueeze(1) - torch.arange(keys, device=device)
    return (back >= 0) & (back < window)


def repeated(tensor: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Repeat each head of the keys for every head of the queries that shares it."""
    return tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) if q.shape[1] != tensor.shape[1] else tensor


def summed(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum gradients over repeated heads: the backward of `repeated`."""
    group = gradient.shape[1] // like.shape[1]
    return gradient.unflatten(1, (-1, group)).sum(2) if group > 1 else gradient


def of_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Call PyTorch's attention as in training, which also returns the log-sum-exp that the backward needs.

    Gradients flow to inputs that require them, through `out` alone, as in PyTorch.
    """
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    if q.dtype == torch.float32:  # only the 16-bit kernels support shared heads
        k, v = repeated(k, q), repeated(v, q)
    with torch.enable_grad():
        query, key, value = (q, k, v) if learns else (tensor.detach().requires_grad_() for tensor in (q, k, v))
        shared = q.shape[1] != k.shape[1]
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=shared)
    for name in ("_saved_logsumexp", "_saved_log_sumexp"):
        lse = getattr(out.grad_fn, name, None)
        if lse is not None:
            out = out if learns else out.detach()
            return out.contiguous(), lse.flatten(2)[..., : q.shape[2]].contiguous()
    return attended(q, k, v, causal)


def gradients_of_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    causal: bool,
) -> tuple[torch.Tensor, ...]:
    """Call the backward of the backend that scaled_dot_product_attention chooses, without its forward."""
    if not q.is_cuda:
        return gradients(q, k, v, saved, causal)
    if k.shape[1] != q.shape[1] and q.dtype == torch.float32:
        grad_q, grad_k, grad_v = gradients_of_torch(q, repeated(k, q), repeated(v, q), saved, causal)
        return grad_q, summed(grad_k, k), summed(grad_v, v)
    out, lse, grad_out = saved
    given = (grad_out, q, k, v)
    shared = k.shape[1] != q.shape[1]
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=causal, enable_gqa=shared)  # noqa: SLF001 - there is no public function
    nothing = torch.zeros((), dtype=torch.int64, device=q.device)  # the state of an unused dropout
    sizes = (None, None, q.shape[2], k.shape[2])
    if chosen == CUDNN:
        backward = aten._scaled_dot_product_cudnn_attention_backward  # noqa: SLF001 - autograd calls it
        kept = lse.unsqueeze(-1) if cudnn_adds_a_dim() else lse
        return tuple(backward(*given, out, kept, nothing, nothing, None, *sizes, 0.0, causal))
    if chosen == FLASH:
        backward = aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001 - autograd calls it
        return tuple(backward(*given, out, lse, *sizes, 0.0, causal, nothing, nothing))
    if chosen == EFFICIENT:
        padded = functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)  # padded as by the forward
        backward = aten._scaled_dot_product_efficient_attention_backward  # noqa: SLF001 - autograd calls it
        wanted = [True, True, True, False]
        return tuple(backward(*given, None, out, padded, nothing, nothing, 0.0, wanted, causal)[:3])
    return gradients(q, k, v, saved, causal)


@functools.cache
def cudnn_adds_a_dim() -> bool:
    """Return whether cuDNN's log-sum-exp has one more dim, which depends on the version.

    If a dim is missing, the backward reads out of bounds without a check.
    """
    few = torch.zeros((1, 1, 64, 64), dtype=torch.bfloat16, device="cuda")
    lse = aten._scaled_dot_product_cudnn_attention(few, few, few, None, True)[1]  # noqa: SLF001 - autograd calls it
    return bool(lse.ndim > few.ndim - 1)


def nan_in_the_first_query(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
    inputs["q"][..., 0, 0] = math.nan


def draw_scores(inputs: Tensors, _: torch.Generator) -> None:
    inputs["q"].mul_(SHARPER)
    for name in ("q", "k"):
        inputs[name].clamp_(-FARTHEST, FARTHEST)


# Only the outputs of these queries become NaN. Where attention is causal, the first query sees a single key.
OF_NAN = {**nan_in("q"), "NaN_in_the_first_query": nan_in_the_first_query}
OPPOSED = of_scores("q", "k")
OF_SCORES = {**OPPOSED, **of_keys_ahead("q", "k", "v")}
ARRANGED = {**OF_NAN, **OF_SCORES}
# A weight of zero times NaN is NaN.
OPEN = dict.fromkeys(NOT_FINITE, "whether a hidden key is multiplied by its weight of zero is left open")


def lean_to_own_key(q: torch.Tensor, k: torch.Tensor) -> None:
    """Give about half of each query's weight to the key at its own position, for any number of visible keys.

    Without this, gradients would shrink with their position, and a wrong gradient would be smaller than the rounding of
    the first.
    """
    score = math.log(k.shape[2]) + 0.5  # the exponentials of the other keys have about the same sum
    keys, root = wide(repeated(k, q)), q.shape[-1] ** 0.5
    lengths = keys.square().sum(-1, keepdim=True).clamp_(min=q.shape[-1] / 4)
    q.copy_(wide(q) / 2 + keys * (score * root / lengths))


def saved_for(causal: bool) -> Callable[[Tensors, torch.Generator], None]:
    """Draw moderate numbers, whose gradients do not overflow, and the results of a forward on them."""

    def draw(inputs: Tensors, _: torch.Generator) -> None:
        for name in ("q", "k", "v", "grad_out"):
            inputs[name].clamp_(-MODERATE, MODERATE)
        if causal:
            lean_to_own_key(inputs["q"], inputs["k"])
        save(inputs, causal)

    return draw


def save(inputs: Tensors, causal: bool) -> None:
    """Compute the results of a forward on these inputs."""
    for q, k, v, out, lse in zip(*(inputs[name] for name in ("q", "k", "v", "out", "lse")), strict=True):
        found = attended(q[None], k[None], v[None], causal)  # the pairs of the whole batch would take gigabytes
        out.copy_(found[0][0])
        lse.copy_(found[1][0])


def moved_scores(causal: bool) -> Mapping[str, Arrange]:
    """Return an arrangement for a backward in which the exponentials of the scores overflow or are zero."""
    moved = "scores_moved"
    return then({moved: OPPOSED[moved]}, lambda inputs: save(inputs, causal))
