"""Batch normalisation of images as in training, with new running statistics, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import far_from_zero
from reference_ops.normalization._moments import constant_sets, drawn_eps, moments_as_on_a_gpu
from reference_ops.normalization.layer_norm import VARIED
from reference_ops.op import OF_BATCHES, Op, Tensors, Tolerance, Workload, rotated, tensors, workloads

aten = torch.ops.aten
EPS, MOMENTUM, MOST_MOMENTUM = 1e-5, 0.1, 0.5
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def batch_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Five:
    """On a CPU, compute statistics in float32 as on a GPU, because PyTorch would add in float64."""
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return as_called(x, weight, bias, running_mean, running_var, momentum, eps)
    channels = x.float().transpose(0, 1).flatten(1)
    mean, variance = (one.squeeze(1) for one in moments_as_on_a_gpu(channels))
    rstd, count = (variance + eps).rsqrt(), channels.shape[1]
    shift, scale, gain, offset = (one.view(-1, 1, 1) for one in (mean, rstd, weight, bias))
    out = ((x.float() - shift) * scale * gain + offset).to(x.dtype)
    new_mean = (1 - momentum) * running_mean + momentum * mean
    new_var = (1 - momentum) * running_var + momentum * (variance * count / (count - 1))
    return out, new_mean, new_var, mean, rstd


def as_called(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Five:
    """Call the function behind `torch.nn.BatchNorm2d`, cuDNN included, on copies of the running statistics."""
    kept = (running_mean.detach().clone(), running_var.detach().clone())
    called = torch._batch_norm_impl_index  # noqa: SLF001 - no public function returns the statistics
    out, mean, rstd, *_ = called(x, weight, bias, *kept, True, momentum, eps, True)
    return out, *kept, mean, rstd


def batch_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> Three:
    exact = torch.promote_types(x.dtype, torch.float32)
    grad_x, grad_weight, grad_bias = backward_as_called(grad_out.to(exact), x.to(exact), mean, rstd, weight)
    return grad_x.to(x.dtype), grad_weight, grad_bias


def backward_as_called(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> Three:
    """Call PyTorch's own backward.

    In 16 bits, a GPU rounds every grad_out * (x - mean) before adding it, as well as the partial sums of threads.
    """
    grad_x, grad_weight, grad_bias = aten.native_batch_norm_backward(
        grad_out, x, weight, None, None, mean, rstd, True, EPS, [True, True, True]
    )
    return grad_x, grad_weight, grad_bias


def draw_variance(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw positive variances, which are near zero in inactive channels, where eps matters."""
    inputs["running_var"].uniform_(-12, 1, generator=generator).exp_()


def draw_statistics(inputs: Tensors, generator: torch.Generator) -> None:
    variance, mean = torch.var_mean(inputs["x"].double(), (0, 2, 3), correction=0)
    inputs["mean"].copy_(mean)
    inputs["rstd"].copy_(variance.add_(drawn_eps(generator)).rsqrt_())


def by_channel(x: torch.Tensor, _: Mapping[str, Any]) -> torch.Tensor:
    return x.transpose(0, 1)


def at(batch: int, channels: int, height: int, width: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "height": height, "width": width}


def per_channel(known: Mapping[str, Any]) -> int:
    return int(known["batch"] * known["height"] * known["width"])


def in_two_steps(known: Mapping[str, Any]) -> int:
    """Return the number of terms for the tolerance, as if 256 threads sum each image, and then the sums of all images.

    With the total number of terms, the tolerance would exceed the error of such a kernel where terms cancel.
    """
    return min(per_channel(known), int(known["height"] * known["width"] + 256 * known["batch"]))


def has_variance(known: Mapping[str, Any]) -> bool:
    """Return whether there are several values per channel, as PyTorch requires, a usual momentum, and an eps.

    Near a momentum of 1, running + momentum * (mean - running) is far less exact than the sum of two products. Without
    an eps, PyTorch gives the bias where all values are equal, and not NaN.
    """
    return bool(known["per_channel"] > 1 and known["momentum"] <= MOST_MOMENTUM and known["eps"] > 0)


def is_many(known: Mapping[str, Any]) -> bool:
    """Return whether there are many values. With few, the gradient through the norm consists of rounding errors."""
    return bool(known["per_channel"] >= 16)


