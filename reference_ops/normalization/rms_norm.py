"""RMS normalisation over the last dim, with a weight."""

import torch
from torch.nn import functional

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


op = Op(
    name="rms_norm",
    note="Each row divided by its root mean square (eps is added to the mean square), then multiplied by the weight.",
    reference=rms_norm,
    inputs=tensors(x="rows cols", weight="cols"),
    outputs=tensors(out="rows cols"),
    gpu=(
        *workloads("bfloat16", {"rows": 32768, "cols": 1024}, eps=1e-6),
        *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
        *workloads("bfloat16 float32", {"rows": 2048, "cols": 16384}, eps=1e-6),
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
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],  # square, add, and two multiplications
    # The default factor: sums in float32 and one rounding at the end are what PyTorch does at best.
    tolerance=Tolerance(sums="cols"),
)  # fmt: skip
