"""Causal grouped-query attention, in which query heads share heads of keys and values, and its gradients."""

from collections.abc import Mapping

import torch

from reference_ops.attention._plain import (
    ARRANGED,
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

NOTE = (
    "Head h of the queries attends to head h // (heads // kv_heads) of the keys and values. "
    "scores[i, j] = sum over dim of q[i] * k[j], times dim ** -0.5, for j from 0 to i; "
    "lse[i] = log(sum over j of exp(scores[i, j])), float32; out[i] = sum over j of exp(scores[i, j] - lse[i]) * v[j]."
)


def grouped_query_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return attended(q, k, v, causal=True)


def grouped_query_attention_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return gradients(q, k, v, (out, lse, grad_out), causal=True)


def pairs(dims: Mapping[str, int]) -> int:
    return dims["batch"] * dims["heads"] * dims["length"] * (dims["length"] + 1) // 2


def at(batch: int, heads: int, kv_heads: int, length: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "length": length, "dim": dim}


def fits(known: Mapping[str, int]) -> bool:
    # numbers of heads as in models
    return known["heads"] % known["kv_heads"] == 0 and known["dim"] % 8 == 0 and known["dim"] <= 128


Q, KV, LSE = "batch heads length dim", "batch kv_heads length dim", "float32[batch heads length]"
EMULATED = (at(2, 4, 2, 40, 32), at(4, 3, 1, 33, 64), at(2, 2, 2, 40, 32))
AWKWARD = (at(1, 2, 1, 1, 8), at(2, 6, 2, 31, 8), at(1, 4, 2, 65, 24), at(1, 3, 3, 63, 72), at(3, 5, 1, 2, 16))
ops = (
    Op(
        name="grouped_query_attention",
        note=NOTE,
        reference=grouped_query_attention,
        baseline=lambda q, k, v: of_torch(q, k, v, causal=True),
        baseline_free=("lse",),  # the fused kernels approximate exponentials and logarithms
        inputs=tensors(q=Q, k=KV, v=KV),
        outputs=tensors(out=Q, lse=LSE),
        gpu=(
            *workloads("bfloat16 float32 float16", at(2, 32, 8, 2048, 128)),
            *workloads("bfloat16", at(1, 28, 4, 4096, 128), at(8, 14, 2, 2048, 64), at(3, 9, 3, 1999, 64)),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD),
        valid=fits,
        draw=draw_scores,
        arranged=ARRANGED,
        exempt=OPEN,
        values=VALUES,
        flops=lambda dims: 3 * pairs(dims),
        matrix_flops=lambda dims: 4 * pairs(dims) * dims["dim"],
        tolerance=TOLERANCE,
        backward=("grouped_query_attention_backward",),
    ),
    Op(
        name="grouped_query_attention_backward",
        note="From a forward's q, k, v, out and lse: p = exp(scores - lse), dp = grad_out @ v^T, "
        "ds = p * (dp - sum over dim of out * grad_out) * dim ** -0.5; grad_q = ds @ k; grad_k = ds^T @ q and "
        "grad_v = p^T @ grad_out, each summed over the heads that share it. " + NOTE,
        reference=grouped_query_attention_backward,
        baseline=lambda q, k, v, out, lse, grad_out: gradients_of_torch(q, k, v, (out, lse, grad_out), causal=True),
        inputs=tensors(q=Q, k=KV, v=KV, out=Q, lse=LSE, grad_out=Q),
        outputs=tensors(grad_q=Q, grad_k=KV, grad_v=KV),
        gpu=(
            *workloads("bfloat16 float32 float16", at(1, 16, 4, 2048, 128)),
            *workloads("bfloat16", at(2, 14, 2, 1024, 128), at(2, 14, 2, 2048, 64), at(3, 9, 3, 1999, 64)),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD[1:]),
        valid=lambda known: fits(known) and known["length"] > 1,
        draw=saved_for(causal=True),
        arranged=moved_scores(causal=True),
        exempt=OPEN,
        values=VARIED,
        flops=lambda dims: 4 * pairs(dims),
        matrix_flops=lambda dims: 10 * pairs(dims) * dims["dim"],
        # The default factor suffices: PyTorch also keeps weights and their gradients in the dtype and sums in float32.
    ),
)  # fmt: skip
