"""A residual addition followed by RMS normalisation, as at the start of a transformer layer, and its backward."""

import torch
from torch.nn import functional

from reference_ops.arrangements import filled
from reference_ops.normalization.rms_norm import AWKWARD, EMULATED, OF_INFINITE_ROWS, is_many, longest_sum
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    summed = x + residual
    return functional.rms_norm(summed, weight.shape, weight, eps), summed


def add_rms_norm_backward(
    grad_out: torch.Tensor, grad_summed: torch.Tensor, summed: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    exact = torch.promote_types(summed.dtype, torch.float32)
    grad, value = grad_out.to(exact), summed.to(exact)
    rstd = torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    normed, scaled = value * rstd, grad * weight.to(exact)
    through_norm = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    return (grad_summed.to(exact) + through_norm).to(summed.dtype), (grad * normed).sum(0).to(summed.dtype)


ops = (
    Op(
        name="add_rms_norm",
        note="summed = x + residual, rounded to the dtype: the residual stream. out = rms_norm(summed) * weight, "
        "with the norm of the rounded sum.",
        reference=add_rms_norm,
        inputs=tensors(x="rows cols", residual="rows cols", weight="cols"),
        outputs=tensors(out="rows cols", summed="rows cols"),
        gpu=(
            *workloads("bfloat16", {"rows": 16384, "cols": 2048}, eps=1e-6),
            *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 8192}, eps=1e-6),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-6),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, eps=1e-6),
        exempt=OF_INFINITE_ROWS,
        flops=lambda dims: 5 * dims["rows"] * dims["cols"],  # two additions, a square and two multiplications
        # The default factor suffices: PyTorch also rounds the sum once, and computes the norm as in rms_norm.
        tolerance=Tolerance(sums="cols"),
        backward=("add_rms_norm_backward",),
    ),
    Op(
        name="add_rms_norm_backward",
        note="With rstd = 1 / sqrt(mean(summed * summed) + eps) of each row, n = summed * rstd and g = grad_out * "
        "weight: grad_x = grad_summed + rstd * (g - n * mean(g * n)), grad_weight = sum over the rows of grad_out * n. "
        "The gradient of the residual is that of x.",
        reference=add_rms_norm_backward,
        inputs=tensors(grad_out="rows cols", grad_summed="rows cols", summed="rows cols", weight="cols"),
        outputs=tensors(grad_x="rows cols", grad_weight="cols"),
        derived={"longest_sum": longest_sum},
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}, eps=1e-6),
            *workloads("bfloat16", {"rows": 16384, "cols": 2048}, eps=1e-6),
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 8192}, eps=1e-6),
            *workloads("bfloat16", {"rows": 8191, "cols": 2881}, eps=1e-6),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-6),
        awkward=rotated("float32 bfloat16 float16", {"rows": 1, "cols": 31}, *AWKWARD[1:], eps=1e-6),
        valid=is_many,
        arranged={"grad_out_zero": filled(grad_out=0.0), "grad_summed_zero": filled(grad_summed=0.0)},
        flops=lambda dims: 13 * dims["rows"] * dims["cols"],
        # The default factor suffices: the reference also works in float32 and rounds once. Each gradient of a weight
        # depends on sums over rows and over columns.
        tolerance=Tolerance(sums="longest_sum"),
    ),
)  # fmt: skip
