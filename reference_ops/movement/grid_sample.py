"""Images sampled between their pixels, as in a spatial transformer or a warp by optical flow, and the gradients."""

import math
from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.op import COMMON, Arrange, Op, Tensors, Tolerance, rotated, tensors, workloads

BEYOND_INTEGERS = (math.inf, -math.inf, 1e30, -1e30)
OUT_OF_VIEW = -64.0  # a position far outside of any image
MARGIN = 1 / 64  # smallest distance of a position from a pixel's centre, in pixels


def grid_sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    return as_called(x, as_on_gpu(grid))


def as_on_gpu(grid: torch.Tensor) -> torch.Tensor:
    """Move positions that are NaN or infinite out of view, which is where PyTorch's kernels for GPUs take them to be.

    On a CPU, PyTorch returns NaN for them.
    """
    return torch.where(grid.isfinite(), grid, OUT_OF_VIEW)


def as_called(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
    # As under autocast, because PyTorch requires the image and the grid to have one dtype, and positions need float32.
    return functional.grid_sample(x.to(grid.dtype), grid, "bilinear", "zeros", align_corners=False).to(x.dtype)


def grid_sample_backward(
    grad_out: torch.Tensor, x: torch.Tensor, grid: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return gradients_as_called(grad_out, x, as_on_gpu(grid))


def gradients_as_called(
    grad_out: torch.Tensor, x: torch.Tensor, grid: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = (grad_out.to(grid.dtype), x.to(grid.dtype), grid)
    bilinear, zeros = 0, 0  # PyTorch's codes for these modes
    grad_x, grad_grid = torch.ops.aten.grid_sampler_2d_backward(*wide, bilinear, zeros, False, [True, True])
    return grad_x.to(x.dtype), grad_grid


def draw_grid(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    """Draw positions of images that are turned, scaled and shifted partly out of view.

    The gradient of the grid jumps where a position passes a pixel's centre. Therefore no position is so near to a
    centre that a rounding in float32 could move it to the other side.
    """
    grid = inputs["grid"]
    batch = len(grid)
    theta = torch.empty((batch, 2, 3), dtype=torch.float64, device=grid.device).normal_(std=0.2, generator=generator)
    theta[:, 0, 0] += 1
    theta[:, 1, 1] += 1
    zoom = torch.empty((batch, 1, 1), dtype=torch.float64, device=grid.device).normal_(std=0.5, generator=generator)
    drawn = functional.affine_grid(theta * zoom.exp_(), [batch, 1, known["oh"], known["ow"]], align_corners=False)
    sizes = torch.tensor((known["w"], known["h"]), dtype=torch.float64, device=grid.device)
    position = drawn.add_(1).mul_(sizes).sub_(1).div_(2)
    pixel = position.floor()
    kept = position.sub_(pixel).clamp_(MARGIN, 1 - MARGIN).add_(pixel)
    grid.copy_(kept.mul_(2).add_(1).div_(sizes).sub_(1))


def on_centres(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    """Draw positions at the centres of pixels, as for a flow of zero. Some of them are one pixel outside."""
    grid = inputs["grid"]
    for axis, size in enumerate((known["w"], known["h"])):
        pixel = torch.randint(-1, size + 1, grid.shape[:-1], generator=generator, device=grid.device)
        grid[..., axis] = (2 * pixel.double() + 1) / size - 1


def near_centres(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
    """Draw positions beside the centres of pixels, as for a flow near zero: 2**-6 to 2**-12 pixels away."""
    on_centres(inputs, generator, known)
    grid = inputs["grid"]
    away = torch.empty_like(grid).uniform_(-12, -6, generator=generator).exp2_()
    away.mul_(torch.empty_like(grid).random_(0, 2, generator=generator).mul_(2).sub_(1))
    for axis, size in enumerate((known["w"], known["h"])):
        grid[..., axis] += away[..., axis] * (2 / size)


def on_borders(inputs: Tensors, generator: torch.Generator, _: Mapping[str, int]) -> None:
    """Draw positions on the image's edges, its middle and far outside."""
    grid = inputs["grid"]
    places = torch.tensor((-1.0, 0.0, 1.0, -40.0, 40.0), device=grid.device)
    grid.copy_(places[torch.randint(len(places), grid.shape, generator=generator, device=grid.device)])


def with_places(inputs: Tensors, generator: torch.Generator, places: tuple[float, ...]) -> None:
    """Set one coordinate in ten to one of these places, and at least one coordinate of the first position."""
    grid = inputs["grid"]
    chosen = torch.empty(grid.shape, dtype=torch.bool, device=grid.device).bernoulli_(0.1, generator=generator)
    chosen.view(-1, 2)[0, generator.initial_seed() % 2] = True
    which = torch.randint(len(places), grid.shape, generator=generator, device=grid.device)
    grid.copy_(torch.where(chosen, torch.tensor(places, device=grid.device)[which], grid))


def at(batch: int, channels: int, h: int, w: int, oh: int, ow: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "h": h, "w": w, "oh": oh, "ow": ow}


def samples(dims: Mapping[str, int]) -> int:
    return dims["batch"] * dims["channels"] * dims["oh"] * dims["ow"]


GPU = (
    *workloads("float32 bfloat16 float16", at(128, 3, 224, 224, 224, 224)),  # a spatial transformer
    *workloads("bfloat16", at(16, 32, 100, 152, 20000, 4)),  # deformable attention: four points for each query
    *workloads("float32", at(8, 128, 96, 160, 96, 160)),  # features along an optical flow
    *workloads("bfloat16", at(2, 256, 200, 304, 448, 49)),  # aligned regions
    *workloads("float32", at(7, 17, 211, 131, 67, 197)),
)
EMULATED = workloads("float32 bfloat16 float16", at(9, 3, 12, 16, 10, 14), at(8, 5, 17, 9, 13, 11))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1, 1, 1, 1, 1),
    at(2, 1, 1, 33, 3, 31),
    at(31, 2, 5, 1, 1, 7),
    at(1, 33, 7, 31, 17, 1),
    at(3, 1, 31, 33, 5, 5),
    at(2, 257, 2, 3, 3, 2),
)
PLACES: dict[str, Arrange] = {
    "NaN_in_grid": lambda inputs, generator, _: with_places(inputs, generator, (math.nan,)),
    "places_beyond_integers": lambda inputs, generator, _: with_places(inputs, generator, BEYOND_INTEGERS),
}
# With equal pixels the gradient of the grid is only rounding.
VARIED = tuple(name for name in COMMON if name != "constant")
# Parts of an image may be out of view, so there is no element of x that must be read.
TOUCHED = {"x": lambda dims: dims["batch"] * dims["channels"]}
ops = (
    Op(
        name="grid_sample",
        note="grid[b, i, j] = (gx, gy) is a position where the image's edges are at -1 and 1: px = ((gx + 1) * w - 1) "
        "/ 2 and py = ((gy + 1) * h - 1) / 2 in pixels. out[b, c, i, j] is the mean of the four pixels around it, "
        "(1 - |px - column|) * (1 - |py - row|) times each; a pixel outside of x counts as 0 (bilinear, zeros, "
        "align_corners=False). Positions may lie anywhere outside of the image. Where a coordinate is NaN or infinite, "
        "out is 0, as in PyTorch on a GPU (on a CPU, it is NaN). The grid is always float32.",
        reference=grid_sample,
        baseline=lambda x, grid: as_called(x, grid if grid.is_cuda else as_on_gpu(grid)),
        inputs=tensors(x="batch channels h w", grid="float32[batch oh ow 2]"),
        outputs=tensors(out="batch channels oh ow"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw_grid,
        arranged={"on_centres": on_centres, "near_centres": near_centres, "on_borders": on_borders, **PLACES},
        touched=TOUCHED,
        flops=lambda dims: 8 * samples(dims),
        tolerance=Tolerance(),  # the default factor suffices for positions and weights in float32
        backward=("grid_sample_backward",),
    ),
    Op(
        name="grid_sample_backward",
        note="grad_x[b, c, row, column] is the sum of grad_out times the weight of that pixel in the forward; "
        "every element is written. grad_grid[b, i, j] = (w / 2 * the sum over c of grad_out * d(out) / d(px), and h / "
        "2 * that of d(out) / d(py)), where pixels outside of x are 0. No position is within 1/64 of a pixel's centre "
        "in either direction, where the gradient jumps. Where a coordinate is NaN or infinite, grad_grid is 0 and "
        "grad_x gets nothing, as in PyTorch on a GPU. PyTorch adds to grad_x with float atomics.",
        reference=grid_sample_backward,
        baseline=lambda grad_out, x, grid: gradients_as_called(grad_out, x, grid if grid.is_cuda else as_on_gpu(grid)),
        inputs=tensors(grad_out="batch channels oh ow", x="batch channels h w", grid="float32[batch oh ow 2]"),
        outputs=tensors(grad_x="batch channels h w", grad_grid="float32[batch oh ow 2]"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw_grid,
        values=VARIED,
        arranged=PLACES,
        touched={**TOUCHED, "grad_out": TOUCHED["x"]},
        flops=lambda dims: 24 * samples(dims),
        tolerance=Tolerance(sums="channels"),  # the default factor suffices for sums in float32, in any order
    ),
)
