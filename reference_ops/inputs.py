"""Inputs for judging kernels: the distribution of each of their rows, which follows from a seed."""

import inspect
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import EllipsisType

import torch

from reference_ops.distributions import (
    ONLY_KEY_NAN,
    change_weight,
    fill,
)
from reference_ops.meeting import meet, meetings
from reference_ops.op import (
    CLASHING,
    COUNTED_NAN,
    EXACT,
    EXTREME_ROWS,
    INFINITE,
    INFINITE_WEIGHTS,
    LARGE,
    LAST_AHEAD,
    MEETING,
    MINUS_INF,
    MINUTE,
    MIXED,
    NAN,
    NAN_IN_WEIGHTS,
    NORMAL,
    NOT_FINITE,
    OVERFLOWING,
    RUNS_OF_MINUS_INF,
    SAVED_INFINITE,
    SAVED_NAN,
    SUBNORMAL,
    ZERO,
    Op,
    Tensors,
    TensorSpec,
    Workload,
)  # fmt: skip
from reference_ops.precision import TORCH_DTYPES
from reference_ops.special_values import OTHER_SIGN, SEEDS_ALIKE, sprinkle, stand_alone

SEEDS = 2**31
LARGE_WEIGHTS = 3  # one seed in this many draws weights from large numbers
# Only the gradients of a backward op have these extremes, because its other inputs are results of the forward.
OF_GRADIENTS = (ZERO, MINUTE, OVERFLOWING, NAN, INFINITE, MINUS_INF, CLASHING)
OF_SAVED = {SAVED_NAN: NAN, SAVED_INFINITE: INFINITE}
STANDING_ALONE = {NAN: math.nan, INFINITE: math.inf}  # extremes that hide those of another tensor in the same row
FEW_DRAWS = 3  # number of draws of extremes where a size is 1
BOTH_SIGNS = 2  # number of rows of each extreme: with a single row, infinities would all have one sign


@dataclass(frozen=True)
class RowGroup:
    """The rows of an output whose inputs come from one distribution; they are judged together."""

    values: str
    start: int = 0
    step: int = 1

    @property
    def exact(self) -> bool:
        """Whether no rounding is allowed, because sums and products of small integers are exact."""
        return self.values == EXACT

    @property
    def alike(self) -> bool:
        """Whether the terms of a sum may be almost equal, and thus be rounded in the same direction."""
        return self.values == "tiny" or self.values.startswith(LAST_AHEAD)

    @property
    def not_finite(self) -> bool:
        """Whether some inputs are not finite."""
        known = self.values in (*NOT_FINITE, *MEETING) or self.values.endswith(RUNS_OF_MINUS_INF)
        return known or self.values == ONLY_KEY_NAN or self.counts_where_it_matters

    @property
    def nan_alone(self) -> bool:
        """Whether NaN is the only value among the inputs that is not finite."""
        return self.values in (NAN, ONLY_KEY_NAN)

    @property
    def nan_is_open(self) -> bool:
        """Whether any result is right where PyTorch's is NaN, because another formula need not multiply inf by zero."""
        return self.values in (SAVED_INFINITE, INFINITE_WEIGHTS)

    @property
    def counts_where_it_matters(self) -> bool:
        """Whether inputs hold NaN that results may ignore, because a kernel may multiply it by zero or leave it out."""
        return self.values in (NAN_IN_WEIGHTS, INFINITE_WEIGHTS) or self.values.startswith(COUNTED_NAN)

    @property
    def vanishing(self) -> bool:
        """Whether the inputs are zero or very small, so that results may follow from a bias alone."""
        return self.values in (ZERO, MINUTE, SUBNORMAL)

    @property
    def rows(self) -> slice | EllipsisType:
        """Index of these rows in an output, which may have no dims."""
        return ... if self.step == 1 else slice(self.start, None, self.step)


def inputs_at(op: Op, workload: Workload, seed: int, device: str, values: str = NORMAL) -> Tensors:
    """Return fresh inputs. The same seed gives the same numbers on the same device.

    `values` names their distribution, extreme or arrangement. With "mixed", row i is drawn from the i-th of several
    distributions, in turn. Inputs that do not share their first dim with an output, such as weights, are drawn from one
    distribution.
    """
    generator = torch.Generator(device).manual_seed(seed)
    names = (NORMAL,) if values in op.arrangements else _distributions(op, values, seed)
    others = EXACT if EXACT in names else LARGE if values == MIXED and seed % LARGE_WEIGHTS == 0 else NORMAL
    varied = op.varied
    drawn = {}
    for spec in op.inputs:
        dtype, shape = TORCH_DTYPES[spec.dtype or workload.dtype], op.shape(spec, workload)
        if not dtype.is_floating_point:
            drawn[spec.name] = torch.empty(shape, device=device).normal_(generator=generator).to(dtype)
            continue
        drawn[spec.name] = tensor = torch.empty(shape, device=device, dtype=dtype)
        if spec not in varied:
            fill(tensor, others, generator)
            continue
        of_tensor = [_of_tensor(op, spec, name) for name in names]
        if len(names) == 1:
            fill(tensor, of_tensor[0], generator)
        else:
            for row, name in enumerate(of_tensor[: len(tensor)]):
                fill(tensor[row :: len(names)], name, generator)
    _keep_apart(op, drawn, names, generator)
    _arrange(op, workload, drawn, values, generator)
    return drawn


