"""Windows over one, two or three dims: what the pooling ops have in common."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from reference_ops.op import Workload

AXES = {1: ("l",), 2: ("h", "w"), 3: ("d", "h", "w")}
Rule = Callable[[Mapping[str, int]], int]
HALVES = (torch.float16, torch.bfloat16)


def at(n: int, c: int, *sizes: int) -> dict[str, int]:
    return dict(zip(inner(len(sizes)).split(), (n, c, *sizes), strict=True))


def inner(rank: int) -> str:
    """The dims of what is pooled."""
    return " ".join(("n", "c", *AXES[rank]))


def outer(rank: int) -> str:
    """The dims of what comes out."""
    return " ".join(("n", "c", *(f"o{axis}" for axis in AXES[rank])))


def volume(dims: Mapping[str, int], names: str) -> int:
    return math.prod(dims[name] for name in names.split())


def as_given(name: str) -> Rule:
    return lambda known: known[name]


def outer_sizes(rank: int) -> dict[str, Rule]:
    def size(axis: str) -> Rule:
        return lambda known: (known[axis] + 2 * known["padding"] - known["kernel"]) // known["stride"] + 1

    return {f"o{axis}": size(axis) for axis in AXES[rank]} | {"taps": lambda known: known["kernel"] ** rank}


def inner_sizes(rank: int) -> dict[str, Rule]:
    """For a backward: what was pooled is no input of it, so its size comes as parameters."""
    return {axis: as_given(axis) for axis in AXES[rank]}


def of_backward(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """The forward's workloads with the sizes of what was pooled as parameters."""
    moved = [replace(point, dims=point.dims[:2], parameters=(*point.parameters, *point.dims[2:])) for point in points]
    return tuple(moved)


def fits(known: Mapping[str, Any]) -> bool:
    """PyTorch's own condition: no window lies in the padding alone."""
    return bool(2 * known["padding"] <= known["kernel"])


def fits_inside(known: Mapping[str, Any]) -> bool:
    """PyTorch's condition for averages in 3d: a window is no larger than what is pooled, without the padding."""
    return fits(known) and all(known[axis] >= known["kernel"] for axis in AXES[3])


def in_float32_on_cpu(pool: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """PyTorch's CPU code lacks some pools of 16-bit numbers, and adds others up in 16 bits, unlike its GPU code."""

    def pooled(x: torch.Tensor, *others: Any) -> torch.Tensor:
        if x.is_cpu and x.dtype in HALVES:
            wide = [other.float() if isinstance(other, torch.Tensor) else other for other in (x, *others)]
            return pool(*wide).to(x.dtype)
        return pool(x, *others)

    return pooled
