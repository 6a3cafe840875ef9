"""Cosine similarity of the rows of two matrices."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide

SHORT = 8  # one row in this many has a length near zero
LONG = 2.0**33  # float32 can hold the squared length of a row of such numbers, but not the product of two


def cosine_similarity(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    return as_called(wide(x), wide(y), eps).to(x.dtype)


def as_called(x: torch.Tensor, y: torch.Tensor, eps: float) -> torch.Tensor:
    """Call PyTorch's own function, which in 16 bits rounds lengths and quotients before it adds."""
    return functional.cosine_similarity(x, y, dim=-1, eps=eps)


def some_short(inputs: Tensors, _: torch.Generator) -> None:
    """Make some rows so short that their result depends on eps."""
    inputs["x"][SHORT - 1 :: SHORT].mul_(1e-10)


def long_rows(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
    for values in inputs.values():
        values.mul_(LONG)


op = Op(
    name="cosine_similarity",
    note="out = (x / max(|x|, eps)) . (y / max(|y|, eps)) for each row, |x| being the Euclidean length.",
    reference=cosine_similarity,
    baseline=as_called,
    baseline_free=("out",),
    inputs=tensors(x="rows cols", y="rows cols"),
    outputs=tensors(out="rows"),
    gpu=(
        *workloads("bfloat16 float32", {"rows": 65536, "cols": 768}, eps=1e-8),  # embeddings of sentences
        *workloads("bfloat16 float32", {"rows": 16384, "cols": 4096}, eps=1e-8),
        *workloads("bfloat16", {"rows": 2**20, "cols": 128}, {"rows": 50021, "cols": 1025}, eps=1e-8),
    ),
    emulated=workloads(
        "float32 bfloat16", {"rows": 128, "cols": 128}, {"rows": 72, "cols": 256}, {"rows": 18, "cols": 1000}, eps=1e-8
    ),
    awkward=rotated(
        "float32 bfloat16",
        {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, {"rows": 33, "cols": 31}, {"rows": 7, "cols": 257},
        {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
        eps=1e-8,
    ),
    values=COMMON,
    draw=some_short,
    arranged={"long_rows": long_rows},
    nan_spreads=True,  # `nan_spreads` also holds in rows of one column
    flops=lambda dims: 6 * dims["rows"] * dims["cols"],
    # The default factor suffices for results in float32, rounded once.
    tolerance=Tolerance(sums="cols"),
)  # fmt: skip
