"""The causal depthwise convolution of Mamba and its kin: each channel sees its own present and past."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.op import Op, rotated, tensors, workloads
from reference_ops.values import COMMON


def causal_conv1d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    channels, width = weight.shape
    padded = functional.pad(x, ((width - 1) * dilation, 0))
    return functional.conv1d(padded, weight.unsqueeze(1), bias, groups=channels, dilation=dilation)


def padded_and_cut(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, dilation: int) -> torch.Tensor:
    """How model code calls it: padded at both ends, the surplus cut off."""
    channels, width = weight.shape
    padding = (width - 1) * dilation
    out = functional.conv1d(x, weight.unsqueeze(1), bias, padding=padding, groups=channels, dilation=dilation)
    return out[..., : x.shape[-1]]


def padding(dims: Mapping[str, int]) -> int:
    return (dims["width"] - 1) * dims["dilation"]


def at(batch: int, channels: int, length: int, width: int = 4) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "length": length, "width": width}


op = Op(
    name="causal_conv1d",
    note="out[b, c, t] = bias[c] + sum over j of weight[c, j] * x[b, c, t - padding + j * dilation], "
    "where x is 0 before t = 0.",
    reference=causal_conv1d,
    baseline=padded_and_cut,
    inputs=tensors(x="batch channels length", weight="channels width", bias="channels"),
    outputs=tensors(out="batch channels length"),
    derived={"padding": padding},
    gpu=(
        *workloads("bfloat16 float32 float16", at(8, 4096, 4096), dilation=1),
        *workloads("bfloat16 float32", at(8, 5120, 2048), dilation=1),
        *workloads("bfloat16", at(8, 2048, 8192, 3), dilation=2),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(2, 8, 1024), at(1, 24, 288), dilation=1),
        *workloads("float32 bfloat16", at(2, 4, 512, 3), dilation=2),
    ),
    awkward=(
        *rotated("float32 bfloat16 float16", at(1, 1, 1), at(2, 3, 31), at(3, 5, 33, 3), at(1, 7, 1009), dilation=1),
        *rotated("bfloat16 float32", at(2, 3, 40, 5), at(1, 2, 257, 2), dilation=3),
    ),
    values=(*COMMON, "integers"),  # linear in x and in the weights
    flops=lambda dims: 2 * dims["batch"] * dims["channels"] * dims["length"] * dims["width"],
    # The default factor: a sum of a few products in float32, rounded once.
)
