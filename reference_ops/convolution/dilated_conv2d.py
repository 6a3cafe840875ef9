"""The dilated 2d convolution of segmentation networks: a wide window with few taps."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import LONG_SUMS, image, multiply_adds, product
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import in_float32_on_cpu

# in bfloat16 on a CPU, PyTorch crashes if a dilation exceeds the image
convolve = in_float32_on_cpu(functional.conv2d, (torch.bfloat16,))


def dilated_conv2d(x: torch.Tensor, weight: torch.Tensor, padding: int, dilation: int) -> torch.Tensor:
    return convolve(x, weight, padding=padding, dilation=dilation)


op = Op(
    name="dilated_conv2d",
    note="out[n, k, y, x] = sum over c, i, j of weight[k, c, i, j] * x[n, c, y - padding + i * dilation, "
    "x - padding + j * dilation], where x is 0 outside. No bias. In float32 PyTorch multiplies in TF32.",
    reference=dilated_conv2d,
    inputs=tensors(x="batch channels height width", weight="filters channels r s"),
    outputs=tensors(out="batch filters oh ow"),
    derived={
        "oh": lambda known: known["height"] + 2 * known["padding"] - known["dilation"] * (known["r"] - 1),
        "ow": lambda known: known["width"] + 2 * known["padding"] - known["dilation"] * (known["s"] - 1),
        "terms": product("channels", "r", "s"),
    },
    gpu=(
        *workloads("bfloat16 float32 float16", image(16, 256, 33, 33, 256, 3), padding=2, dilation=2),  # DeepLab
        *workloads("bfloat16", image(4, 512, 65, 65, 512, 3), padding=4, dilation=4),
        *workloads("float32", image(2, 2048, 33, 33, 256, 3), padding=12, dilation=12),
        *workloads("bfloat16", image(7, 61, 45, 67, 101, 3, 5), padding=5, dilation=3),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", image(2, 8, 9, 9, 16, 3), padding=2, dilation=2),
        *workloads("float32 bfloat16", image(1, 12, 17, 19, 8, 3), padding=5, dilation=5),
    ),
    awkward=(
        *rotated("float32 bfloat16", image(1, 1, 1, 1, 1, 1), image(1, 33, 9, 7, 65, 3, 2), padding=0, dilation=3),
        *rotated("float16 float32", image(3, 31, 7, 11, 2, 3), image(1, 2, 31, 33, 63, 2, 5), padding=4, dilation=4),
        *rotated("float32", image(2, 5, 7, 9, 6, 3, 2), padding=0, dilation=1),  # the first of several dilations
        *rotated("float32", image(2, 3, 9, 11, 5, 3), padding=6, dilation=6),  # most taps miss the image, but not all
    ),
    values=LONG_SUMS,
    flops=product("batch", "filters", "oh", "ow"),
    matrix_flops=multiply_adds,
    arranged=opposed(x=1, weight=1),
    tf32=True,
    tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
)
