"""A Gaussian process over settings: what the log of the time will be, and how unsure that is.

Two settings are as alike as their knobs: in part each knob counts by itself, in part only all of them together.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

LENGTHS = (0.25, 0.5, 1.0, 2.0, 8.0)  # of a knob's whole range; the last: the knob hardly matters
ADDITIVE = (0.0, 0.5, 0.85)  # how much of the variance is due to single knobs
NOISE = (1e-3, 2e-2)  # as a share of the variance
SWEEPS = 2
PRIOR = 0.02  # against lengths far from the whole range
USUAL_SPREAD, BELIEF = 0.35, 4.0  # of log times before any was seen, and how many observations that is worth
LEAST_FITTED = 5  # fewer observations say nothing about lengths
MOST_FITTED = 64


@dataclass(frozen=True)
class Shape:
    """How quickly likeness fades with each knob, and the rest of it."""

    lengths: tuple[float, ...]
    additive: float = 0.5
    noise: float = 1e-2


@dataclass(frozen=True)
class _Choice:
    """A shape on the grid: its lengths are indices."""

    lengths: tuple[int, ...]
    additive: float
    noise: float


@dataclass(frozen=True)
class Beliefs:
    """By place."""

    mean: torch.Tensor
    spread: torch.Tensor


def distances(left: torch.Tensor, right: torch.Tensor, choices: Sequence[bool]) -> torch.Tensor:
    """By knob, then left and right; two choices are apart however near they stand in their list."""
    apart = (left.T[:, :, None] - right.T[:, None, :]).abs()
    for knob in (knob for knob, choice in enumerate(choices) if choice):
        apart[knob] = (apart[knob] + (apart[knob] > 0)) / 2
    return apart


def likeness(apart: torch.Tensor, shape: Shape) -> torch.Tensor:
    """1 for the same."""
    return _mixed([_matern(one, length) for one, length in zip(apart, shape.lengths, strict=True)], shape.additive)


def fitted(apart: torch.Tensor, values: torch.Tensor) -> Shape:
    """The most likely shape on a small grid, one knob's length at a time; the fastest and a few others speak."""
    knobs = len(apart)
    if len(values) < LEAST_FITTED:
        return Shape((1.0,) * knobs)
    if len(values) > MOST_FITTED:
        chosen = _spokesmen(values)
        apart, values = apart[:, chosen][:, :, chosen], values[chosen]
    table = [[_matern(one, length) for length in LENGTHS] for one in apart]
    rest = list(itertools.product(ADDITIVE, NOISE))
    best = _likeliest(
        [_Choice((length,) * knobs, *more) for length in range(len(LENGTHS) - 1) for more in rest], table, values
    )
    for sweep in range(SWEEPS):
        for knob in range(knobs):
            before, after = best.lengths[:knob], best.lengths[knob + 1 :]
            grid = [replace(best, lengths=(*before, length, *after)) for length in range(len(LENGTHS))]
            best = _likeliest(grid, table, values)
        if sweep < SWEEPS - 1:
            best = _likeliest([_Choice(best.lengths, *more) for more in rest], table, values)
    return Shape(tuple(LENGTHS[length] for length in best.lengths), best.additive, best.noise)


def beliefs(cross: torch.Tensor, seen: torch.Tensor, values: torch.Tensor, noise: float) -> Beliefs:
    """About all places, from the values at those that were seen; `cross` is how like each is to those."""
    matrix = cross[seen] + noise * torch.eye(len(seen), dtype=torch.float64)
    factor = torch.linalg.cholesky(matrix)
    level = _level(factor, values)
    variance = _variance(factor, values - level)
    weights = torch.cholesky_solve((values - level)[:, None], factor)[:, 0]
    explained = torch.linalg.solve_triangular(factor, cross.T, upper=False).square().sum(0)
    spread = (variance * (1 - explained).clamp_min(1e-6)).sqrt()
    return Beliefs(level + cross @ weights, spread)


def expected_gain(held: Beliefs, bar: float) -> torch.Tensor:
    """How far a setting is expected to get below the bar, on average over all that it may turn out to be."""
    ahead = bar - held.mean
    z = ahead / held.spread
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    gain: torch.Tensor = ahead * torch.special.ndtr(z) + held.spread * density
    return gain.clamp_min(0.0)


def _spokesmen(values: torch.Tensor) -> torch.Tensor:
    order = values.argsort()
    others = order[MOST_FITTED // 2 :]
    return torch.cat([order[: MOST_FITTED // 2], others[:: math.ceil(2 * len(others) / MOST_FITTED)]])


def _matern(apart: torch.Tensor, length: float) -> torch.Tensor:
    """Matern 5/2 of one knob by itself."""
    scaled = apart * (math.sqrt(5) / length)
    return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)


def _mixed(each: Sequence[torch.Tensor], additive: float) -> torch.Tensor:
    product = total = each[0]
    for one in each[1:]:
        product, total = product * one, total + one
    return product + additive * (total / len(each) - product)


def _likeliest(grid: Sequence[_Choice], table: Sequence[Sequence[torch.Tensor]], values: torch.Tensor) -> _Choice:
    eye = torch.eye(len(values), dtype=torch.float64)
    matrices = [
        _mixed([of_one[length] for of_one, length in zip(table, choice.lengths, strict=True)], choice.additive)
        + choice.noise * eye
        for choice in grid
    ]
    factor = torch.linalg.cholesky(torch.stack(matrices))
    variance = _variance(factor, values - _level(factor, values)[:, None])
    size = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    lengths = torch.tensor([[LENGTHS[length] for length in choice.lengths] for choice in grid], dtype=torch.float64)
    unusual = PRIOR * lengths.log().square().sum(-1)
    score = -0.5 * (len(values) + BELIEF) * variance.log() - size - unusual
    return grid[int(score.argmax())]


def _level(factor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """What the values vary about; of those that are alike each counts for less."""
    ones = torch.ones((*factor.shape[:-1], 1), dtype=torch.float64)
    solved = torch.cholesky_solve(ones, factor)[..., 0]
    return (solved * values).sum(-1) / solved.sum(-1)


def _variance(factor: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    solved = torch.cholesky_solve(rest[..., None], factor)[..., 0]
    return ((solved * rest).sum(-1) + BELIEF * USUAL_SPREAD**2) / (rest.shape[-1] + BELIEF)
