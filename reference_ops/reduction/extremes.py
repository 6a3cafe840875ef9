"""The largest element of each row. There is no op for the backward, which puts one gradient per row into zeros."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import last_bits, many_nan, of_order
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.max(x, -1)
    return found.values, found.indices


def where_largest(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, -1)


def nan_after_infinity(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Set one number of each row to infinity, and a later one, which the same thread reads, to NaN."""
    x = inputs["x"]
    rows, cols = x.shape
    if cols < 2:
        return
    apart = 2 ** ((cols - 1).bit_length() - 1)  # at this distance for any number of threads that is a power of two
    first = torch.randint(cols - apart, (rows, 1), generator=generator, device=x.device)
    x.scatter_(1, first, math.inf).scatter_(1, first + apart, math.nan)


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


GPU = (
    *workloads("bfloat16 float32 float16", at(8192, 32000)),  # the greedy choice from a vocabulary
    *workloads("bfloat16", at(256, 128256)),
    *workloads("bfloat16", at(131072, 512)),
    *workloads("float32", at(4099, 5003)),
)
EMULATED = workloads("float32 bfloat16 float16", at(64, 256), at(16, 1024))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1), at(31, 33), at(33, 31), at(7, 257), at(5, 1000), at(3, 1023), at(2, 4104),
)  # fmt: skip
VALUES = (*COMMON, "ties", "masked", "far_below")  # the rule for ties is part of the contract; sampling masks with -inf
ARRANGED = {**of_order("x"), **many_nan("x"), **last_bits("x"), "NaN_after_infinity": nan_after_infinity}
FIRST = "Of equal values (-0.0 equals 0.0), the first counts. NaN counts as greater than every number."

ops = (
    Op(
        name="max",
        note=f"The largest value of each row and its int64 index. {FIRST}",
        reference=largest,
        inputs=tensors(x="rows cols"),
        outputs=tensors(values="rows", indices="int64[rows]"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=VALUES,
        arranged=ARRANGED,
        flops=lambda dims: dims["rows"] * dims["cols"],
        tolerance=Tolerance(exact=True),  # a selection involves no rounding
    ),
    Op(
        name="argmax",
        note=f"The int64 index of each row's largest value. {FIRST}",
        reference=where_largest,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="int64[rows]"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=VALUES,
        arranged=ARRANGED,
        flops=lambda dims: dims["rows"] * dims["cols"],
    ),
)
