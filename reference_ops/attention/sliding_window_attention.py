"""Causal attention to the last `window` keys, with key and value heads shared among query heads."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.attention._plain import ARRANGED, OPEN, TOLERANCE, VALUES, attended, draw_scores, repeated, visible
from reference_ops.op import Op, rotated, tensors, workloads


def sliding_window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return attended(q, k, v, causal=True, window=window)


def of_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Call PyTorch's flash kernels, which support windows. In float32 and on the CPU a mask is needed."""
    if not q.is_cuda:
        return attended(q, k, v, causal=True, window=window)
    if q.dtype == torch.float32:
        mask = visible(q.shape[2], k.shape[2], window, q.device)
        out = functional.scaled_dot_product_attention(q, repeated(k, q), repeated(v, q), mask)
        return out, q.new_empty(q.shape[:3])
    heads_last = (tensor.transpose(1, 2) for tensor in (q, k, v))
    sizes = (None, None, q.shape[2], k.shape[2])
    out, lse, *_ = torch.ops.aten._flash_attention_forward(  # noqa: SLF001 - no public function takes a window
        *heads_last, *sizes, 0.0, True, False, window_size_left=window - 1, window_size_right=0
    )
    return out.transpose(1, 2).contiguous(), lse


def pairs(dims: Mapping[str, int]) -> int:
    within = min(dims["window"], dims["length"])
    return dims["batch"] * dims["heads"] * (within * (within + 1) // 2 + (dims["length"] - within) * within)


def at(batch: int, heads: int, kv_heads: int, length: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "kv_heads": kv_heads, "length": length, "dim": dim}


def fits(known: Mapping[str, int]) -> bool:
    shared = known["heads"] % known["kv_heads"] == 0
    return shared and known["dim"] % 8 == 0 and known["dim"] <= 128 and known["window"] > 0


op = Op(
    name="sliding_window_attention",
    note="Head h of the queries attends to head h // (heads // kv_heads) of the keys and values. "
    "scores[i, j] = sum over dim of q[i] * k[j], times dim ** -0.5, for j from max(0, i - window + 1) to i; "
    "lse[i] = log(sum over j of exp(scores[i, j])), float32; out[i] = sum over j of exp(scores[i, j] - lse[i]) * v[j].",
    reference=sliding_window_attention,
    baseline=of_torch,
    baseline_free=("lse",),  # PyTorch does not return `lse` if there is a mask
    inputs=tensors(q="batch heads length dim", k="batch kv_heads length dim", v="batch kv_heads length dim"),
    outputs=tensors(out="batch heads length dim", lse="float32[batch heads length]"),
    derived={"window": lambda known: known["window"]},  # for counting pairs
    gpu=(
        *workloads("bfloat16 float32 float16", at(1, 32, 8, 2048, 128), window=1024),
        *workloads("bfloat16", at(1, 16, 8, 4096, 128), window=1024),
        *workloads("bfloat16", at(1, 64, 8, 2048, 64), window=128),
        *workloads("bfloat16", at(2, 12, 4, 1999, 64), window=257),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(2, 4, 2, 48, 16), window=17),
        *workloads("float32 bfloat16", at(4, 2, 1, 35, 64), window=8),
        *workloads("float32", at(1, 2, 2, 100, 16), window=40),
    ),
    awkward=(
        *rotated("float32 bfloat16 float16", at(1, 2, 1, 1, 8), at(2, 6, 2, 31, 8), at(1, 4, 2, 65, 24), window=33),
        *rotated("bfloat16 float16", at(1, 3, 3, 63, 72), at(3, 5, 1, 9, 16), window=1),
        *rotated("float16 float32", at(1, 2, 1, 129, 16), at(1, 1, 1, 63, 8), window=64),
        # windows of whole tiles and one key less
        *rotated("float32", at(1, 1, 1, 193, 8), window=127),
        *rotated("float32", at(1, 1, 1, 193, 16), window=128),
    ),
    valid=fits,
    draw=draw_scores,
    arranged=ARRANGED,
    exempt=OPEN,
    values=VALUES,
    flops=lambda dims: 3 * pairs(dims),
    matrix_flops=lambda dims: 4 * pairs(dims) * dims["dim"],
    tolerance=TOLERANCE,
)
