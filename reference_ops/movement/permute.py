"""Permutation of attention heads: from [batch, seq, heads, dim] to [batch, heads, seq, dim], or back."""

import torch

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def permute(x: torch.Tensor) -> torch.Tensor:
    return x.permute(0, 2, 1, 3).contiguous()


def at(batch: int, seq: int, heads: int, dim: int) -> dict[str, int]:
    return {"batch": batch, "seq": seq, "heads": heads, "dim": dim}


op = Op(
    name="permute",
    note="out[b, h, s, d] = x[b, s, h, d]. Its gradient is the same op, with seq and heads exchanged.",
    reference=permute,
    inputs=tensors(x="batch seq heads dim"),
    outputs=tensors(out="batch heads seq dim"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(4, 4096, 32, 128)),  # Llama 8B
        *workloads("bfloat16", at(32, 512, 12, 64)),  # BERT
        *workloads("float32", at(64, 197, 16, 64)),  # a vision transformer
        *workloads("bfloat16", at(16, 64, 4096, 32)),  # the reverse, for many heads such as those of windows
        *workloads("bfloat16", at(3, 1021, 37, 81)),
    ),
    emulated=workloads("float32 bfloat16 float16", at(2, 24, 8, 16), at(1, 20, 12, 33)),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1), at(1, 31, 33, 1), at(2, 3, 1, 31), at(3, 1, 5, 7), at(1, 33, 31, 3), at(2, 7, 11, 65),
    ),
    flops=lambda dims: dims["batch"] * dims["seq"] * dims["heads"] * dims["dim"],
    tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
)  # fmt: skip
