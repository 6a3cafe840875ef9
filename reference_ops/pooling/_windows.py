"""Shared code of the pooling ops: windows over one, two or three dims."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from reference_ops.op import Workload

AXES = {1: ("l",), 2: ("h", "w"), 3: ("d", "h", "w")}
Rule = Callable[[Mapping[str, int]], int]


def at(n: int, c: int, *sizes: int) -> dict[str, int]:
    return dict(zip(inner(len(sizes)).split(), (n, c, *sizes), strict=True))


def inner(rank: int) -> str:
    """Return the names of the input's dims."""
    return " ".join(("n", "c", *AXES[rank]))


def outer(rank: int) -> str:
    """Return the names of the output's dims."""
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
    """Return the sizes of the forward's input. They are parameters of a backward that has no such input."""
    return {axis: as_given(axis) for axis in AXES[rank]}


def of_backward(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Return the forward's workloads with the sizes of its input as parameters."""
    moved = [replace(point, dims=point.dims[:2], parameters=(*point.parameters, *point.dims[2:])) for point in points]
    return tuple(moved)


def fits(known: Mapping[str, Any]) -> bool:
    """Return whether no window lies entirely in the padding, as PyTorch requires."""
    return bool(2 * known["padding"] <= known["kernel"])


def fits_inside(known: Mapping[str, Any]) -> bool:
    """Return whether no window is larger than the input without padding, as PyTorch requires for averages in 3d."""
    return fits(known) and all(known[axis] >= known["kernel"] for axis in AXES[3])
