"""Scaled dot-product attention over all keys, or over past keys only, and the gradients of both."""

from collections.abc import Mapping

import torch

from reference_ops.attention._plain import (
    ARRANGED,
    OF_SCORES,
    OPEN,
    TOLERANCE,
    VALUES,
    VARIED,
    attended,
    draw_scores,
    gradients,
    gradients_of_torch,
    moved_scores,
    of_torch,
    saved_for,
)
from reference_ops.op import Op, rotated, tensors, workloads

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
FULL = (
    "scores[i, j] = sum over dim of q[i] * k[j], times dim ** -0.5; lse[i] = log(sum over j of exp(scores[i, j])), "
    "float32; out[i] = sum over j of exp(scores[i, j] - lse[i]) * v[j]. Each batch and head is computed separately."
)
CAUSAL = FULL + " Causal: j runs from 0 to i; later keys have no effect."
BACKWARD = (
    "From a forward's q, k, v, out and lse: p = exp(scores - lse), dp = grad_out @ v^T, "
    "ds = p * (dp - sum over dim of out * grad_out) * dim ** -0.5; "
    "grad_q = ds @ k, grad_k = ds^T @ q, grad_v = p^T @ grad_out. "
)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return attended(q, k, v, causal=False)


def attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor
) -> Triple:
    return gradients(q, k, v, (out, lse, grad_out), causal=False)


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return attended(q, k, v, causal=True)


def causal_attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor
) -> Triple:
    return gradients(q, k, v, (out, lse, grad_out), causal=True)


def full_pairs(dims: Mapping[str, int]) -> int:
    return dims["batch"] * dims["heads"] * dims["queries"] * dims["keys"]


def causal_pairs(dims: Mapping[str, int]) -> int:
    return dims["batch"] * dims["heads"] * dims["length"] * (dims["length"] + 1) // 2


def full(batch: int, heads: int, queries: int, keys: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "queries": queries, "keys": keys, "dim": dim}


def causal(batch: int, heads: int, length: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "length": length, "dim": dim}


def fits(known: Mapping[str, int]) -> bool:
    return known["dim"] % 8 == 0 and known["dim"] <= 128  # the sizes that models use


def has_gradients(known: Mapping[str, int]) -> bool:
    """Return whether there is more than one key, so that the weights have gradients."""
    return fits(known) and known.get("keys", known.get("length", 0)) > 1


def declared(queries: str, keys: str) -> dict[str, str]:
    """Return the declarations of the forward's tensors."""
    q, kv = f"batch heads {queries} dim", f"batch heads {keys} dim"
    return {"q": q, "k": kv, "v": kv, "out": q, "lse": f"float32[batch heads {queries}]"}


