"""The 3d convolution of video and of medical volumes."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import LONG_SUMS, out_size, product
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads


def conv3d(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    return functional.conv3d(x, weight, stride=stride, padding=padding)


def at(batch: int, channels: int, volume: tuple[int, int, int], filters: int, *window: int) -> dict[str, int]:
    depth, height, width = volume
    q, r, s = window * 3 if len(window) == 1 else window
    sizes = {"batch": batch, "channels": channels, "depth": depth, "height": height, "width": width}
    return {**sizes, "filters": filters, "q": q, "r": r, "s": s}


op = Op(
    name="conv3d",
    note="out[n, k, z, y, x] = sum over c, h, i, j of weight[k, c, h, i, j] * x[n, c, z * stride - padding + h, "
    "y * stride - padding + i, x * stride - padding + j], where x is 0 outside. No bias. "
    "In float32 PyTorch multiplies in TF32.",
    reference=conv3d,
    inputs=tensors(x="batch channels depth height width", weight="filters channels q r s"),
    outputs=tensors(out="batch filters od oh ow"),
    derived={
        "od": out_size("depth", "q"),
        "oh": out_size("height", "r"),
        "ow": out_size("width", "s"),
        "terms": product("channels", "q", "r", "s"),
    },
    gpu=(
        *workloads("bfloat16 float32 float16", at(8, 32, (32, 32, 32), 32, 3), stride=1, padding=1),
        *workloads("bfloat16", at(8, 64, (8, 56, 56), 64, 3), stride=1, padding=1),  # a 3d ResNet
        *workloads("float32", at(2, 32, (64, 64, 64), 64, 3), stride=2, padding=1),  # the encoder of a 3d U-Net
        *workloads("bfloat16", at(1, 128, (9, 64, 64), 128, 3), stride=1, padding=1),  # a video's autoencoder
        *workloads("bfloat16", at(3, 29, (13, 31, 37), 67, 3, 2, 5), stride=1, padding=2),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(2, 4, (5, 6, 7), 8, 3), stride=1, padding=1),
        *workloads("float32 bfloat16", at(1, 3, (7, 9, 8), 8, 2, 3, 4), stride=2, padding=1),
    ),
    awkward=(
        *rotated("float32 bfloat16", at(1, 1, (1, 1, 1), 1, 1), at(1, 33, (2, 5, 3), 65, 1, 2, 3), stride=1, padding=0),
        *rotated(
            "float16 float32", at(3, 5, (3, 7, 11), 31, 1, 3, 5), at(1, 1, (2, 33, 31), 3, 3), stride=3, padding=2
        ),
        *rotated("float32", at(2, 3, (1, 5, 7), 5, 1, 3, 3), stride=1, padding=1),  # one image under one tap
    ),
    values=LONG_SUMS,
    flops=product("batch", "filters", "od", "oh", "ow"),
    matrix_flops=lambda dims: 2 * product("batch", "filters", "od", "oh", "ow", "channels", "q", "r", "s")(dims),
    arranged=opposed(x=1, weight=1),
    tf32=True,
    tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
)
