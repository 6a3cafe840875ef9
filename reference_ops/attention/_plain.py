"""What the attention ops share: attention and its gradients in plain torch, and what inputs they are drawn from."""

import functools
import math
from collections.abc import Callable

import torch
from torch.nn import functional

from reference_ops.op import OF_PRODUCTS, Tensors, Tolerance
from reference_ops.precision import wide

aten = torch.ops.aten
MATH, FLASH, EFFICIENT, CUDNN = range(4)  # what scaled_dot_product_attention chooses among
EVERYTHING = 1 << 30  # a window that hides nothing
# Products of numbers this large can sum to more than float32's exponential stands. Of larger ones nothing but rounding
# decides which key wins.
FARTHEST = 4.0
# So that each query attends to a few keys. Else its result is the smaller the more it sees, and a wrong one among
# thousands would hide behind the rounding of the first, which are the largest.
SHARPER = 3.0
MODERATE = 2.0  # gradients of these do not overflow, nor are they differences of much larger numbers
# With equal numbers throughout, there is one log-sum-exp for all queries, and fewer bits may happen to hold it. Where
# one value is thousands of times the others, the luck in rounding its weight to 16 bits decides about the whole result.
VALUES = tuple(name for name in OF_PRODUCTS if name not in {"constant", "heavy_tail"})
# The default factor: PyTorch multiplies weights of the dtype too, and sums in float32. A thread may add up a score on
# its own, and where a query attends to few keys, the error of one is that of all its results: a matter of luck.
TOLERANCE = Tolerance(in_turn="dim")
# With values that are alike, there is no gradient but rounding; of large ones one key has all the weight; very small
# ones are lost where PyTorch rounds the matrices of all pairs to 16 bits.
VARIED = ("heavy_tail",)


def attended(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, window: int = EVERYTHING
) -> tuple[torch.Tensor, torch.Tensor]:
    """In float32 at least; only the weights are rounded to the dtype, as tensor cores take them.

    Products of 16 bits would not do: PyTorch lets cuBLAS round partial sums.
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
    """From `saved`, that is out, lse and grad_out; the two matrices of all pairs are rounded to the dtype."""
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
    """Query i sees keys i - window + 1 to i."""
    back = torch.arange(queries, device=device).unsqueeze(1) - torch.arange(keys, device=device)
    return (back >= 0) & (back < window)


def repeated(tensor: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Each head of the keys once for every head of the queries that shares it."""
    return tensor.repeat_interleave(q.shape[1] // tensor.shape[1], 1) if q.shape[1] != tensor.shape[1] else tensor


def summed(gradient: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The inverse of `repeated` for gradients."""
    group = gradient.shape[1] // like.shape[1]
    return gradient.unflatten(1, (-1, group)).sum(2) if group > 1 else gradient


def of_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What a model calls in training; the log-sum-exp is what autograd then keeps for the backward."""
    if q.dtype == torch.float32:  # heads are shared by the kernels for 16 bits alone
        k, v = repeated(k, q), repeated(v, q)
    with torch.enable_grad():
        query, key, value = (tensor.detach().requires_grad_() for tensor in (q, k, v))
        shared = q.shape[1] != k.shape[1]
        out = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=shared)
    for name in ("_saved_logsumexp", "_saved_log_sumexp"):
        lse = getattr(out.grad_fn, name, None)
        if lse is not None:
            return out.detach().contiguous(), lse.flatten(2)[..., : q.shape[2]].contiguous()
    return attended(q, k, v, causal)


def gradients_of_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    causal: bool,
) -> tuple[torch.Tensor, ...]:
    """The backward of whatever scaled_dot_product_attention chooses here, without its forward."""
    if not q.is_cuda:
        return gradients(q, k, v, saved, causal)
    if k.shape[1] != q.shape[1] and q.dtype == torch.float32:
        grad_q, grad_k, grad_v = gradients_of_torch(q, repeated(k, q), repeated(v, q), saved, causal)
        return grad_q, summed(grad_k, k), summed(grad_v, v)
    out, lse, grad_out = saved
    given = (grad_out, q, k, v)
    shared = k.shape[1] != q.shape[1]
    chosen = torch._fused_sdp_choice(q, k, v, is_causal=causal, enable_gqa=shared)  # noqa: SLF001 - nothing public tells
    nothing = torch.zeros((), dtype=torch.int64, device=q.device)  # the state of a dropout that there is not
    sizes = (None, None, q.shape[2], k.shape[2])
    if chosen == CUDNN:
        backward = aten._scaled_dot_product_cudnn_attention_backward  # noqa: SLF001 - autograd calls it
        kept = lse.unsqueeze(-1) if cudnn_adds_a_dim() else lse
        return tuple(backward(*given, out, kept, nothing, nothing, None, *sizes, 0.0, causal))
    if chosen == FLASH:
        backward = aten._scaled_dot_product_flash_attention_backward  # noqa: SLF001 - autograd calls it
        return tuple(backward(*given, out, lse, *sizes, 0.0, causal, nothing, nothing))
    if chosen == EFFICIENT:
        padded = functional.pad(lse, (0, -lse.shape[-1] % 32), value=torch.inf)  # as its forward leaves it
        backward = aten._scaled_dot_product_efficient_attention_backward  # noqa: SLF001 - autograd calls it
        wanted = [True, True, True, False]
        return tuple(backward(*given, None, out, padded, nothing, nothing, 0.0, wanted, causal)[:3])
    return gradients(q, k, v, saved, causal)


@functools.cache
def cudnn_adds_a_dim() -> bool:
    """Whether the log-sum-exp of cuDNN's forward, and so of its backward, has one dim more: a matter of the version.

    With one too few the backward reads past the shape: nothing checks.
    """
    few = torch.zeros((1, 1, 64, 64), dtype=torch.bfloat16, device="cuda")
    lse = aten._scaled_dot_product_cudnn_attention(few, few, few, None, True)[1]  # noqa: SLF001 - as autograd does
    return bool(lse.ndim > few.ndim - 1)


def draw_scores(inputs: Tensors, _: torch.Generator) -> None:
    inputs["q"].mul_(SHARPER)
    for name in ("q", "k"):
        inputs[name].clamp_(-FARTHEST, FARTHEST)


def lean_to_own_key(q: torch.Tensor, k: torch.Tensor) -> None:
    """Each query gives about half of its weight to the key at its own place, however many it sees.

    Else gradients are the smaller the later their place, and a wrong one would hide behind the rounding of the first.
    """
    score = math.log(k.shape[2]) + 0.5  # the others' exponentials add up to about as much
    keys, root = wide(repeated(k, q)), q.shape[-1] ** 0.5
    lengths = keys.square().sum(-1, keepdim=True).clamp_(min=q.shape[-1] / 4)
    q.copy_(wide(q) / 2 + keys * (score * root / lengths))


def saved_for(causal: bool) -> Callable[[Tensors, torch.Generator], None]:
    """Moderate numbers, that no gradient overflows, and what a forward on them returns."""

    def draw(inputs: Tensors, _: torch.Generator) -> None:
        for name in ("q", "k", "v", "grad_out"):
            inputs[name].clamp_(-MODERATE, MODERATE)
        if causal:
            lean_to_own_key(inputs["q"], inputs["k"])
        for q, k, v, out, lse in zip(*(inputs[name] for name in ("q", "k", "v", "out", "lse")), strict=True):
            found = attended(q[None], k[None], v[None], causal)  # the pairs of the whole batch at once are gigabytes
            out.copy_(found[0][0])
            lse.copy_(found[1][0])

    return draw
