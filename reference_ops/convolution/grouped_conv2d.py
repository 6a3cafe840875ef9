"""The grouped 2d convolution of ResNeXt and RegNet: each group of filters reads only its own channels."""

import torch
from torch.nn import functional

from reference_ops.convolution._points import LONG_SUMS, image, out_size, product
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def grouped_conv2d(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, groups: int) -> torch.Tensor:
    return functional.conv2d(x, weight, stride=stride, padding=padding, groups=groups)


op = Op(
    name="grouped_conv2d",
    note="Filter k belongs to group g = k // (filters // groups) and reads the channels from g * group_channels on: "
    "out[n, k, y, x] = sum over c < group_channels, i, j of weight[k, c, i, j] * x[n, g * group_channels + c, "
    "y * stride - padding + i, x * stride - padding + j], where x is 0 outside. No bias. "
    "In float32 PyTorch multiplies in TF32.",
    reference=grouped_conv2d,
    inputs=tensors(x="batch channels height width", weight="filters group_channels r s"),
    outputs=tensors(out="batch filters oh ow"),
    derived={
        "group_channels": lambda known: known["channels"] // known["groups"],
        "oh": out_size("height", "r"),
        "ow": out_size("width", "s"),
        "terms": product("group_channels", "r", "s"),
    },
    valid=lambda known: known["channels"] % known["groups"] == 0 == known["filters"] % known["groups"],
    gpu=(
        *workloads("bfloat16 float32 float16", image(64, 128, 56, 56, 128, 3), stride=1, padding=1, groups=32),
        # both shapes of ResNeXt
        *workloads("bfloat16", image(64, 512, 14, 14, 512, 3), stride=1, padding=1, groups=32),
        *workloads("float32", image(32, 448, 28, 28, 448, 3), stride=2, padding=1, groups=4),  # RegNet
        *workloads("bfloat16", image(7, 65, 45, 67, 105, 3, 5), stride=1, padding=2, groups=5),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", image(2, 16, 9, 9, 16, 3), stride=1, padding=1, groups=4),
        *workloads("float32 bfloat16", image(2, 12, 11, 13, 24, 3), stride=2, padding=1, groups=2),
    ),
    awkward=(
        *rotated("float32 bfloat16", image(1, 1, 1, 1, 1, 1), image(1, 33, 5, 7, 65, 3, 2), stride=1, padding=1,
                 groups=1),
        *rotated("float16 float32", image(3, 15, 7, 9, 93, 3), image(1, 3, 33, 31, 6, 2, 5), stride=3, padding=2,
                 groups=3),
        *rotated("bfloat16", image(2, 62, 6, 5, 31, 3), stride=2, padding=1, groups=31),
    ),
    values=LONG_SUMS,
    flops=product("batch", "filters", "oh", "ow"),
    matrix_flops=lambda dims: 2 * product("batch", "filters", "oh", "ow", "terms")(dims),
    tf32=True,
    tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
)  # fmt: skip
