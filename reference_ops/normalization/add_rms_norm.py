"""A residual addition and the RMS normalisation of its sum, as every transformer layer begins."""

import torch
from torch.nn import functional

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight, eps), summed


op = Op(
    name="add_rms_norm",
    note="summed = x + residual, rounded to the dtype: the residual stream. out = rms_norm(summed) * weight, "
    "the norm of the rounded sum.",
    reference=add_rms_norm,
    inputs=tensors(x="rows cols", residual="rows cols", weight="cols"),
    outputs=tensors(out="rows cols", summed="rows cols"),
    gpu=(
        *workloads("bfloat16", {"rows": 16384, "cols": 2048}, eps=1e-6),
        *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
        *workloads("bfloat16 float32", {"rows": 4096, "cols": 8192}, eps=1e-6),
    ),
    emulated=workloads(
        "float32 bfloat16 float16", {"rows": 64, "cols": 256}, {"rows": 16, "cols": 1024}, {"rows": 3, "cols": 2080},
        eps=1e-6,
    ),
    awkward=rotated(
        "float32 bfloat16 float16",
        {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, {"rows": 33, "cols": 31}, {"rows": 7, "cols": 257},
        {"rows": 5, "cols": 1000}, {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
        eps=1e-6,
    ),
    flops=lambda dims: 5 * dims["rows"] * dims["cols"],  # two additions, a square and two multiplications
    # The default factor: the sum is rounded once by everyone, and the norm of it as in rms_norm.
    tolerance=Tolerance(sums="cols"),
)  # fmt: skip
