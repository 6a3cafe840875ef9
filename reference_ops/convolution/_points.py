"""Shared code of the convolutions: derived sizes, and workloads of gradients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from reference_ops.op import NOT_FINITE, Tensors, Workload

# No "large": such long sums overflow float16. Convolution is linear in both factors, so small integers stay exact.
LONG_SUMS = ("uniform", "heavy_tail", "shifted", "constant", "tiny", "faint", "integers")
# The sums run over whole images and batches. With numbers far from zero, they overflow float16. With one number per
# image, the results are a few numbers, equal for all channels, and fewer bits may happen to represent them.
SUMS_OF_BATCHES = ("uniform", "tiny", "faint", "integers")
# Reason: a NaN gradient may be multiplied by the zeros around an image.
OF_PADDING = dict.fromkeys(NOT_FINITE, "whether the padding's zeros are multiplied is left open")
FARTHEST_BIAS = 64.0


def out_size(size: str, taps: str) -> Callable[[Mapping[str, int]], int]:
    """Return a rule for the size of an output along one axis, given the names of the input's and the window's sizes."""
    return lambda known: (
        (known[size] + 2 * known["padding"] - known.get("dilation", 1) * (known[taps] - 1) - 1) // known["stride"] + 1
    )


def product(*names: str) -> Callable[[Mapping[str, int]], int]:
    return lambda known: math.prod(known[name] for name in names)


def multiply_adds(dims: Mapping[str, int]) -> int:
    """Return the operations of multiply-adds, two for each, including those on the padding."""
    return 2 * product("batch", "filters", "oh", "ow", "channels", "r", "s")(dims)


def image(batch: int, channels: int, height: int, width: int, filters: int, *window: int) -> dict[str, int]:
    """Return the dims of a 2d convolution. One side is enough for a square window."""
    r, s = window * 2 if len(window) == 1 else window
    sizes = {"batch": batch, "channels": channels, "height": height, "width": width}
    return {**sizes, "filters": filters, "r": r, "s": s}


def as_parameters(names: str, points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return the same workloads for a gradient whose parameters include these dims, because no input has them."""
    moved = names.split()
    return tuple(
        replace(
            point,
            dims=tuple((name, value) for name, value in point.dims if name not in moved),
            parameters=(*point.parameters, *((name, value) for name, value in point.dims if name in moved)),
        )
        for point in points
    )


def near_zero_bias(inputs: Tensors, _: torch.Generator) -> None:
    """Draw a bias near zero, so that float16 overflows with or without it: PyTorch may round before adding it."""
    if inputs["bias"].dtype == torch.float16:
        inputs["bias"].clamp_(-FARTHEST_BIAS, FARTHEST_BIAS)


def same(names: str) -> dict[str, Callable[[Mapping[str, int]], int]]:
    """Return rules for dims of an output whose sizes are parameters."""
    return {name: product(name) for name in names.split()}
