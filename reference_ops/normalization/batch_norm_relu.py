"""Batch normalisation in training followed by ReLU, as after most convolutions of a ResNet, and its backward."""

import torch

from reference_ops.arrangements import far_from_zero
from reference_ops.normalization import batch_norm as plain
from reference_ops.normalization._moments import constant_sets
from reference_ops.normalization.batch_norm import AWKWARD, CHANNELS, EPS, IMAGES, MOMENTUM, at, emulated, gpu
from reference_ops.normalization.layer_norm import VARIED
from reference_ops.op import OF_BATCHES, Op, Tensors, Tolerance, rotated, tensors

aten = torch.ops.aten


def batch_norm_relu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> plain.Five:
    out, new_mean, new_var, mean, rstd = plain.batch_norm(x, weight, bias, running_mean, running_var, momentum, eps)
    return torch.relu(out), new_mean, new_var, mean, rstd


def as_called(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> plain.Five:
    out, new_mean, new_var, mean, rstd = plain.as_called(x, weight, bias, running_mean, running_var, momentum, eps)
    return torch.relu(out), new_mean, new_var, mean, rstd


def batch_norm_relu_backward(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
) -> plain.Three:
    grad = aten.threshold_backward(grad_out, out, 0)
    return plain.batch_norm_backward(grad, x, mean, rstd, weight)


def backward_as_called(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    out: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
) -> plain.Three:
    """Call PyTorch's own backward; see batch_norm."""
    grad = aten.threshold_backward(grad_out, out, 0)
    return plain.backward_as_called(grad, x, mean, rstd, weight)


def draw_outcome(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw statistics of x, and the `out` that matches them without a bias."""
    plain.draw_statistics(inputs, generator)
    inputs["out"].copy_(normalised(inputs).relu_())


def draw_biased(inputs: Tensors, generator: torch.Generator) -> None:
    """Do so with a bias, without which every `out` of a constant channel would be zero."""
    plain.draw_statistics(inputs, generator)
    bias = torch.empty_like(inputs["weight"]).normal_(generator=generator).view(-1, 1, 1)
    inputs["out"].copy_(normalised(inputs).add_(bias).relu_())


def normalised(inputs: Tensors) -> torch.Tensor:
    shift, scale, weight = (inputs[name].view(-1, 1, 1) for name in ("mean", "rstd", "weight"))
    return (inputs["x"] - shift) * scale * weight


ops = (
    Op(
        name="batch_norm_relu",
        note="For each channel, over its per_channel = batch * height * width values: mean, rstd = 1 / sqrt(variance "
        "+ eps) with the variance divided by per_channel, and out = max(0, (x - mean) * rstd * weight + bias). "
        "new_running_mean = (1 - momentum) * running_mean + momentum * mean, and new_running_var likewise with the "
        "variance divided by per_channel - 1. All but x and out are in float32.",
        reference=batch_norm_relu,
        baseline=as_called,
        inputs=tensors(x=IMAGES, weight=CHANNELS, bias=CHANNELS, running_mean=CHANNELS, running_var=CHANNELS),
        outputs=tensors(
            out=IMAGES, new_running_mean=CHANNELS, new_running_var=CHANNELS, mean=CHANNELS, rstd=CHANNELS
        ),
        derived=plain.DERIVED,
        gpu=gpu(momentum=MOMENTUM, eps=EPS),
        emulated=emulated(momentum=MOMENTUM, eps=EPS),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, at(2, 1, 1, 1), momentum=MOMENTUM, eps=EPS),
        valid=plain.has_variance,
        by_rows=False,
        draw=plain.draw_variance,
        values=OF_BATCHES,
        arranged=far_from_zero("x"),
        flops=lambda dims: 9 * dims["channels"] * plain.per_channel(dims),
        # The default factor suffices: PyTorch also sums in float32 and rounds once.
        tolerance=Tolerance(sums="in_two_steps", independent=("channels",)),
        backward=("batch_norm_relu_backward",),
    ),
    Op(
        name="batch_norm_relu_backward",
        note="With d = 0 where out <= 0, else grad_out, n = (x - mean) * rstd and g = d * weight: grad_x = rstd * (g - "
        "mean(g) - n * mean(g * n)), means over the per_channel = batch * height * width values of each channel; "
        "grad_weight = sum over those of d * n, grad_bias of d. The weight, its gradient, the bias's and the "
        "statistics are in float32.",
        reference=batch_norm_relu_backward,
        baseline=backward_as_called,
        baseline_free=plain.ROUNDED,
        inputs=tensors(grad_out=IMAGES, x=IMAGES, out=IMAGES, mean=CHANNELS, rstd=CHANNELS, weight=CHANNELS),
        outputs=tensors(grad_x=IMAGES, grad_weight=CHANNELS, grad_bias=CHANNELS),
        derived=plain.DERIVED,
        gpu=gpu(),
        emulated=emulated(),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD),
        valid=plain.is_many,
        by_rows=False,
        draw=draw_outcome,
        values=VARIED,
        arranged=constant_sets("x", draw_biased, plain.by_channel),
        flops=lambda dims: 15 * dims["channels"] * plain.per_channel(dims),
        # The default factor suffices: the reference sums in float32 and rounds once.
        tolerance=Tolerance(sums="in_two_steps"),
    ),
)  # fmt: skip
