"""The gated RMS normalisation of Mamba-2, and its backward."""

import torch
from torch.nn import functional

from reference_ops.arrangements import lowered
from reference_ops.normalization.rms_norm import AWKWARD, OF_INFINITE_ROWS, is_many, longest_sum
from reference_ops.op import COMMON, Op, Tolerance, rotated, tensors, workloads


def rms_norm_silu(x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    exact = torch.promote_types(x.dtype, torch.float32)
    gated = x.to(exact) * functional.silu(z.to(exact))
    return functional.rms_norm(gated, weight.shape, weight.to(exact), eps).to(x.dtype)


def rms_norm_silu_backward(
    grad_out: torch.Tensor, x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    exact = torch.promote_types(x.dtype, torch.float32)
    grad, value, gate = (tensor.to(exact) for tensor in (grad_out, x, z))
    sigmoid = torch.sigmoid(gate)
    gated = value * gate * sigmoid
    rstd = torch.rsqrt(gated.square().mean(-1, keepdim=True) + eps)
    normed, scaled = gated * rstd, grad * weight.to(exact)
    grad_gated = rstd * (scaled - normed * (scaled * normed).mean(-1, keepdim=True))
    grad_x = grad_gated * gate * sigmoid
    grad_z = grad_gated * value * sigmoid * (1 + gate * (1 - sigmoid))
    return grad_x.to(x.dtype), grad_z.to(x.dtype), (grad * normed).sum(0).to(x.dtype)


# The product of two heavy tails makes one element dominate a row, so that its gradient is a difference of almost equal
# numbers.
LIGHT = tuple(name for name in COMMON if name != "heavy_tail")
CLOSED = 20.0  # so far below zero, a gate is closed, but float16 still holds most of its gradients
EMULATED = ({"rows": 32, "cols": 256}, {"rows": 12, "cols": 1024}, {"rows": 3, "cols": 2080})
GPU = (
    *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 5120}, eps=1e-5),
    *workloads("bfloat16", {"rows": 32768, "cols": 1536}, eps=1e-5),
    *workloads("bfloat16 float32", {"rows": 4096, "cols": 8192}, eps=1e-5),
    *workloads("bfloat16", {"rows": 8191, "cols": 3073}, eps=1e-5),
)

ops = (
    Op(
        name="rms_norm_silu",
        note="y = x * z * sigmoid(z), not rounded to the dtype; out = y / sqrt(mean(y * y) + eps) * weight, with the "
             "mean over each row.",
        reference=rms_norm_silu,
        inputs=tensors(x="rows cols", z="rows cols", weight="cols"),
        outputs=tensors(out="rows cols"),
        gpu=GPU,
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-5),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, eps=1e-5),
        arranged=lowered("z"),
        exempt=OF_INFINITE_ROWS,
        flops=lambda dims: 10 * dims["rows"] * dims["cols"],
        # The default factor suffices: the reference also works in float32 and rounds once.
        tolerance=Tolerance(sums="cols"),
        backward=("rms_norm_silu_backward",),
    ),
    Op(
        name="rms_norm_silu_backward",
        note="With s = sigmoid(z), y = x * z * s, rstd = 1 / sqrt(mean(y * y) + eps), n = y * rstd, g = grad_out * "
        "weight and d = rstd * (g - n * mean(g * n)), means over each row: grad_x = d * z * s, grad_z = d * x * s * "
        "(1 + z * (1 - s)), grad_weight = sum over the rows of grad_out * n.",
        reference=rms_norm_silu_backward,
        inputs=tensors(grad_out="rows cols", x="rows cols", z="rows cols", weight="cols"),
        outputs=tensors(grad_x="rows cols", grad_z="rows cols", grad_weight="cols"),
        derived={"longest_sum": longest_sum},
        gpu=GPU,
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=1e-5),
        awkward=rotated("float32 bfloat16 float16", {"rows": 1, "cols": 31}, *AWKWARD[1:], eps=1e-5),
        valid=is_many,
        values=LIGHT,
        arranged=lowered("z", by=CLOSED),
        flops=lambda dims: 26 * dims["rows"] * dims["cols"],
        # The default factor suffices: the reference also works in float32 and rounds once. Each gradient of a weight
        # depends on sums over rows and over columns.
        tolerance=Tolerance(sums="longest_sum"),
    ),
)  # fmt: skip