def gpu(**parameters: float) -> tuple[Workload, ...]:
    """Return workloads of the stages of a ResNet-50, and one with odd sizes."""
    return (
        *workloads("bfloat16 float32 float16", at(64, 256, 56, 56), **parameters),
        *workloads("bfloat16", at(128, 64, 112, 112), **parameters),
        *workloads("bfloat16 float32", at(256, 512, 28, 28), **parameters),
        *workloads("bfloat16", at(256, 2048, 7, 7), at(33, 331, 31, 29), **parameters),
    )


def emulated(**parameters: float) -> tuple[Workload, ...]:
    return workloads("float32 bfloat16 float16", at(4, 32, 8, 8), at(8, 48, 7, 7), at(3, 33, 9, 11), **parameters)


AWKWARD = (at(31, 3, 1, 1), at(1, 33, 1, 31), at(7, 5, 3, 11), at(2, 2, 1, 257), at(1, 1, 33, 31))
CHANNELS = "float32[channels]"  # in float32, as mixed-precision training keeps weights and statistics
IMAGES = "batch channels height width"
DERIVED = {"per_channel": per_channel, "in_two_steps": in_two_steps}
ROUNDED = ("grad_x", "grad_weight", "grad_bias")  # in float16 large products and sums overflow

ops = (
    Op(
        name="batch_norm",
        note="For each channel, over its per_channel = batch * height * width values: mean, rstd = 1 / sqrt(variance "
        "+ eps) with the variance divided by per_channel, and out = (x - mean) * rstd * weight + bias. "
        "new_running_mean = (1 - momentum) * running_mean + momentum * mean, and new_running_var likewise with the "
        "variance divided by per_channel - 1. All but x and out are in float32.",
        reference=batch_norm,
        baseline=as_called,
        inputs=tensors(x=IMAGES, weight=CHANNELS, bias=CHANNELS, running_mean=CHANNELS, running_var=CHANNELS),
        outputs=tensors(
            out=IMAGES, new_running_mean=CHANNELS, new_running_var=CHANNELS, mean=CHANNELS, rstd=CHANNELS
        ),
        derived=DERIVED,
        gpu=gpu(momentum=MOMENTUM, eps=EPS),
        emulated=emulated(momentum=MOMENTUM, eps=EPS),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, at(2, 1, 1, 1), momentum=MOMENTUM, eps=EPS),
        valid=has_variance,
        by_rows=False,
        draw=draw_variance,
        values=OF_BATCHES,
        arranged=far_from_zero("x"),
        flops=lambda dims: 8 * dims["channels"] * per_channel(dims),
        # The default factor suffices: PyTorch also sums in float32 and rounds once.
        tolerance=Tolerance(sums="in_two_steps", independent=("channels",)),
        backward=("batch_norm_backward",),
    ),
    Op(
        name="batch_norm_backward",
        note="With n = (x - mean) * rstd and g = grad_out * weight: grad_x = rstd * (g - mean(g) - n * mean(g * n)), "
        "means over the per_channel = batch * height * width values of each channel; grad_weight = sum over those of "
        "grad_out * n, grad_bias of grad_out. All but grad_out, x and grad_x are in float32.",
        reference=batch_norm_backward,
        baseline=backward_as_called,
        baseline_free=ROUNDED,
        inputs=tensors(grad_out=IMAGES, x=IMAGES, mean=CHANNELS, rstd=CHANNELS, weight=CHANNELS),
        outputs=tensors(grad_x=IMAGES, grad_weight=CHANNELS, grad_bias=CHANNELS),
        derived=DERIVED,
        gpu=gpu(),
        emulated=emulated(),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD),
        valid=is_many,
        by_rows=False,
        draw=draw_statistics,
        values=VARIED,  # no "shifted_columns": normalising gradients far from zero leaves only rounding errors
        arranged=constant_sets("x", draw_statistics, by_channel),
        flops=lambda dims: 14 * dims["channels"] * per_channel(dims),
        # The default factor suffices: the reference sums in float32 and rounds once. The mean counts as exact, because
        # its error would be in all terms of grad_weight and would excuse errors in half of the bits.
        tolerance=Tolerance(sums="in_two_steps", given=("mean", "rstd")),
    ),
)  # fmt: skip
