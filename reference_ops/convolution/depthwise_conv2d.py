"""The depthwise 2d convolution of MobileNet and ConvNeXt, with one filter per channel, and its gradients."""

import torch
from torch.nn import functional

from reference_ops.convolution._points import (
    LONG_SUMS,
    OF_PADDING,
    SUMS_OF_BATCHES,
    as_parameters,
    near_zero_bias,
    out_size,
    product,
    same,
)
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import rounded_once


def depthwise_conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    return functional.conv2d(x, weight, bias, stride=stride, padding=padding, groups=len(weight))


def depthwise_conv2d_backward_data(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, height: int, width: int
) -> torch.Tensor:
    batch, channels, _, _ = grad_out.shape
    x = grad_out.new_empty(1).expand(batch, channels, height, width)  # only the shape of this tensor matters
    strides, paddings = (stride, stride), (padding, padding)
    grad_x: torch.Tensor = torch.ops.aten.convolution_backward(
        grad_out, x, weight, None, strides, paddings, (1, 1), False, (0, 0), channels, (True, False, False)
    )[0]
    return grad_x


def depthwise_conv2d_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, stride: int, padding: int, r: int, s: int
) -> tuple[torch.Tensor, torch.Tensor]:
    channels = x.shape[1]
    weight = x.new_empty(1).expand(channels, 1, r, s)  # only the shape of this tensor matters
    strides, paddings = (stride, stride), (padding, padding)
    _, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad_out, x, weight, (channels,), strides, paddings, (1, 1), False, (0, 0), channels, (False, True, True)
    )
    return grad_weight, grad_bias


def at(batch: int, channels: int, height: int, width: int, *window: int) -> dict[str, int]:
    r, s = window * 2 if len(window) == 1 else window
    return {"batch": batch, "channels": channels, "height": height, "width": width, "r": r, "s": s}


OUTPUT = {"oh": out_size("height", "r"), "ow": out_size("width", "s")}
MULTIPLY_ADDS = product("batch", "channels", "oh", "ow", "r", "s")
GPU = (
    *workloads("bfloat16 float32 float16", at(64, 256, 56, 56, 3), stride=1, padding=1),
    *workloads("bfloat16", at(64, 96, 56, 56, 7), stride=1, padding=3),  # ConvNeXt, its first and its third stage
    *workloads("bfloat16", at(64, 384, 14, 14, 7), stride=1, padding=3),
    *workloads("float32", at(64, 144, 56, 56, 3), stride=2, padding=1),  # MobileNet
    *workloads("float32", at(13, 67, 45, 61, 5, 3), stride=1, padding=2),
)
EMULATED = (
    *workloads("float32 bfloat16 float16", at(2, 8, 16, 16, 3), stride=1, padding=1),
    *workloads("float32 bfloat16", at(2, 6, 15, 17, 7), stride=1, padding=3),
    *workloads("float32", at(2, 6, 13, 12, 5), stride=2, padding=2),
)
AWKWARD = (
    *rotated("float32 bfloat16", at(1, 1, 1, 1, 1), at(3, 33, 5, 7, 3, 2), stride=1, padding=0),
    *rotated("float16 float32", at(1, 31, 7, 11, 5), at(5, 2, 33, 31, 2, 7), stride=3, padding=2),
)

ops = (
    Op(
        name="depthwise_conv2d",
        note="out[n, c, y, x] = bias[c] + sum over i, j of weight[c, 0, i, j] * x[n, c, y * stride - padding + i, "
        "x * stride - padding + j], where x is 0 outside.",
        reference=depthwise_conv2d,
        inputs=tensors(x="batch channels height width", weight="channels 1 r s", bias="channels"),
        outputs=tensors(out="batch channels oh ow"),
        derived={**OUTPUT, "taps": product("r", "s")},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=LONG_SUMS,
        draw=near_zero_bias,
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        tolerance=Tolerance(sums="taps"),  # the default factor suffices for a sum in float32, rounded once
        backward=("depthwise_conv2d_backward_data", "depthwise_conv2d_backward_weight"),
    ),
    Op(
        name="depthwise_conv2d_backward_data",
        note="grad_x[n, c, y, x] = sum over i, j of weight[c, 0, i, j] * grad_out[n, c, (y + padding - i) / stride, "
        "(x + padding - j) / stride], where both divisions have no remainder and the results are inside grad_out.",
        reference=rounded_once(depthwise_conv2d_backward_data),
        baseline=depthwise_conv2d_backward_data,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch channels oh ow", weight="channels 1 r s"),
        outputs=tensors(grad_x="batch channels height width"),
        # The size of x does not follow from that of grad_out: a stride may skip its last row and column.
        derived={**same("height width"), **OUTPUT, "taps": product("r", "s")},
        gpu=as_parameters("height width", GPU),
        emulated=as_parameters("height width", EMULATED),
        awkward=as_parameters("height width", AWKWARD),
        values=LONG_SUMS,
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        tolerance=Tolerance(sums="taps"),  # the default factor suffices for a sum in float32, rounded once
    ),
    Op(
        name="depthwise_conv2d_backward_weight",
        note="grad_weight[c, 0, i, j] = sum over n, y, x of grad_out[n, c, y, x] * x[n, c, y * stride - padding + i, "
        "x * stride - padding + j], where x is 0 outside. grad_bias[c] = sum over n, y, x of grad_out[n, c, y, x].",
        reference=rounded_once(depthwise_conv2d_backward_weight),
        baseline=depthwise_conv2d_backward_weight,
        baseline_free=("grad_weight", "grad_bias"),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch channels oh ow", x="batch channels height width"),
        outputs=tensors(grad_weight="channels 1 r s", grad_bias="channels"),
        derived={**same("r s"), **OUTPUT, "terms": product("batch", "oh", "ow")},
        gpu=as_parameters("r s", GPU),
        emulated=as_parameters("r s", EMULATED),
        awkward=as_parameters("r s", AWKWARD),
        values=SUMS_OF_BATCHES,
        by_rows=False,
        exempt=OF_PADDING,
        flops=lambda dims: 2 * MULTIPLY_ADDS(dims),
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
)
