"""A tiny op for tests: every element doubled, beside their number of halves."""

import torch

from reference_ops.op import Op, tensors, workloads


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


op = Op(
    name="twice",
    reference=twice,
    inputs=tensors(x="n"),
    outputs=tensors(out="n"),
    gpu=workloads("float32 bfloat16", {"n": 1 << 20}),
    emulated=workloads("float32 bfloat16", {"n": 4096}),
    awkward=workloads("float32", {"n": 1}, {"n": 1009}),
    flops=lambda dims: dims["n"],
)
