"""Gather: elements of each row selected by indices, and the gradient of the rows."""

from collections.abc import Mapping

import torch

from reference_ops.arrangements import of_indices
from reference_ops.op import COMMON, Op, Tensors, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.precision import wide


def gather(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, -1, indices)


def gather_backward(grad_out: torch.Tensor, indices: torch.Tensor, cols: int) -> torch.Tensor:
    return backward_as_called(wide(grad_out), indices, cols).to(grad_out.dtype)


def backward_as_called(grad_out: torch.Tensor, indices: torch.Tensor, cols: int) -> torch.Tensor:
    return grad_out.new_zeros(len(grad_out), cols).scatter_add_(-1, indices, grad_out)


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    inputs["indices"].random_(0, inputs["x"].shape[1], generator=generator)


def draw_of_backward(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    inputs["indices"].random_(0, known["cols"], generator=generator)


def different(known: Mapping[str, int]) -> int:
    """Estimate how many elements of x are selected by independent indices."""
    cols = known["cols"]
    return known["rows"] * max(1, int(cols * (1 - (1 - 1 / cols) ** known["k"])))


def at(rows: int, cols: int, k: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols, "k": k}


def of_backward(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return workloads with the width of x as a parameter, because no input of the backward has this size."""
    return tuple(
        Workload(point.dtype, (point.dims[0], point.dims[2]), (point.dims[1],))  # the dims: rows and k, and cols
        for point in points
    )


GPU = (
    *workloads("bfloat16 float32 float16", at(65536, 1024, 64)),
    *workloads("bfloat16", at(65536, 256, 8)),  # the chosen experts' weights
    *workloads("float32", at(4096, 32000, 1)),  # the logits of the next tokens
    *workloads("bfloat16", at(4096, 4096, 1024)),  # patches that a masked autoencoder keeps
    *workloads("float32", at(10007, 1009, 77)),
)
EMULATED = workloads("float32 bfloat16 float16", at(24, 96, 40), at(50, 33, 8))
AWKWARD = rotated(
    "float32 bfloat16 float16", at(1, 1, 1), at(31, 33, 31), at(33, 3, 31), at(5, 257, 1), at(2, 1009, 300), at(7, 1, 5)
)
ops = (
    Op(
        name="gather",
        note="out[i, j] = x[i, indices[i, j]]; indices are within bounds, and may repeat.",
        reference=gather,
        inputs=tensors(x="rows cols", indices="int64[rows k]"),
        outputs=tensors(out="rows k"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=of_indices("indices", lambda inputs: inputs["x"].shape[1]),
        touched={"x": different},
        flops=lambda dims: dims["rows"] * dims["k"],
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
        backward=("gather_backward",),
    ),
    Op(
        name="gather_backward",
        note="grad_x[i, c] is the sum of grad_out[i, j] over all j with indices[i, j] = c, and 0 where there are none; "
        "every element is written.",
        reference=gather_backward,
        baseline=backward_as_called,
        baseline_free=("grad_x",),  # in 16 bits PyTorch rounds at every step
        inputs=tensors(grad_out="rows k", indices="int64[rows k]"),
        outputs=tensors(grad_x="rows cols"),
        derived={"cols": lambda known: known["cols"]},
        gpu=of_backward(GPU),
        emulated=of_backward(EMULATED),
        awkward=of_backward(AWKWARD),
        values=(*COMMON, "integers"),  # integers stay exact, because the op only adds
        draw=draw_of_backward,
        arranged=of_indices("indices", "cols"),
        flops=lambda dims: dims["rows"] * dims["k"],
        # The default factor suffices for sums of a few terms in float32, rounded once.
    ),
)
