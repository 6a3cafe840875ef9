"""The k largest of each row, and where they stand."""

import torch

from reference_ops.op import Op, Tolerance, tensors, workloads


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = torch.sort(x, dim=-1, descending=True, stable=True)
    return ordered.values[:, :k].contiguous(), ordered.indices[:, :k].contiguous()


def of_torch(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(x, k, dim=-1)
    return values, indices


op = Op(
    name="topk",
    note="Values in descending order with their int64 indices; of equal values (-0.0 equals 0.0) the one with the "
    "lower index comes first.",
    reference=topk,
    baseline=of_torch,
    inputs=tensors(x="rows cols"),
    outputs=tensors(values="rows k", indices="int64[rows k]"),
    gpu=(),
    emulated=(),
    flops=lambda dims: dims["rows"] * dims["cols"],
    tolerance=Tolerance(exact=True),  # a selection computes nothing, so nothing is rounded
)
