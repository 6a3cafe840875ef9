"""The k largest elements of each row, and their positions."""

import torch

from reference_ops.arrangements import last_bits, of_order
from reference_ops.op import COMMON, COUNTED_NAN, NAN, Op, Tolerance, rotated, tensors, workloads


def topk(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    ordered = torch.sort(x, dim=-1, descending=True, stable=True)
    return ordered.values[:, :k].contiguous(), ordered.indices[:, :k].contiguous()


def of_torch(x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.topk(x, k, dim=-1)
    return values, indices


op = Op(
    name="topk",
    note="Values in descending order with their int64 indices; of equal values (-0.0 equals 0.0), the one with the "
    "lower index comes first. Rows with NaN are outside the contract.",
    reference=topk,
    baseline=of_torch,
    baseline_free=("indices",),  # PyTorch may select any of equal values
    inputs=tensors(x="rows cols"),
    outputs=tensors(values="rows k", indices="int64[rows k]"),
    derived={"k": lambda known: known["k"]},  # this dim occurs only in an output
    gpu=(
        *workloads("bfloat16 float32", {"rows": 8192, "cols": 32768}, k=8),
        *workloads("bfloat16 float32 float16", {"rows": 32768, "cols": 1024}, k=8),
        *workloads("bfloat16", {"rows": 16384, "cols": 128}, k=8),  # the router of a mixture of experts
        *workloads("bfloat16", {"rows": 256, "cols": 128256}, k=50),  # sampling from a vocabulary
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", {"rows": 16, "cols": 128}, {"rows": 8, "cols": 1024}, k=8),
        *workloads("float32 bfloat16", {"rows": 2, "cols": 2048}, k=50),
    ),
    awkward=(
        *rotated("float32 bfloat16", {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, k=1),
        *rotated("float16 float32", {"rows": 7, "cols": 31}, {"rows": 5, "cols": 1000}, k=31),
        *rotated("bfloat16 float16", {"rows": 3, "cols": 257}, {"rows": 2, "cols": 8200}, k=33),
    ),
    values=(
        *COMMON,
        "ties",
        "masked",
        "far_below",
    ),  # the rule for ties is part of the contract; sampling masks with -inf
    arranged={**of_order("x"), **last_bits("x")},
    exempt=dict.fromkeys((NAN, COUNTED_NAN), "the order of NaN among numbers is left open"),
    valid=lambda known: known["k"] <= known["cols"],
    flops=lambda dims: dims["rows"] * dims["cols"],
    tolerance=Tolerance(exact=True),  # a selection involves no rounding
)
