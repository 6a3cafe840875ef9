"""Rows sorted in ascending order, with the original position of each value, and the backward."""

import torch

from reference_ops.arrangements import last_bits, of_order, of_permutation
from reference_ops.op import COMMON, COUNTED_NAN, NAN, Op, Tensors, Tolerance, rotated, tensors, workloads


def sort(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = torch.sort(x, dim=-1, stable=True)
    return found.values, found.indices


def unstable(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, indices = torch.sort(x, dim=-1)
    return values, indices


def sort_backward(grad_values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(grad_values).scatter_(-1, indices, grad_values)


def draw_order(inputs: Tensors, generator: torch.Generator) -> None:
    """Draw a permutation for each row."""
    indices = inputs["indices"]
    keys = torch.empty(indices.shape, device=indices.device).uniform_(generator=generator)
    indices.copy_(keys.argsort(-1))


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


EMULATED = workloads("float32 bfloat16 float16", at(16, 128), at(4, 1024))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1), at(31, 33), at(33, 31), at(7, 257), at(5, 1000), at(2, 2047), at(2, 4104),
)  # fmt: skip

ops = (
    Op(
        name="sort",
        note="Each row in ascending order, with the int64 index of each value; of equal values (-0.0 equals 0.0), the "
        "one with the lower index comes first. Rows with NaN are outside the contract.",
        reference=sort,
        baseline=unstable,
        baseline_free=("indices",),  # PyTorch may select any of equal values
        inputs=tensors(x="rows cols"),
        outputs=tensors(values="rows cols", indices="int64[rows cols]"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 1024)),
            *workloads("bfloat16", at(65536, 128)),  # the experts of a token
            *workloads("float32", at(64, 128256)),  # top-p sampling from a vocabulary
            *workloads("float32", at(1009, 4099)),
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=(
            *COMMON,
            "ties",
            "masked",
            "far_below",
        ),  # the rule for ties is part of the contract; sampling masks with -inf
        arranged={**of_order("x"), **last_bits("x")},
        exempt=dict.fromkeys((NAN, COUNTED_NAN), "the order of NaN among numbers is left open"),
        flops=lambda dims: dims["rows"] * dims["cols"] * (dims["cols"] - 1).bit_length() + 1,  # comparisons
        tolerance=Tolerance(exact=True),  # a selection involves no rounding
        backward=("sort_backward",),
    ),
    Op(
        name="sort_backward",
        note="grad_x[row, indices[row, i]] = grad_values[row, i]; indices is a permutation of each row.",
        reference=sort_backward,
        inputs=tensors(grad_values="rows cols", indices="int64[rows cols]"),
        outputs=tensors(grad_x="rows cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 1024)),
            *workloads("bfloat16", at(65536, 128)),
            *workloads("float32", at(64, 128256), at(1009, 4099)),
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw_order,
        arranged=of_permutation("indices"),
        flops=lambda dims: dims["rows"] * dims["cols"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
    ),
)
