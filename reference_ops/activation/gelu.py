"""Exact GELU: x times the cumulative distribution function of the standard normal distribution at x."""

import torch
from torch.nn import functional

from reference_ops.op import Op, rotated, tensors, workloads


def gelu(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x)


op = Op(
    name="gelu",
    note="Exact GELU (erf), elementwise over n contiguous values.",
    reference=gelu,
    inputs=tensors(x="n"),
    outputs=tensors(out="n"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"n": 2**26}),
        *workloads("bfloat16 float32", {"n": 16384 * 3072}),  # a transformer's hidden layer, 16384 tokens
        *workloads("bfloat16", {"n": 2**22}),
    ),
    emulated=workloads("float32 bfloat16 float16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}),
    awkward=rotated("float32 bfloat16 float16", {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, {"n": 4095}, {"n": 4097}),
    # An erf is a polynomial of degree six or more, with a multiplication and an addition per degree.
    flops=lambda dims: 16 * dims["n"],
    backward=("gelu_backward",),
    # The default factor suffices: PyTorch evaluates in float32 and rounds once, as a kernel can.
)
