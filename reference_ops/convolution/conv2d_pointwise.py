"""The 1 x 1 convolution, a matrix product at every pixel. It is most of the work in a ResNet's bottlenecks."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import LONG_SUMS, product
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def conv2d_pointwise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.conv2d(x, weight)


def at(batch: int, channels: int, height: int, width: int, filters: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "height": height, "width": width, "filters": filters}


op = Op(
    name="conv2d_pointwise",
    note="out[n, k, y, x] = sum over c of weight[k, c, 0, 0] * x[n, c, y, x]. No bias. In float32 PyTorch multiplies "
    "in TF32.",
    reference=conv2d_pointwise,
    inputs=tensors(x="batch channels height width", weight="filters channels 1 1"),
    outputs=tensors(out="batch filters height width"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(64, 64, 56, 56, 256)),  # ResNet-50, after and before a bottleneck
        *workloads("bfloat16", at(64, 1024, 14, 14, 256), at(128, 512, 7, 7, 2048)),
        *workloads("float32", at(64, 96, 56, 56, 24)),  # MobileNet
        *workloads("bfloat16", at(13, 67, 45, 67, 101)),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(2, 40, 9, 9, 48)),
        *workloads("float32 bfloat16", at(3, 97, 5, 7, 12)),
    ),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1, 1), at(1, 33, 31, 1, 65), at(3, 1, 7, 33, 3), at(1, 257, 3, 5, 63), at(5, 31, 1, 2, 64),
    ),
    values=LONG_SUMS,
    flops=product("batch", "filters", "height", "width"),
    matrix_flops=lambda dims: 2 * product("batch", "filters", "height", "width", "channels")(dims),
    arranged=opposed(x=1, weight=1),
    tf32=True,
    tolerance=Tolerance(sums="channels"),  # the default factor suffices for a sum in float32, rounded once
)  # fmt: skip
