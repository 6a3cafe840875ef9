"""The causal depthwise convolution of Mamba, in which results depend only on earlier positions, and its gradients."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.convolution._points import OF_PADDING, SUMS_OF_BATCHES, as_parameters, near_zero_bias, product, same
from reference_ops.op import COMMON, OF_PRODUCTS, Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import rounded_once


def causal_conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    channels, width = weight.shape
    padded = functional.pad(x, ((width - 1) * dilation, 0))
    return functional.conv1d(padded, weight.unsqueeze(1), bias, groups=channels, dilation=dilation)


def padded_and_cut(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    """Compute the convolution as model code does: padded at both ends, with the excess cut off."""
    channels, width = weight.shape
    padding = (width - 1) * dilation
    out = functional.conv1d(x, weight.unsqueeze(1), bias, padding=padding, groups=channels, dilation=dilation)
    return out[..., : x.shape[-1]]


def causal_conv1d_backward_data(grad_out: torch.Tensor, weight: torch.Tensor, dilation: int) -> torch.Tensor:
    batch, channels, length = grad_out.shape
    left = (weight.shape[1] - 1) * dilation
    x = grad_out.new_empty(1).expand(batch, channels, left + length)  # only the shape of this tensor matters
    grad_padded: torch.Tensor = torch.ops.aten.convolution_backward(
        grad_out, x, weight.unsqueeze(1), None, (1,), (0,), (dilation,), False, (0,), channels, (True, False, False)
    )[0]
    return grad_padded[..., left:].contiguous()


def causal_conv1d_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, dilation: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    channels = x.shape[1]
    padded = functional.pad(x, ((width - 1) * dilation, 0))
    weight = x.new_empty(1).expand(channels, 1, width)  # only the shape of this tensor matters
    _, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad_out, padded, weight, (channels,), (1,), (0,), (dilation,), False, (0,), channels, (False, True, True)
    )
    return grad_weight.squeeze(1), grad_bias


def padding(dims: Mapping[str, int]) -> int:
    return (dims["width"] - 1) * dims["dilation"]


def at(batch: int, channels: int, length: int, width: int = 4) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "length": length, "width": width}


GPU = (
    *workloads("bfloat16 float32 float16", at(8, 4096, 4096), dilation=1),
    *workloads("bfloat16 float32", at(8, 5120, 2048), dilation=1),
    *workloads("bfloat16", at(8, 2048, 8192, 3), dilation=2),
)
EMULATED = (
    *workloads("float32 bfloat16 float16", at(2, 8, 1024), at(1, 24, 288), dilation=1),
    *workloads("float32 bfloat16", at(2, 4, 512, 3), dilation=2),
)
AWKWARD = (
    *rotated("float32 bfloat16 float16", at(1, 1, 1), at(2, 3, 31), at(3, 5, 33, 3), at(1, 7, 1009), dilation=1),
    *rotated("bfloat16 float32", at(2, 3, 40, 5), at(1, 2, 257, 2), at(3, 2, 65, 1), dilation=3),
    *rotated("float32", at(2, 3, 257, 3), dilation=64),  # as in WaveNet
)
MULTIPLY_ADDS = product("batch", "channels", "length", "width")

ops = (
    Op(
        name="causal_conv1d",
        note="out[b, c, t] = bias[c] + sum over j of weight[c, j] * x[b, c, t - padding + j * dilation], "
        "where x is 0 before t = 0.",
        reference=causal_conv1d,
        baseline=padded_and_cut,
        inputs=tensors(x="batch channels length", weight="channels width", bias="channels"),
        outputs=tensors(out="batch channels length"),
        derived={"padding": padding},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=(*COMMON, "vast", "integers"),  # the op is linear in x and in the weights
        draw=near_zero_bias,
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        # The default factor suffices for a sum of a few products in float32, rounded once.
        backward=("causal_conv1d_backward_data", "causal_conv1d_backward_weight"),
    ),
    Op(
        name="causal_conv1d_backward_data",
        note="grad_x[b, c, t] = sum over j of weight[c, j] * grad_out[b, c, t + padding - j * dilation], "
        "where grad_out is 0 from t = length on.",
        reference=rounded_once(causal_conv1d_backward_data),
        baseline=causal_conv1d_backward_data,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch channels length", weight="channels width"),
        outputs=tensors(grad_x="batch channels length"),
        derived={"padding": padding},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=(*OF_PRODUCTS, "integers"),  # the gradient is linear in both factors
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        # The default factor suffices for a sum of a few products in float32, rounded once.
    ),
    Op(
        name="causal_conv1d_backward_weight",
        note="grad_weight[c, j] = sum over b, t of grad_out[b, c, t] * x[b, c, t - padding + j * dilation], "
        "where x is 0 before t = 0. grad_bias[c] = sum over b, t of grad_out[b, c, t].",
        reference=rounded_once(causal_conv1d_backward_weight),
        baseline=causal_conv1d_backward_weight,
        baseline_free=("grad_weight", "grad_bias"),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch channels length", x="batch channels length"),
        outputs=tensors(grad_weight="channels width", grad_bias="channels"),
        derived={**same("width"), "padding": padding, "terms": product("batch", "length")},
        gpu=as_parameters("width", GPU),
        emulated=as_parameters("width", EMULATED),
        awkward=as_parameters("width", AWKWARD),
        values=SUMS_OF_BATCHES,
        by_rows=False,
        exempt=OF_PADDING,
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
)
