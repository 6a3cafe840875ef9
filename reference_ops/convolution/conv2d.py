"""The 2d convolution of residual networks and autoencoders, and its gradients."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import (
    LONG_SUMS,
    OF_PADDING,
    SUMS_OF_BATCHES,
    as_parameters,
    image,
    multiply_adds,
    out_size,
    product,
    same,
)
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import rounded_once


def conv2d(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    return functional.conv2d(x, weight, stride=stride, padding=padding)


def conv2d_backward_data(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, height: int, width: int
) -> torch.Tensor:
    # only the shape of this tensor matters
    x = grad_out.new_empty(1).expand(len(grad_out), weight.shape[1], height, width)
    strides, paddings = (stride, stride), (padding, padding)
    grad_x: torch.Tensor = torch.ops.aten.convolution_backward(
        grad_out, x, weight, None, strides, paddings, (1, 1), False, (0, 0), 1, (True, False, False)
    )[0]
    return grad_x


def conv2d_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, stride: int, padding: int, r: int, s: int
) -> torch.Tensor:
    weight = x.new_empty(1).expand(grad_out.shape[1], x.shape[1], r, s)  # only the shape of this tensor matters
    strides, paddings = (stride, stride), (padding, padding)
    grad_weight: torch.Tensor = torch.ops.aten.convolution_backward(
        grad_out, x, weight, None, strides, paddings, (1, 1), False, (0, 0), 1, (False, True, False)
    )[1]
    return grad_weight


OUTPUT = {"oh": out_size("height", "r"), "ow": out_size("width", "s")}
GPU = (
    *workloads("bfloat16 float32 float16", image(64, 64, 56, 56, 64, 3), stride=1, padding=1),  # ResNet-50
    *workloads("bfloat16", image(128, 512, 7, 7, 512, 3), stride=1, padding=1),
    *workloads("float32", image(64, 128, 56, 56, 128, 3), stride=2, padding=1),
    *workloads("bfloat16", image(1, 256, 256, 256, 256, 3), stride=1, padding=1),  # the decoder of Stable Diffusion
    *workloads("bfloat16", image(13, 61, 45, 67, 101, 3, 5), stride=2, padding=2),
)
STEM = workloads("bfloat16", image(128, 3, 224, 224, 64, 7), stride=2, padding=3)  # the first layer of a ResNet
EMULATED = (
    *workloads("float32 bfloat16 float16", image(2, 8, 9, 9, 16, 3), stride=1, padding=1),
    *workloads("float32 bfloat16", image(2, 3, 19, 17, 8, 7), stride=2, padding=3),
)
AWKWARD = (
    *rotated("float32 bfloat16 float16", image(1, 1, 1, 1, 1, 1), image(3, 33, 6, 5, 65, 1), image(1, 31, 7, 9, 2, 3),
             stride=1, padding=0),
    *rotated("bfloat16 float32", image(3, 5, 11, 13, 31, 5, 2), image(1, 2, 33, 31, 63, 3), stride=3, padding=2),
    *rotated("float16 float32", image(2, 7, 6, 8, 3, 4, 1), stride=2, padding=1),
)  # fmt: skip
ops = (
    Op(
        name="conv2d",
        note="out[n, k, y, x] = sum over c, i, j of weight[k, c, i, j] * x[n, c, y * stride - padding + i, "
        "x * stride - padding + j], where x is 0 outside. No bias. In float32 PyTorch multiplies in TF32.",
        reference=conv2d,
        inputs=tensors(x="batch channels height width", weight="filters channels r s"),
        outputs=tensors(out="batch filters oh ow"),
        derived={**OUTPUT, "terms": product("channels", "r", "s")},
        gpu=(*GPU, *STEM),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=LONG_SUMS,
        flops=product("batch", "filters", "oh", "ow"),
        matrix_flops=multiply_adds,
        arranged=opposed(x=1, weight=1),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
        backward=("conv2d_backward_data", "conv2d_backward_weight"),
    ),
    Op(
        name="conv2d_backward_data",
        note="grad_x[n, c, y, x] = sum over k, i, j of weight[k, c, i, j] * grad_out[n, k, (y + padding - i) / stride, "
        "(x + padding - j) / stride], where both divisions are without remainder and inside.",
        reference=rounded_once(conv2d_backward_data),
        baseline=conv2d_backward_data,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch filters oh ow", weight="filters channels r s"),
        outputs=tensors(grad_x="batch channels height width"),
        # The size of x does not follow from that of grad_out: a stride may skip its last row and column.
        derived={**same("height width"), **OUTPUT, "terms": product("filters", "r", "s")},
        gpu=as_parameters("height width", GPU),
        emulated=as_parameters("height width", EMULATED),
        awkward=as_parameters("height width", AWKWARD),
        values=LONG_SUMS,
        flops=product("batch", "channels", "height", "width"),
        matrix_flops=multiply_adds,
        arranged=opposed(grad_out=1, weight=0),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
    Op(
        name="conv2d_backward_weight",
        note="grad_weight[k, c, i, j] = sum over n, y, x of grad_out[n, k, y, x] * x[n, c, y * stride - padding + i, "
        "x * stride - padding + j], where x is 0 outside.",
        reference=rounded_once(conv2d_backward_weight),
        baseline=conv2d_backward_weight,
        baseline_free=("grad_weight",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch filters oh ow", x="batch channels height width"),
        outputs=tensors(grad_weight="filters channels r s"),
        derived={**same("r s"), **OUTPUT, "terms": product("batch", "oh", "ow")},
        gpu=as_parameters("r s", (*GPU, *STEM)),
        emulated=as_parameters("r s", EMULATED),
        awkward=as_parameters("r s", AWKWARD),
        values=SUMS_OF_BATCHES,
        by_rows=False,
        exempt=OF_PADDING,
        flops=product("filters", "channels", "r", "s"),
        matrix_flops=multiply_adds,
        arranged=opposed(grad_out=0, x=0),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
)
