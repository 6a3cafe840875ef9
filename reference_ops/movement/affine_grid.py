"""The sampling positions of an affine transformation, the first half of a spatial transformer, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import INFINITE, MINUS_INF, Op, Tensors, Tolerance, Workload, rotated, tensors, workloads


def affine_grid(theta: torch.Tensor, h: int, w: int) -> torch.Tensor:
    return functional.affine_grid(theta, [len(theta), 1, h, w], align_corners=False)


def affine_grid_backward(grad_grid: torch.Tensor) -> torch.Tensor:
    batch, h, w, _ = grad_grid.shape
    found: torch.Tensor = torch.ops.aten.affine_grid_generator_backward(grad_grid, [batch, 1, h, w], False)
    return found.contiguous()


def near_identity(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw transformations close to the identity, with which training begins: some turn by hundredths of a degree."""
    theta = inputs["theta"]
    bits = torch.empty(len(theta), 1, 1, device=theta.device).uniform_(-18, -8, generator=generator)
    theta.normal_(generator=generator).mul_(bits.exp2_())
    theta[:, 0, 0] += 1
    theta[:, 1, 1] += 1


def at(batch: int, h: int, w: int) -> dict[str, int]:
    return {"batch": batch, "h": h, "w": w}


def of_forward(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return workloads with the image's size as parameters, because no input of the forward has this size."""
    return tuple(Workload(point.dtype, point.dims[:1], point.dims[1:]) for point in points)


OPEN = dict.fromkeys(
    (INFINITE, MINUS_INF), "a coordinate that is rounded to zero or not, times infinity, is NaN or infinite"
)
# Positions are in float32 even for 16-bit images: in 16 bits they would be off by up to half a pixel.
GPU = workloads(
    "float32",
    at(256, 224, 224),
    at(4096, 28, 28),  # images of digits
    at(32, 512, 512),
    at(2048, 32, 100),  # lines of text
    at(61, 211, 307),
)
EMULATED = workloads("float32", at(9, 24, 32), at(16, 11, 7))
AWKWARD = rotated("float32", at(1, 1, 1), at(33, 1, 31), at(2, 127, 1), at(7, 17, 13), at(31, 33, 3), at(1, 65, 63))
ops = (
    Op(
        name="affine_grid",
        note="grid[b, i, j] = theta[b] @ (x, y, 1) with x = (2 * j + 1) / w - 1 and y = (2 * i + 1) / h - 1, the "
        "centres of pixels if the image extends from -1 to 1 (align_corners=False); x comes first.",
        reference=affine_grid,
        inputs=tensors(theta="batch 2 3"),
        outputs=tensors(grid="batch h w 2"),
        derived={"h": lambda known: known["h"], "w": lambda known: known["w"]},
        gpu=of_forward(GPU),
        emulated=of_forward(EMULATED),
        awkward=of_forward(AWKWARD),
        arranged={"near_identity": near_identity},
        exempt=OPEN,
        flops=lambda dims: 8 * dims["batch"] * dims["h"] * dims["w"],
        tolerance=Tolerance(),  # the default factor suffices for three products in float32
        backward=("affine_grid_backward",),
    ),
    Op(
        name="affine_grid_backward",
        note="grad_theta[b, r] = the sum over all i and j of grad_grid[b, i, j, r] * (x, y, 1), as in affine_grid.",
        reference=affine_grid_backward,
        inputs=tensors(grad_grid="batch h w 2"),
        outputs=tensors(grad_theta="batch 2 3"),
        derived={"area": lambda known: known["h"] * known["w"]},
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        exempt=OPEN,
        flops=lambda dims: 10 * dims["batch"] * dims["h"] * dims["w"],
        tolerance=Tolerance(sums="area"),  # the default factor suffices for long sums in float32
    ),
)
