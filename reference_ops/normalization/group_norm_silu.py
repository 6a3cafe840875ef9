"""Group normalisation followed by SiLU, as before every convolution of a diffusion model, and its backward."""

import torch
from torch.nn import functional

from reference_ops.arrangements import far_from_zero
from reference_ops.normalization import group_norm as plain
from reference_ops.normalization._moments import constant_sets
from reference_ops.normalization.group_norm import EPS, Three, at
from reference_ops.normalization.layer_norm import VARIED
from reference_ops.op import Op, Tolerance, rotated, tensors

aten = torch.ops.aten


def group_norm_silu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> Three:
    exact = torch.promote_types(x.dtype, torch.float32)
    out, mean, rstd = plain.as_called(x.to(exact), weight.to(exact), bias.to(exact), groups, eps)
    return functional.silu(out).to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def as_called(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> Three:
    """Compute the op as model code does: the norm is rounded before its SiLU is taken."""
    out, mean, rstd = plain.as_called(x, weight, bias, groups, eps)
    return functional.silu(out), mean, rstd


def group_norm_silu_backward(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
) -> Three:
    exact = torch.promote_types(x.dtype, torch.float32)
    grad, value, centre, scale, gain, shift = (t.to(exact) for t in (grad_out, x, mean, rstd, weight, bias))
    batch, channels, *_ = x.shape
    by_group = value.reshape(batch, groups, -1)
    normed = ((by_group - centre.unsqueeze(-1)) * scale.unsqueeze(-1)).view_as(x)
    before = normed * gain.view(channels, 1, 1) + shift.view(channels, 1, 1)
    grad = aten.silu_backward(grad, before)
    gradients = plain.group_norm_backward(grad, value, centre, scale, gain, groups)
    grad_x, grad_weight, grad_bias = (gradient.to(x.dtype) for gradient in gradients)
    return grad_x, grad_weight, grad_bias


ops = (
    Op(
        name="group_norm_silu",
        note="y = (x - mean) * rstd * weight + bias, out = y * sigmoid(y), where y is not rounded. Each image's "
        "channels are normalised in `groups` sets of channels // groups neighbours: mean and rstd = 1 / sqrt(variance "
        "+ eps) are of the per_group = channels // groups * height * width values of a set, with the variance divided "
        "by per_group; weight and bias are per channel. The statistics are rounded to the dtype only as outputs. The "
        "dim "
        "sets is groups.",
        reference=group_norm_silu,
        baseline=as_called,
        baseline_free=("out",),
        inputs=tensors(x="batch channels height width", weight="channels", bias="channels"),
        outputs=tensors(out="batch channels height width", mean="batch sets", rstd="batch sets"),
        derived=plain.DERIVED,
        gpu=plain.gpu("bfloat16 float32 float16", eps=EPS),
        emulated=plain.emulated("float32 bfloat16 float16", eps=EPS),
        awkward=(
            *rotated("float32 bfloat16 float16", at(1, 1, 1, 1), at(33, 31, 1, 1), at(1, 2, 1, 257), groups=1, eps=EPS),
            *rotated("bfloat16 float32", at(5, 6, 17, 13), at(2, 9, 1, 31), at(1, 33, 31, 33), groups=3, eps=EPS),
        ),
        valid=plain.divides,
        draw=plain.draw_apart,
        nan_spreads=True,  # `nan_spreads` also holds in groups of one element
        arranged=far_from_zero("x"),
        flops=lambda dims: 12 * dims["batch"] * dims["channels"] * dims["height"] * dims["width"],
        # The default factor suffices: the reference works in float32 and rounds once.
        tolerance=Tolerance(sums="per_group", independent=("batch", "sets")),
        backward=("group_norm_silu_backward",),
    ),
    Op(
        name="group_norm_silu_backward",
        note="With n = (x - mean) * rstd, y = n * weight + bias, s = sigmoid(y), d = grad_out * s * (1 + y * (1 - s)) "
        "and g = d * weight: grad_x = rstd * (g - mean(g) - n * mean(g * n)), means over the per_group values of a "
        "set, see group_norm_silu; grad_weight = sum over batch, height and width of d * n, grad_bias of d. mean and "
        "rstd are taken as they are given, rounded to the dtype.",
        reference=group_norm_silu_backward,
        inputs=tensors(
            grad_out="batch channels height width", x="batch channels height width", mean="batch sets",
            rstd="batch sets", weight="channels", bias="channels",
        ),
        outputs=tensors(grad_x="batch channels height width", grad_weight="channels", grad_bias="channels"),
        derived={**plain.DERIVED, **plain.PER_CHANNEL},
        gpu=plain.gpu("bfloat16 float32"),  # in float16 a sum of gradients over all images overflows
        emulated=plain.emulated("float32 bfloat16"),
        awkward=(
            *rotated("float32 bfloat16", at(33, 31, 1, 1), at(1, 2, 1, 257), groups=1),
            *rotated("bfloat16 float32", at(5, 6, 17, 13), at(2, 9, 1, 31), at(1, 33, 31, 33), groups=3),
        ),
        valid=plain.divides_and_is_many,
        draw=plain.draw_statistics,
        values=VARIED,
        arranged=constant_sets("x", plain.save_statistics, plain.by_group),
        flops=lambda dims: 24 * dims["batch"] * dims["channels"] * dims["height"] * dims["width"],
        # The default factor suffices: the reference works in float32 and rounds once.
        tolerance=Tolerance(sums="per_channel"),
    ),
)  # fmt: skip
