"""Group normalisation of images with weight and bias, with its statistics as outputs, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import far_from_zero
from reference_ops.distributions import few_bits
from reference_ops.normalization._moments import constant_sets, drawn_eps
from reference_ops.normalization.layer_norm import VARIED
from reference_ops.op import Op, Tensors, Tolerance, Workload, rotated, tensors, workloads

aten = torch.ops.aten
EPS = 1e-5
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> Three:
    exact = torch.promote_types(x.dtype, torch.float32)
    out, mean, rstd = as_called(x.to(exact), weight.to(exact), bias.to(exact), groups, eps)
    return out.to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


def as_called(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float) -> Three:
    """Call PyTorch's own backward, which may round the mean before it subtracts it."""
    batch, channels, height, width = x.shape
    out, mean, rstd = aten.native_group_norm(x, weight, bias, batch, channels, height * width, groups, eps)
    return out, mean, rstd


def group_norm_backward(
    grad_out: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
) -> Three:
    batch, channels, height, width = x.shape
    sizes = (batch, channels, height * width, groups)
    grad_x, grad_weight, grad_bias = aten.native_group_norm_backward(
        grad_out, x, mean, rstd, weight, *sizes, [True, True, True]
    )
    return grad_x, grad_weight, grad_bias


def draw_apart(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    """Give each group its own scale, because otherwise large groups would all have the same rstd in 16 bits.

    A constant group keeps a number with few bits, so that its last bits do not look like a variance. No scale exceeds
    one, so that the largest numbers of float16 stay finite.
    """
    x, each = inputs["x"], (known["batch"], known["groups"])
    scales = torch.empty((*each, 1), dtype=x.dtype, device=x.device).uniform_(-4, 0, generator=generator).exp2_()
    x.view(*each, -1).mul_(few_bits(scales))


def draw_statistics(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    draw_apart(inputs, generator, known)
    save_statistics(inputs, generator)


def save_statistics(inputs: Tensors, generator: torch.Generator) -> None:
    batch, groups = inputs["mean"].shape
    variance, mean = torch.var_mean(inputs["x"].reshape(batch, groups, -1).double(), -1, correction=0)
    inputs["mean"].copy_(mean)
    inputs["rstd"].copy_(variance.add_(drawn_eps(generator)).rsqrt_())


def by_group(x: torch.Tensor, known: Mapping[str, Any]) -> torch.Tensor:
    return x.view(known["batch"] * known["groups"], -1)


def at(batch: int, channels: int, height: int, width: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "height": height, "width": width}


def divides(known: Mapping[str, Any]) -> bool:
    return bool(known["channels"] % known["groups"] == 0)


def divides_and_is_many(known: Mapping[str, Any]) -> bool:
    """Return whether there are many values. With few, the gradient through the norm consists of rounding errors."""
    return divides(known) and bool(known["per_group"] >= 16)


DERIVED = {
    "sets": lambda known: known["groups"],
    "per_group": lambda known: known["channels"] // known["groups"] * known["height"] * known["width"],
}
PER_CHANNEL = {"per_channel": lambda known: known["batch"] * known["height"] * known["width"]}


def gpu(dtypes: str, **parameters: float) -> tuple[Workload, ...]:
    """Return workloads of the denoiser and the decoder of diffusion models, the first one in every dtype."""
    return (
        *workloads(dtypes, at(16, 320, 64, 64), groups=32, **parameters),
        *workloads("bfloat16 float32", at(32, 512, 64, 64), groups=32, **parameters),
        *workloads("bfloat16", at(4, 128, 512, 512), groups=32, **parameters),
        *workloads("bfloat16", at(7, 186, 63, 65), groups=31, **parameters),
    )


def emulated(dtypes: str, **parameters: float) -> tuple[Workload, ...]:
    return (
        *workloads(dtypes, at(4, 48, 8, 8), groups=16, **parameters),
        *workloads(dtypes, at(2, 64, 8, 12), groups=32, **parameters),
        *workloads(dtypes, at(5, 24, 7, 11), groups=12, **parameters),
    )


ops = (
    Op(
        name="group_norm",
        note="Each image's channels are normalised in `groups` sets of channels // groups neighbours: out = (x - mean) "
             "* rstd * "
        "weight + bias, with mean and rstd = 1 / sqrt(variance + eps) of the per_group = channels // groups * height "
        "* width values of a set, with the variance divided by per_group; weight and bias are per channel. The "
        "statistics are rounded to the dtype only as outputs. The dim sets is groups.",
        reference=group_norm,
        baseline=as_called,
        baseline_free=("out",),
        inputs=tensors(x="batch channels height width", weight="channels", bias="channels"),
        outputs=tensors(out="batch channels height width", mean="batch sets", rstd="batch sets"),
        derived=DERIVED,
        gpu=gpu("bfloat16 float32 float16", eps=EPS),
        emulated=emulated("float32 bfloat16 float16", eps=EPS),
        awkward=(
            *rotated("float32 bfloat16 float16", at(1, 1, 1, 1), at(33, 31, 1, 1), at(1, 2, 1, 257), groups=1, eps=EPS),
            *rotated("bfloat16 float32", at(5, 6, 17, 13), at(2, 9, 1, 31), at(1, 33, 31, 33), groups=3, eps=EPS),
        ),
        valid=divides,
        draw=draw_apart,
        nan_spreads=True,  # `nan_spreads` also holds in groups of one element
        arranged=far_from_zero("x"),
        flops=lambda dims: 8 * dims["batch"] * dims["channels"] * dims["height"] * dims["width"],
        # The default factor suffices: the reference sums in float32 and rounds once.
        tolerance=Tolerance(sums="per_group", independent=("batch", "sets")),
        backward=("group_norm_backward",),
    ),
    Op(
        name="group_norm_backward",
        note="With n = (x - mean) * rstd and g = grad_out * weight: grad_x = rstd * (g - mean(g) - n * mean(g * n)), "
        "means over the per_group values of a set, see group_norm; grad_weight = sum over batch, height and width of "
        "grad_out * n, grad_bias of grad_out. mean and rstd are taken as they are given, rounded to the dtype.",
        reference=group_norm_backward,
        inputs=tensors(
            grad_out="batch channels height width", x="batch channels height width", mean="batch sets",
            rstd="batch sets", weight="channels",
        ),
        outputs=tensors(grad_x="batch channels height width", grad_weight="channels", grad_bias="channels"),
        derived={**DERIVED, **PER_CHANNEL},
        gpu=gpu("bfloat16 float32"),  # in float16 a sum of gradients over all images overflows
        emulated=emulated("float32 bfloat16"),
        awkward=(
            *rotated("float32 bfloat16", at(33, 31, 1, 1), at(1, 2, 1, 257), groups=1),
            *rotated("bfloat16 float32", at(5, 6, 17, 13), at(2, 9, 1, 31), at(1, 33, 31, 33), groups=3),
        ),
        valid=divides_and_is_many,
        draw=draw_statistics,
        values=VARIED,
        arranged=constant_sets("x", save_statistics, by_group),
        flops=lambda dims: 14 * dims["batch"] * dims["channels"] * dims["height"] * dims["width"],
        # The default factor suffices: PyTorch also sums in float32.
        tolerance=Tolerance(sums="per_channel"),
    ),
)  # fmt: skip
