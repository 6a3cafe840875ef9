"""The largest element of each row. There is no op for the backward, which puts one gradient per row into zeros."""

import torch

from reference_ops.arrangements import last_bits, many_nan, of_order
from reference_ops.op import COMMON, Op, Tolerance, rotated, tensors, workloads


def largest(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.max(x, -1)
    return found.values, found.indices


def where_largest(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, -1)


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
        arranged={**of_order("x"), **many_nan("x"), **last_bits("x")},
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
        arranged={**of_order("x"), **many_nan("x"), **last_bits("x")},
        flops=lambda dims: dims["rows"] * dims["cols"],
    ),
)
