"""Scatter-add: rows added to rows that indices select, as in graphs and mixtures of experts, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import nan_in, of_indices
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide


def scatter_add(x: torch.Tensor, indices: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return as_called(wide(x), indices, wide(src)).to(x.dtype)


def as_called(x: torch.Tensor, indices: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, indices, src)


def scatter_add_backward(grad_out: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return grad_out.index_select(0, indices)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw uniform indices, as for tokens with several experts, or nodes with several neighbours."""
    table = inputs["x"] if "x" in inputs else inputs["grad_out"]
    inputs["indices"].random_(0, len(table), generator=generator)


def faint_into_zeros(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
    inputs["x"].zero_()
    inputs["src"].mul_(1e-6)


def at(rows: int, count: int, dim: int) -> dict[str, int]:
    return {"rows": rows, "count": count, "dim": dim}


GPU = (
    *workloads("bfloat16 float32 float16", at(8192, 65536, 2048)),  # eight experts for each token
    *workloads("bfloat16", at(4096, 8192, 4096)),  # Mixtral's two experts
    *workloads("float32", at(19717, 88648, 500)),  # the graph PubMed
    *workloads("float32", at(2708, 10556, 1433)),  # the graph Cora
    *workloads("bfloat16", at(1009, 20011, 67)),
)
EMULATED = workloads("float32 bfloat16 float16", at(50, 120, 64), at(31, 90, 40))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1, 1),
    at(31, 33, 3),
    at(7, 257, 31),
    at(1009, 5, 1),
    at(1, 300, 33),
    at(5, 3, 1100),
)
ops = (
    Op(
        name="scatter_add",
        note="out[i] = x[i] + the sum of src[j] over all j with indices[j] = i; indices are within bounds, and "
        "repeat. The order is not specified. With float atomics, the result differs from run to run, and in 16 bits it "
        "is rounded at every step. To get the same result each time, let each row search for its sources in order.",
        reference=scatter_add,
        baseline=as_called,
        baseline_free=("out",),  # in 16 bits PyTorch rounds at every step
        inputs=tensors(x="rows dim", indices="int64[count]", src="count dim"),
        outputs=tensors(out="rows dim"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        # Sums of "heavy_tail" would overflow float16.
        values=(*(name for name in COMMON if name != "heavy_tail"), "integers"),
        by_rows=False,
        draw=draw,
        arranged={**of_indices("indices", "rows"), **nan_in("src"), "faint_src_into_zeros": faint_into_zeros},
        flops=lambda dims: dims["count"] * dims["dim"],
        # The default factor suffices for sums in float32, in any order, rounded once.
        backward=("scatter_add_backward",),
    ),
    Op(
        name="scatter_add_backward",
        note="grad_src[j] = grad_out[indices[j]]; the gradient of x is grad_out itself.",
        reference=scatter_add_backward,
        inputs=tensors(grad_out="rows dim", indices="int64[count]"),
        outputs=tensors(grad_src="count dim"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=of_indices("indices", "rows"),
        flops=lambda dims: dims["count"] * dims["dim"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
    ),
)
