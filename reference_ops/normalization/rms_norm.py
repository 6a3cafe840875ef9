"""RMS normalisation over the last dim, with a weight, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import INFINITE, MINUS_INF, Op, Tolerance, rotated, tensors, workloads


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def rms_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute in float32, as PyTorch's own backward does, which needs an `rstd` that its forward does not return."""
    exact = torch.promote_types(x.dtype, torch.float32)
    grad, value = grad_out.to(exact), x.to(exact)
    rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normed, scaled = value * rstd, grad * weight.to(exact)
    grad_x = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return grad_x.to(x.dtype), (grad * normed).sum(0).to(x.dtype)


def is_many(known: Mapping[str, Any]) -> bool:
    """Return whether there are many values. With few, the gradient through the norm consists of rounding errors."""
    return bool(known["cols"] >= 16)


def longest_sum(known: Mapping[str, Any]) -> int:
    return int(max(known["rows"], known["cols"]))


# On a GPU, PyTorch's sum of squares that include an infinity is NaN.
OF_INFINITE_ROWS = dict.fromkeys(
    (INFINITE, MINUS_INF),
    "the other numbers of a row with an infinity become 0 or NaN, depending on how the squares are summed",
)
EMULATED = ({"rows": 64, "cols": 256}, {"rows": 16, "cols": 1024}, {"rows": 3, "cols": 2080})
AWKWARD = (
    {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, {"rows": 33, "cols": 31}, {"rows": 7, "cols": 257},
    {"rows": 5, "cols": 1000}, {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
)  # fmt: skip

ops = (
    Op(
        name="rms_norm",
        note="Each row divided by its root mean square (eps is added to the mean square), then multiplied by the "
        "weight.",
        reference=rms_norm,
        inputs=tensors(x="rows cols", weight="cols"),
        outputs=tensors(out="rows cols"),
        gpu=(
            *workloads("bfloat16", {"rows": 32768, "cols": 1024}, eps=1e-6),
            *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
            *workloads("bfloat16 float32", {"rows": 2048, "cols": 16384}, eps=1e-6),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-6),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, eps=1e-6),
        exempt=OF_INFINITE_ROWS,
        flops=lambda dims: 4 * dims["rows"] * dims["cols"],  # a square, an addition and two multiplications
        # The default factor suffices: at best PyTorch sums in float32 and rounds once.
        tolerance=Tolerance(sums="cols"),
        backward=("rms_norm_backward",),
    ),
    Op(
        name="rms_norm_backward",
        note="With rstd = 1 / sqrt(mean(x * x) + eps) of each row, n = x * rstd and g = grad_out * weight: "
        "grad_x = rstd * (g - n * mean(g * n)), grad_weight = sum over the rows of grad_out * n.",
        reference=rms_norm_backward,
        inputs=tensors(grad_out="rows cols", x="rows cols", weight="cols"),
        outputs=tensors(grad_x="rows cols", grad_weight="cols"),
        derived={"longest_sum": longest_sum},
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
            *workloads("bfloat16", {"rows": 32768, "cols": 1024}, eps=1e-6),
            *workloads("bfloat16 float32", {"rows": 2048, "cols": 16384}, eps=1e-6),
            *workloads("bfloat16", {"rows": 8191, "cols": 2881}, eps=1e-6),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-6),
        awkward=rotated("float32 bfloat16 float16", {"rows": 1, "cols": 31}, *AWKWARD[1:], eps=1e-6),
        valid=is_many,
        flops=lambda dims: 12 * dims["rows"] * dims["cols"],
        # The default factor suffices: the reference also works in float32 and rounds once. Each gradient of a weight
        # depends on sums over rows and over columns.
        tolerance=Tolerance(sums="longest_sum"),
    ),
)  # fmt: skip
