"""Softmax over the last dim."""

import torch

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.values import COMMON


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


op = Op(
    name="softmax",
    note="Softmax over the last dim of a matrix.",
    reference=softmax,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=(
        *workloads("bfloat16", {"rows": 32768, "cols": 256}),
        *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}),
        *workloads("bfloat16", {"rows": 4096, "cols": 16384}),
        *workloads("bfloat16 float32", {"rows": 1024, "cols": 131072}),  # a vocabulary
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", {"rows": 64, "cols": 256}, {"rows": 16, "cols": 1024}),
        *workloads("float32 bfloat16", {"rows": 2, "cols": 8192}),
    ),
    awkward=rotated(
        "float32 bfloat16 float16",
        {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, {"rows": 33, "cols": 31}, {"rows": 7, "cols": 257},
        {"rows": 5, "cols": 1000}, {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
    ),
    values=(*COMMON, "masked"),  # a causal or padding mask is -inf before a softmax
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],  # compare, subtract, add, multiply, and an exponential
    # The default factor: PyTorch too accumulates in float32 and rounds once.
    tolerance=Tolerance(sums="cols"),
)  # fmt: skip
