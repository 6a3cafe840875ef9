"""Special values of two inputs at the same element: infinities of each sign, NaN and zero, in every combination."""

import math
from dataclasses import dataclass

import torch

from reference_ops.op import (
    EQUAL_INFINITIES,
    OPPOSITE_INFINITIES,
    SPECIAL_PAIRS,
    Op,
    Tensors,
    TensorSpec,
    Workload,
)

SHARE_MEETING = 0.25  # share of the rows with special values once all of them have met
INF, NAN = math.inf, math.nan
UNLIKE = ((INF, NAN), (-INF, NAN), (INF, 0.0), (-INF, 0.0), (NAN, 0.0))
VALUES = {
    EQUAL_INFINITIES: ((INF, INF), (-INF, -INF)),
    OPPOSITE_INFINITIES: ((INF, -INF), (-INF, INF)),
    SPECIAL_PAIRS: tuple(pair for some in UNLIKE for pair in (some, some[::-1])),
}


@dataclass(frozen=True)
class Meeting:
    """Two inputs, and the value that each has at an element."""

    inputs: tuple[TensorSpec, TensorSpec]
    values: tuple[float, float]


def meetings(op: Op, values: str) -> tuple[Meeting, ...]:
    """Return all meetings of an arrangement: each of its pairs of values in each pair of inputs."""
    return tuple(Meeting(pair, both) for pair in op.meeting for both in VALUES[values])


def meet(op: Op, workload: Workload, drawn: Tensors, values: str, generator: torch.Generator, *, rows: int) -> None:
    """Write the values of each meeting to the same element of its two inputs; inputs without a dim are broadcast.

    With one row, there is one meeting, which the seed chooses, because other meetings would hide its result. Otherwise
    each row has a meeting, in turn from the one that the seed chooses, and some rows have none once all have occurred.
    """
    met, sizes, device = meetings(op, values), op.sizes(workload), generator.device
    turn = torch.arange(rows, device=device)
    chosen = torch.empty(rows, device=device).bernoulli_(SHARE_MEETING, generator=generator) > 0
    chosen |= turn < len(met)
    turn = (turn + generator.initial_seed()) % len(met)
    dims = {dim: int(dim) if dim.isdigit() else sizes[dim] for pair in op.meeting for spec in pair for dim in spec.dims}
    places = {dim: torch.randint(dims[dim], (rows,), generator=generator, device=device) for dim in sorted(dims)}
    if rows > 1:
        first = op.varied[0].dims[0]
        places[first] = (places[first][0] + torch.arange(rows, device=device)) % rows
    for number, meeting in enumerate(met):
        own = (chosen & (turn == number)).nonzero().view(-1)
        for spec, value in zip(meeting.inputs, meeting.values, strict=True):
            drawn[spec.name][tuple(places[dim][own] for dim in spec.dims)] = value
