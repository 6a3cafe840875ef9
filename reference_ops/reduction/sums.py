"""Sums and means. There is no op for the backward, which only repeats the gradient.

Autograd does that without a copy.
"""

from collections.abc import Callable

import torch

from reference_ops.op import COMMON, Op, Tolerance, rotated, tensors, workloads


def sum_of_rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def mean_of_rows(x: torch.Tensor) -> torch.Tensor:
    return x.mean(-1)


def sum_of_columns(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0)


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1), at(31, 33), at(33, 31), at(7, 257), at(5, 1000), at(3, 1023), at(2, 4104),
)  # fmt: skip


def over_rows(name: str, reference: Callable[[torch.Tensor], torch.Tensor], values: tuple[str, ...]) -> Op:
    return Op(
        name=name,
        note=f"The {name} of each row, over the last dim.",
        reference=reference,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="rows"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 8192)),
            *workloads("bfloat16", at(131072, 512)),  # positions of an image, over its channels
            *workloads("bfloat16", at(1024, 131072)),  # a vocabulary
            *workloads("float32", at(4099, 5003)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(64, 256), at(16, 1024)),
        awkward=AWKWARD,
        values=values,
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32, rounded once.
        tolerance=Tolerance(sums="cols"),
    )


ops = (
    over_rows("sum", sum_of_rows, (*COMMON, "integers")),
    over_rows("mean", mean_of_rows, COMMON),  # no "integers", because a division rounds
    Op(
        name="sum_columns",
        note="The sum over the first dim, as a gradient of a bias.",
        reference=sum_of_columns,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(16384, 4096)),
            *workloads("bfloat16", at(131072, 768)),  # the tokens of a batch of images
            *workloads("bfloat16", at(8192, 32000)),
            *workloads("float32", at(5003, 4099)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(256, 64), at(1024, 24)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1), at(31, 33), at(33, 31), at(257, 7), at(1000, 5), at(65, 127), at(4104, 2),
        ),
        # With constant rows, all sums are equal, and a single rounding would affect all of them.
        values=(*(name for name in COMMON if name != "constant"), "integers"),
        by_rows=False,
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32, rounded once.
        tolerance=Tolerance(sums="rows"),
    ),
)  # fmt: skip