def _keep_apart(op: Op, drawn: Tensors, names: tuple[str, ...], generator: torch.Generator) -> None:
    """Let each of several inputs have NaN, and infinities, in a row that is finite in the other inputs."""
    for turn, name in enumerate(names):
        if value := STANDING_ALONE.get(OF_SAVED.get(name, name)):
            alike = [drawn[spec.name][turn :: len(names)] for spec in _drawn_so(op, name)]
            if len(alike) > 1 and len(alike[0]):
                stand_alone(alike, value, generator)


def _drawn_so(op: Op, values: str) -> list[TensorSpec]:
    """Return those inputs that are drawn by rows and get NaN or infinities with these values."""
    of_rows = [spec for spec in op.varied if spec.dims and spec.dims[0] in op.varied[0].dims[:1]]
    return [spec for spec in of_rows if _of_tensor(op, spec, values) in STANDING_ALONE and _keeps_nan(op, spec.name)]


def _keeps_nan(op: Op, name: str) -> bool:
    """Return whether NaN in an input remains after `op.draw`, which computes some inputs from others."""
    if op.draw is None:
        return True
    workload = min(op.listed, key=op.nbytes)
    shapes = tuple((spec.name, spec.dtype or workload.dtype, op.shape(spec, workload)) for spec in op.inputs)
    return _draw_keeps_nan(op.draw, name, shapes, (*op.sizes(workload).items(), *workload.parameters))


@cache
def _draw_keeps_nan(
    draw: Callable[..., None],
    name: str,
    shapes: tuple[tuple[str, str, tuple[int, ...]], ...],
    known: tuple[tuple[str, float], ...],
) -> bool:
    drawn = {one: torch.ones(shape).to(TORCH_DTYPES[dtype]) for one, dtype, shape in shapes}
    drawn[name].fill_(math.nan)
    try:
        draw(drawn, torch.Generator().manual_seed(0), *([dict(known)] * _takes_sizes(draw)))
    except Exception:  # noqa: BLE001 - a user's `draw` may refuse inputs with any exception
        return True
    return bool(drawn[name].isnan().any())


def _arrange(op: Op, workload: Workload, drawn: Tensors, values: str, generator: torch.Generator) -> None:
    """Overwrite the inputs that must not be random, and those that the arrangement names."""
    known = {**op.sizes(workload), **dict(workload.parameters)}
    if op.draw:
        op.draw(drawn, generator, *([known] * _takes_sizes(op.draw)))
    if values in op.arranged:
        op.arranged[values](drawn, generator, known)
    if counted := op.counted_nan.get(values):
        sprinkle(drawn[counted], math.nan, generator)
    if values in MEETING:
        meet(op, workload, drawn, values, generator, rows=_rows_apart(op, workload))
    for spec in op.weights:
        change_weight(drawn[spec.name], values, generator, dtype=workload.dtype)


@cache
def _takes_sizes(draw: Callable[..., None]) -> bool:
    return len(inspect.signature(draw).parameters) > 2


def _of_tensor(op: Op, spec: TensorSpec, values: str) -> str:
    """Return the distribution of one of the inputs when `values` are drawn.

    Some inputs of a backward op have other distributions.
    """
    if spec.name in op.saved:
        return OF_SAVED.get(values, NORMAL if values in OF_GRADIENTS else values)
    return NORMAL if values in OF_SAVED else values


def row_groups(op: Op, spec: TensorSpec, workload: Workload, values: str, seed: int) -> tuple[RowGroup, ...]:
    """Group the rows of an output by the distribution of their inputs; each group is judged separately."""
    names = _distributions(op, values, seed)
    if len(names) == 1:
        return (RowGroup(names[0]),)
    if spec.dims[:1] != op.varied[0].dims[:1]:
        return (RowGroup(MIXED),)
    rows = op.shape(spec, workload)[0]
    return tuple(RowGroup(name, row, len(names)) for row, name in enumerate(names[:rows]))