FULL_TENSORS, CAUSAL_TENSORS = declared("queries", "keys"), declared("length", "length")
GRADIENTS = ("q", "k", "v")
ops = (
    Op(
        name="attention",
        note=FULL,
        reference=attention,
        baseline=lambda q, k, v: of_torch(q, k, v, causal=False),
        baseline_free=("lse",),  # the fused kernels approximate exponentials and logarithms
        inputs=tensors(**{name: FULL_TENSORS[name] for name in GRADIENTS}),
        outputs=tensors(**{name: FULL_TENSORS[name] for name in ("out", "lse")}),
        gpu=(
            *workloads("bfloat16 float32 float16", full(16, 12, 512, 512, 64)),
            *workloads("bfloat16", full(8, 16, 577, 577, 64), full(2, 10, 4096, 77, 64), full(1, 12, 4096, 4096, 128)),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", full(2, 2, 48, 80, 16)),
            *workloads("float32 bfloat16", full(4, 1, 33, 33, 64), full(1, 1, 17, 77, 128)),
        ),
        awkward=rotated(
            "float32 bfloat16 float16",
            full(1, 1, 1, 1, 8), full(2, 3, 31, 33, 8), full(1, 2, 65, 63, 40), full(2, 1, 1, 129, 72),
            full(1, 1, 127, 7, 16),
        ),
        valid=fits,
        arranged=OF_SCORES,
        draw=draw_scores,
        values=VALUES,
        flops=lambda dims: 3 * full_pairs(dims),
        matrix_flops=lambda dims: 4 * full_pairs(dims) * dims["dim"],
        tolerance=TOLERANCE,
        backward=("attention_backward",),
    ),
    Op(
        name="attention_backward",
        note=BACKWARD + "Where " + FULL,
        reference=attention_backward,
        baseline=lambda q, k, v, out, lse, grad_out: gradients_of_torch(q, k, v, (out, lse, grad_out), causal=False),
        inputs=tensors(**FULL_TENSORS, grad_out=FULL_TENSORS["out"]),
        outputs=tensors(**{f"grad_{name}": FULL_TENSORS[name] for name in GRADIENTS}),
        gpu=(
            *workloads("bfloat16 float32 float16", full(16, 12, 512, 512, 64)),
            *workloads("bfloat16", full(8, 16, 577, 577, 64), full(2, 10, 4096, 77, 64), full(1, 8, 2048, 2048, 128)),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", full(2, 2, 48, 80, 16)),
            *workloads("float32 bfloat16", full(4, 1, 33, 33, 64), full(1, 1, 17, 77, 128)),
        ),
        awkward=rotated(
            "float32 bfloat16 float16",
            full(1, 1, 1, 2, 8), full(2, 3, 31, 33, 8), full(1, 2, 65, 63, 40), full(2, 1, 1, 129, 72),
            full(1, 1, 127, 7, 16),
        ),
        valid=has_gradients,
        draw=saved_for(causal=False),
        arranged=moved_scores(causal=False),
        values=VARIED,
        flops=lambda dims: 4 * full_pairs(dims),
        matrix_flops=lambda dims: 10 * full_pairs(dims) * dims["dim"],
        # The default factor suffices: PyTorch also keeps weights and their gradients in the dtype and sums in float32.
    ),
    Op(
        name="causal_attention",
        note=CAUSAL,
        reference=causal_attention,
        baseline=lambda q, k, v: of_torch(q, k, v, causal=True),
        baseline_free=("lse",),
        inputs=tensors(**{name: CAUSAL_TENSORS[name] for name in GRADIENTS}),
        outputs=tensors(**{name: CAUSAL_TENSORS[name] for name in ("out", "lse")}),
        gpu=(
            *workloads("bfloat16 float32 float16", causal(4, 16, 2048, 64)),
            *workloads("bfloat16", causal(1, 24, 4096, 128), causal(32, 12, 1024, 64), causal(3, 20, 1999, 64)),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", causal(2, 2, 80, 16)),
            *workloads("float32 bfloat16", causal(4, 1, 33, 64), causal(1, 1, 70, 128)),
        ),
        awkward=rotated(
            "float32 bfloat16 float16",
            causal(1, 1, 1, 8), causal(2, 3, 31, 8), causal(1, 2, 65, 40), causal(1, 1, 127, 72), causal(3, 1, 2, 16),
        ),
        valid=fits,
        draw=draw_scores,
        arranged=ARRANGED,
        exempt=OPEN,
        values=VALUES,
        flops=lambda dims: 3 * causal_pairs(dims),
        matrix_flops=lambda dims: 4 * causal_pairs(dims) * dims["dim"],
        tolerance=TOLERANCE,
        backward=("causal_attention_backward",),
    ),
    Op(
        name="causal_attention_backward",
        note=BACKWARD + "Where " + CAUSAL,
        reference=causal_attention_backward,
        baseline=lambda q, k, v, out, lse, grad_out: gradients_of_torch(q, k, v, (out, lse, grad_out), causal=True),
        inputs=tensors(**CAUSAL_TENSORS, grad_out=CAUSAL_TENSORS["out"]),
        outputs=tensors(**{f"grad_{name}": CAUSAL_TENSORS[name] for name in GRADIENTS}),
        gpu=(
            *workloads("bfloat16 float32 float16", causal(2, 16, 2048, 64)),
            *workloads("bfloat16", causal(1, 16, 2048, 128), causal(16, 12, 1024, 64), causal(3, 10, 1999, 64)),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", causal(2, 2, 80, 16)),
            *workloads("float32 bfloat16", causal(4, 1, 33, 64), causal(1, 1, 70, 128)),
        ),
        awkward=rotated(
            "float32 bfloat16 float16",
            causal(1, 1, 3, 8), causal(2, 3, 31, 8), causal(1, 2, 65, 40), causal(1, 1, 127, 72), causal(3, 1, 2, 16),
        ),
        valid=has_gradients,
        draw=saved_for(causal=True),
        arranged=moved_scores(causal=True),
        exempt=OPEN,
        values=VARIED,
        flops=lambda dims: 4 * causal_pairs(dims),
        matrix_flops=lambda dims: 10 * causal_pairs(dims) * dims["dim"],
        # The default factor suffices: PyTorch also keeps weights and their gradients in the dtype and sums in float32.
    ),
)  # fmt: skip
