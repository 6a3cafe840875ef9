"""The 1d convolution of speech encoders and of dilated networks over time."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import LONG_SUMS, out_size, product
from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import in_float32_on_cpu

# in bfloat16 on a CPU, PyTorch crashes if a dilation exceeds the image
convolve = in_float32_on_cpu(functional.conv1d, (torch.bfloat16,))


def conv1d(x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, dilation: int) -> torch.Tensor:
    return convolve(x, weight, stride=stride, padding=padding, dilation=dilation)


def at(batch: int, channels: int, length: int, filters: int, taps: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "length": length, "filters": filters, "taps": taps}


op = Op(
    name="conv1d",
    note="out[n, k, t] = sum over c, j of weight[k, c, j] * x[n, c, t * stride - padding + j * dilation], where x is 0 "
    "outside. No bias. In float32 PyTorch multiplies in TF32.",
    reference=conv1d,
    inputs=tensors(x="batch channels length", weight="filters channels taps"),
    outputs=tensors(out="batch filters out_length"),
    derived={"out_length": out_size("length", "taps"), "terms": product("channels", "taps")},
    gpu=(
        *workloads("bfloat16 float32 float16", at(8, 1280, 3000, 1280, 3), stride=2, padding=1, dilation=1),  # Whisper
        *workloads("bfloat16 float32", at(8, 512, 12799, 512, 3), stride=2, padding=0, dilation=1),  # wav2vec
        *workloads("bfloat16", at(8, 256, 16000, 256, 3), stride=1, padding=9, dilation=9),  # a codec's decoder
        *workloads("float32", at(13, 61, 4099, 101, 7), stride=3, padding=2, dilation=2),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", at(2, 8, 100, 16, 3), stride=1, padding=1, dilation=1),
        *workloads("float32 bfloat16", at(2, 24, 131, 20, 5), stride=2, padding=4, dilation=3),
    ),
    awkward=(
        *rotated("float32 bfloat16", at(1, 1, 1, 1, 1), at(3, 33, 31, 65, 3), stride=1, padding=1, dilation=1),
        *rotated("float16 float32", at(3, 31, 33, 2, 7), at(1, 1, 257, 63, 2), stride=3, padding=6, dilation=2),
    ),
    values=LONG_SUMS,
    flops=product("batch", "filters", "out_length"),
    matrix_flops=lambda dims: 2 * product("batch", "filters", "out_length", "channels", "taps")(dims),
    arranged=opposed(x=1, weight=1),
    tf32=True,
    tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
)