def mixed_seed(op: Op, first: int, weights: int, rng: random.Random) -> int:
    """Return a random seed whose mixed rows begin with distribution number `first`, modulo the number of distributions.

    `weights` chooses the distribution of weights: one in `LARGE_WEIGHTS` consecutive numbers gives large ones.
    """
    count = 1 + len(op.values)
    turn = rng.randrange(SEEDS // _mixtures(op)) * count + first % count
    return turn * 2 * LARGE_WEIGHTS + rng.randrange(2) * LARGE_WEIGHTS + weights % LARGE_WEIGHTS


def mixtures_needed(op: Op, workload: Workload) -> int:
    """Return the number of mixed seeds, each starting one distribution later, that cover every distribution."""
    sharing = op.sharing_rows if op.by_rows else ()
    rows = op.shape(sharing[0], workload)[0] if sharing else 1
    return max(1, 2 + len(op.values) - rows)


def meets_extremes_by_rows(op: Op, workload: Workload) -> bool:
    """Return whether one draw can hold rows of every extreme, each row of an output depending on one extreme."""
    return has_rows_of_extremes(op) and op.shape(op.varied[0], workload)[0] >= BOTH_SIGNS * len(op.extremes)


def has_rows_of_extremes(op: Op) -> bool:
    """Return whether each row of an output depends only on that row of the inputs, so that each may be extreme."""
    rows = op.varied[0].dims[:1]
    return bool(op.by_rows and op.sharing_rows and all(spec.dims[:1] == rows for spec in op.outputs))


def extreme_seeds(op: Op, workload: Workload, rng: random.Random) -> list[int]:
    """Return seeds whose draws of `EXTREME_ROWS` hold a row of every extreme together."""
    count, rows = len(op.extremes), op.shape(op.varied[0], workload)[0]
    return [rng.randrange(SEEDS // count) * count + first for first in range(0, count, rows)]


def few_extreme_seeds(op: Op, workload: Workload, rng: random.Random) -> list[int]:
    """Return the first seeds whose draws of `EXTREME_ROWS` together hold numbers that overflow or are not finite."""
    count, rows = len(op.extremes), op.shape(op.varied[0], workload)[0]
    first = next((index for index, name in enumerate(op.extremes) if name in (OVERFLOWING, *NOT_FINITE)), 0)
    return [rng.randrange(SEEDS // count) * count + start for start in range(first, count, rows)][:FEW_DRAWS]


def meeting_seeds(op: Op, workload: Workload, values: str, rng: random.Random) -> list[int]:
    """Return seeds whose draws together hold every meeting of this arrangement."""
    count = len(meetings(op, values))
    firsts = range(0, count, _rows_apart(op, workload))
    return [rng.randrange(SEEDS // count) * count + first for first in firsts]


def seeds_of_both_signs(op: Op, workload: Workload, values: str, rng: random.Random) -> list[int]:
    """Return a seed, and for infinities in a single row a second one, which gives them the other sign."""
    seed = rng.randrange(SEEDS - OTHER_SIGN)
    single = op.shape(op.varied[0], workload)[:1] in ((), (1,))
    return [seed, seed + OTHER_SIGN] if values in (INFINITE, SAVED_INFINITE) and single else [seed]


def _rows_apart(op: Op, workload: Workload) -> int:
    """Return how many rows of a draw have results of their own."""
    return op.shape(op.varied[0], workload)[0] if has_rows_of_extremes(op) else 1


def seeds_in_turn(op: Op, workload: Workload, values: str, rng: random.Random) -> list[int]:
    """Return seeds for NaN or infinities at the last place of each input, in rows in which the other inputs are finite.

    If rows are single numbers, or too few, each input needs a separate draw.
    """
    alike, first = _drawn_so(op, values), SEEDS_ALIKE * (rng.randrange(SEEDS // SEEDS_ALIKE // 2) + 1) - 1
    if not alike and values in op.extremes:
        return []  # no input that is drawn by rows holds such a value
    enough = all(len(spec.dims) > 1 and op.shape(spec, workload)[0] >= 2 * len(alike) for spec in alike)
    return [first + turn * SEEDS_ALIKE for turn in range(1 if enough else len(alike))]


def similar_seeds(op: Op, seed: int, count: int) -> range:
    """Return seeds that give other numbers, but draw every row from the same distribution as this seed does."""
    step = _mixtures(op) * max(1, len(op.extremes))
    return range(seed + step, seed + (count + 1) * step, step)


def _mixtures(op: Op) -> int:
    """Return the number of different mixtures; consecutive seeds cycle through them."""
    return 2 * LARGE_WEIGHTS * (1 + len(op.values))


def _distributions(op: Op, values: str, seed: int) -> tuple[str, ...]:
    """Return the distributions from which rows are drawn in turn.

    The seed selects the first distribution, because there may be few rows.
    """
    if values == EXTREME_ROWS:
        first = seed % len(op.extremes)
        return op.extremes[first:] + op.extremes[:first]
    if values != MIXED:
        return (values,)
    names = (NORMAL, *op.values)
    first = seed // (2 * LARGE_WEIGHTS) % len(names)
    names = names[first:] + names[:first]
    # Integer rows need integer weights, which reveal less about the other rows: only every other seed has them.
    if seed % 2 and set(op.varied) < set(op.floating):
        names = tuple(name for name in names if name != EXACT)
    return names if op.by_rows and op.sharing_rows else names[:1]
