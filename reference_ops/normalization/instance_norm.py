"""Instance normalisation of images with weight and bias, with its statistics as outputs, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import far_from_zero
from reference_ops.normalization import batch_norm
from reference_ops.normalization._moments import constant_sets, drawn_eps
from reference_ops.normalization.batch_norm import CHANNELS, IMAGES, ROUNDED, Three, at
from reference_ops.normalization.layer_norm import VARIED
from reference_ops.op import Op, Tensors, Tolerance, Workload, rotated, tensors, workloads

EPS = 1e-5
# A gradient far from zero times values that sum to 0 almost cancels, which leaves few digits of the sum in float32.
CENTRED = tuple(name for name in VARIED if name != "shifted")


def instance_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> Three:
    """Call the function behind `torch.nn.InstanceNorm2d`: batch normalisation of one image with all channels."""
    batch, channels, height, width = x.shape
    one = x.reshape(1, batch * channels, height, width)
    affine = (weight.repeat(batch), bias.repeat(batch))
    called = torch._batch_norm_impl_index  # noqa: SLF001 - no public function returns the statistics
    out, mean, rstd, *_ = called(one, *affine, None, None, True, 0.0, eps, True)
    return out.view_as(x), mean.view(batch, channels), rstd.view(batch, channels)


def instance_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> Three:
    exact = torch.promote_types(x.dtype, torch.float32)
    grad_x, grad_weight, grad_bias = backward_as_called(grad_out.to(exact), x.to(exact), mean, rstd, weight)
    return grad_x.to(x.dtype), grad_weight, grad_bias


def backward_as_called(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> Three:
    """Call PyTorch's own backward; see batch_norm."""
    batch, channels, height, width = x.shape
    one = (1, batch * channels, height, width)
    of_each = (mean.reshape(-1), rstd.reshape(-1), weight.repeat(batch))
    grad_x, grad_weight, grad_bias = batch_norm.backward_as_called(grad_out.reshape(one), x.reshape(one), *of_each)
    return grad_x.view_as(x), grad_weight.view(batch, channels).sum(0), grad_bias.view(batch, channels).sum(0)


def draw_statistics(inputs: Tensors, generator: torch.Generator) -> None:
    variance, mean = torch.var_mean(inputs["x"].double(), (2, 3), correction=0)
    inputs["mean"].copy_(mean)
    inputs["rstd"].copy_(variance.add_(drawn_eps(generator)).rsqrt_())


def has_variance(known: Mapping[str, Any]) -> bool:
    """Return whether there are several values per channel, as PyTorch requires, and an eps.

    Without an eps, PyTorch gives the bias where all values are equal, and not NaN.
    """
    return bool(known["height"] * known["width"] > 1 and known["eps"] > 0)


def is_many(known: Mapping[str, Any]) -> bool:
    """Return whether there are many values. With few, the gradient through the norm consists of rounding errors."""
    return bool(known["height"] * known["width"] >= 16)


def gpu(**parameters: float) -> tuple[Workload, ...]:
    """Return workloads of style transfer, image translation and segmentation, and one with odd sizes."""
    return (
        *workloads("bfloat16 float32 float16", at(32, 64, 128, 128), **parameters),
        *workloads("bfloat16", at(32, 64, 256, 256), **parameters),
        *workloads("bfloat16 float32", at(16, 256, 64, 64), **parameters),
        *workloads("bfloat16", at(13, 131, 127, 129), **parameters),
    )


def emulated(**parameters: float) -> tuple[Workload, ...]:
    return workloads("float32 bfloat16 float16", at(4, 12, 16, 16), at(16, 16, 7, 9), at(3, 33, 11, 13), **parameters)


AWKWARD = (at(1, 33, 1, 31), at(7, 5, 3, 11), at(2, 2, 1, 257), at(1, 1, 33, 31), at(31, 3, 4, 8))
STATISTICS = "float32[batch channels]"
DERIVED = {
    "area": lambda known: known["height"] * known["width"],
    "per_channel": batch_norm.per_channel,
}

ops = (
    Op(
        name="instance_norm",
        note="For each channel of each image, over its area = height * width values: mean, rstd = 1 / sqrt(variance + "
        "eps) with the variance divided by area, and out = (x - mean) * rstd * weight + bias, with weight and bias per "
        "channel. All tensors except x and out are in float32.",
        reference=instance_norm,
        inputs=tensors(x=IMAGES, weight=CHANNELS, bias=CHANNELS),
        outputs=tensors(out=IMAGES, mean=STATISTICS, rstd=STATISTICS),
        derived=DERIVED,
        gpu=gpu(eps=EPS),
        emulated=emulated(eps=EPS),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, at(2, 1, 1, 2), eps=EPS),
        valid=has_variance,
        arranged=far_from_zero("x"),
        flops=lambda dims: 8 * dims["channels"] * dims["per_channel"],
        # The default factor suffices: PyTorch also sums in float32 and rounds once.
        tolerance=Tolerance(sums="area", independent=("batch", "channels")),
        backward=("instance_norm_backward",),
    ),
    Op(
        name="instance_norm_backward",
        note="With n = (x - mean) * rstd and g = grad_out * weight: grad_x = rstd * (g - mean(g) - n * mean(g * n)), "
        "means over the area = height * width values of each channel of each image; grad_weight = sum over batch, "
        "height and width of grad_out * n, grad_bias of grad_out. All but grad_out, x and grad_x are in float32.",
        reference=instance_norm_backward,
        baseline=backward_as_called,
        baseline_free=ROUNDED,
        inputs=tensors(grad_out=IMAGES, x=IMAGES, mean=STATISTICS, rstd=STATISTICS, weight=CHANNELS),
        outputs=tensors(grad_x=IMAGES, grad_weight=CHANNELS, grad_bias=CHANNELS),
        derived=DERIVED,
        gpu=gpu(),
        emulated=emulated(),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD),
        valid=is_many,
        draw=draw_statistics,
        values=CENTRED,
        arranged=constant_sets("x", draw_statistics, lambda x, _: x.flatten(0, 1)),
        flops=lambda dims: 14 * dims["channels"] * dims["per_channel"],
        # The default factor suffices: the reference sums in float32, first each image and then all images, and rounds
        # once. An error of the mean would be in all terms of grad_weight; see batch_norm.
        tolerance=Tolerance(sums="area", given=("mean", "rstd")),
    ),
)  # fmt: skip
