"""The 2d convolution with channels innermost, the layout that suits tensor cores best, and its gradients."""

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


def as_torch(tensor: torch.Tensor) -> torch.Tensor:
    """View as PyTorch's channels_last: of shape [batch, channels, height, width], with channels innermost in memory."""
    return tensor.permute(0, 3, 1, 2)


def from_torch(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 2, 3, 1).contiguous()


def conv2d_channels_last(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    return from_torch(functional.conv2d(as_torch(x), as_torch(weight), stride=stride, padding=padding))


def conv2d_channels_last_backward_data(
    grad_out: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, height: int, width: int
) -> torch.Tensor:
    # only the shape of this tensor matters
    x = grad_out.new_empty(1).expand(len(grad_out), weight.shape[3], height, width)
    window = (stride, stride), (padding, padding), (1, 1), False, (0, 0), 1
    grad_x: torch.Tensor = torch.ops.aten.convolution_backward(
        as_torch(grad_out), x, as_torch(weight), None, *window, (True, False, False)
    )[0]
    return from_torch(grad_x)


def conv2d_channels_last_backward_weight(
    grad_out: torch.Tensor, x: torch.Tensor, stride: int, padding: int, r: int, s: int
) -> torch.Tensor:
    weight = x.new_empty(1).expand(grad_out.shape[3], x.shape[3], r, s)  # only the shape of this tensor matters
    window = (stride, stride), (padding, padding), (1, 1), False, (0, 0), 1
    grad_weight: torch.Tensor = torch.ops.aten.convolution_backward(
        as_torch(grad_out), as_torch(x), weight, None, *window, (False, True, False)
    )[1]
    return from_torch(grad_weight)


OUTPUT = {"oh": out_size("height", "r"), "ow": out_size("width", "s")}
GPU = (
    *workloads("bfloat16 float32 float16", image(64, 64, 56, 56, 64, 3), stride=1, padding=1),  # ResNet-50
    *workloads("bfloat16", image(64, 256, 14, 14, 256, 3), stride=1, padding=1),
    *workloads("bfloat16", image(1, 256, 256, 256, 256, 3), stride=1, padding=1),  # Stable Diffusion's decoder
    *workloads("bfloat16", image(64, 256, 56, 56, 512, 1), stride=2, padding=0),
    *workloads("float32", image(13, 61, 45, 67, 101, 3, 5), stride=2, padding=2),
)
EMULATED = (
    *workloads("float32 bfloat16 float16", image(2, 8, 9, 9, 16, 3), stride=1, padding=1),
    *workloads("float32 bfloat16", image(2, 3, 19, 17, 8, 7), stride=2, padding=3),
)
AWKWARD = (
    *rotated("float32 bfloat16", image(1, 1, 1, 1, 1, 1), image(3, 33, 6, 5, 65, 1), stride=1, padding=0),
    *rotated("bfloat16 float32", image(3, 5, 11, 13, 31, 5, 2), image(1, 2, 33, 31, 63, 3), stride=3, padding=2),
    *rotated("float16 float32", image(2, 7, 6, 8, 3, 4, 1), stride=2, padding=1),
)

ops = (
    Op(
        name="conv2d_channels_last",
        note="out[n, y, x, k] = sum over i, j, c of weight[k, i, j, c] * x[n, y * stride - padding + i, "
        "x * stride - padding + j, c], where x is 0 outside. No bias. In float32 PyTorch multiplies in TF32.",
        reference=conv2d_channels_last,
        inputs=tensors(x="batch height width channels", weight="filters r s channels"),
        outputs=tensors(out="batch oh ow filters"),
        derived={**OUTPUT, "terms": product("r", "s", "channels")},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=LONG_SUMS,
        flops=product("batch", "filters", "oh", "ow"),
        matrix_flops=multiply_adds,
        arranged=opposed(x=3, weight=3),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
        backward=("conv2d_channels_last_backward_data", "conv2d_channels_last_backward_weight"),
    ),
    Op(
        name="conv2d_channels_last_backward_data",
        note="grad_x[n, y, x, c] = sum over i, j, k of weight[k, i, j, c] * grad_out[n, (y + padding - i) / stride, "
        "(x + padding - j) / stride, k], where both divisions are without remainder and inside.",
        reference=rounded_once(conv2d_channels_last_backward_data),
        baseline=conv2d_channels_last_backward_data,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch oh ow filters", weight="filters r s channels"),
        outputs=tensors(grad_x="batch height width channels"),
        # The size of x does not follow from that of grad_out: a stride may skip its last row and column.
        derived={**same("height width"), **OUTPUT, "terms": product("r", "s", "filters")},
        gpu=as_parameters("height width", GPU),
        emulated=as_parameters("height width", EMULATED),
        awkward=as_parameters("height width", AWKWARD),
        values=LONG_SUMS,
        flops=product("batch", "channels", "height", "width"),
        matrix_flops=multiply_adds,
        arranged=opposed(grad_out=3, weight=0),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
    Op(
        name="conv2d_channels_last_backward_weight",
        note="grad_weight[k, i, j, c] = sum over n, y, x of grad_out[n, y, x, k] * x[n, y * stride - padding + i, "
        "x * stride - padding + j, c], where x is 0 outside.",
        reference=rounded_once(conv2d_channels_last_backward_weight),
        baseline=conv2d_channels_last_backward_weight,
        baseline_free=("grad_weight",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out="batch oh ow filters", x="batch height width channels"),
        outputs=tensors(grad_weight="filters r s channels"),
        derived={**same("r s"), **OUTPUT, "terms": product("batch", "oh", "ow")},
        gpu=as_parameters("r s", GPU),
        emulated=as_parameters("r s", EMULATED),
        awkward=as_parameters("r s", AWKWARD),
        values=SUMS_OF_BATCHES,
        by_rows=False,
        exempt=OF_PADDING,
        flops=product("filters", "r", "s", "channels"),
        matrix_flops=multiply_adds,
        arranged=opposed(grad_out=0, x=0),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
)
