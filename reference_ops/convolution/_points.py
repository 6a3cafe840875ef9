"""What the convolutions' files share: sizes that follow from others, and workloads of gradients."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from reference_ops.op import Tensors, Workload

# Of large numbers float16 overflows in sums so long. Linear in both factors, so exact on small integers.
LONG_SUMS = ("uniform", "heavy_tail", "shifted", "constant", "tiny", "faint", "integers")
# The sums are over whole images and batches. Of numbers far from zero float16 overflows; of one number per image the
# results are a few numbers, the same for all channels, and fewer bits may happen to hold those.
SUMS_OF_BATCHES = ("uniform", "tiny", "faint", "integers")
FARTHEST_BIAS = 64.0


def out_size(size: str, taps: str) -> Callable[[Mapping[str, int]], int]:
    """The size of an output along one axis, from the names of the input's and of the window's."""
    return lambda known: (
        (known[size] + 2 * known["padding"] - known.get("dilation", 1) * (known[taps] - 1) - 1) // known["stride"] + 1
    )


def product(*names: str) -> Callable[[Mapping[str, int]], int]:
    return lambda known: math.prod(known[name] for name in names)


def multiply_adds(dims: Mapping[str, int]) -> int:
    """Counted as two each, with those on the padding."""
    return 2 * product("batch", "filters", "oh", "ow", "channels", "r", "s")(dims)


def image(batch: int, channels: int, height: int, width: int, filters: int, *window: int) -> dict[str, int]:
    """The dims of a 2d convolution; of a square window one side is enough."""
    r, s = window * 2 if len(window) == 1 else window
    sizes = {"batch": batch, "channels": channels, "height": height, "width": width}
    return {**sizes, "filters": filters, "r": r, "s": s}


def as_parameters(names: str, points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """The same points for a gradient that is told these dims, because none of its inputs has them."""
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
    """PyTorch may round to float16 before it adds the bias: what overflows there has to be about as large with it."""
    if inputs["bias"].dtype == torch.float16:
        inputs["bias"].clamp_(-FARTHEST_BIAS, FARTHEST_BIAS)


def same(names: str) -> dict[str, Callable[[Mapping[str, int]], int]]:
    """Parameters that are dims of an output."""
    return {name: product(name) for name in names.split()}
