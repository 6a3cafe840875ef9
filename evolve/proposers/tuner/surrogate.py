"""The surrogate model: a Gaussian process that predicts the log time of a setting and its standard deviation.

The covariance of two settings is a weighted mean of an average over the knobs and a product over the knobs.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

LENGTH_SCALES = (0.25, 0.5, 1.0, 2.0, 8.0)  # in units of the knob's range; at the largest, the knob hardly matters
ADDITIVE = (0.0, 0.5, 0.85)  # fraction of the variance due to single knobs
NOISE = (1e-3, 2e-2)  # variance of the noise, as a fraction of the total variance
SWEEPS = 2  # number of passes over the knobs
LENGTH_PENALTY = 0.02  # penalty on length scales far from the knob's range
PRIOR_DEVIATION, PRIOR_OBSERVATIONS = 0.35, 4.0  # prior standard deviation of log times, and its weight in observations
MIN_FITTED = 5  # number of observations below which the default covariance is used
MAX_FITTED = 64


@dataclass(frozen=True)
class Covariance:
    """The hyperparameters of the covariance: length scales by knob, additive share and noise."""

    lengths: tuple[float, ...]
    additive: float = 0.5
    noise: float = 1e-2


@dataclass(frozen=True)
class _GridPoint:
    """Hyperparameters on the grid; the lengths are indices into LENGTH_SCALES."""

    lengths: tuple[int, ...]
    additive: float
    noise: float


@dataclass(frozen=True)
class Posterior:
    """The posterior of the Gaussian process at each point."""

    mean: torch.Tensor
    deviation: torch.Tensor


def distances(left: torch.Tensor, right: torch.Tensor, categorical: Sequence[bool]) -> torch.Tensor:
    """Return the distances, indexed by knob, left point and right point.

    Different categories are more than 0.5 apart.
    """
    distance = (left.T[:, :, None] - right.T[:, None, :]).abs()
    for knob in (knob for knob, unordered in enumerate(categorical) if unordered):
        distance[knob] = (distance[knob] + (distance[knob] > 0)) / 2
    return distance


def correlation(distance: torch.Tensor, covariance: Covariance) -> torch.Tensor:
    """Return the correlation of points at these distances, which are given by knob. It is 1 at distance 0."""
    each = [_matern(one, length) for one, length in zip(distance, covariance.lengths, strict=True)]
    return _combined(each, covariance.additive)


def fit_covariance(distance: torch.Tensor, values: torch.Tensor) -> Covariance:
    """Return the most likely hyperparameters on a small grid, found by coordinate ascent over the knobs."""
    knobs = len(distance)
    if len(values) < MIN_FITTED:
        return Covariance((1.0,) * knobs)
    if len(values) > MAX_FITTED:
        chosen = _subset(values)
        distance, values = distance[:, chosen][:, :, chosen], values[chosen]
    table = [[_matern(one, length) for length in LENGTH_SCALES] for one in distance]
    rest = list(itertools.product(ADDITIVE, NOISE))
    isotropic = [_GridPoint((length,) * knobs, *more) for length in range(len(LENGTH_SCALES) - 1) for more in rest]
    best = _most_likely(isotropic, table, values)
    for sweep in range(SWEEPS):
        for knob in range(knobs):
            before, after = best.lengths[:knob], best.lengths[knob + 1 :]
            grid = [replace(best, lengths=(*before, length, *after)) for length in range(len(LENGTH_SCALES))]
            best = _most_likely(grid, table, values)
        if sweep < SWEEPS - 1:
            best = _most_likely([_GridPoint(best.lengths, *more) for more in rest], table, values)
    return Covariance(tuple(LENGTH_SCALES[length] for length in best.lengths), best.additive, best.noise)


def posterior(cross: torch.Tensor, seen: torch.Tensor, values: torch.Tensor, noise: float) -> Posterior:
    """Return the posterior at all points. `cross` is their correlation with the `seen` points, which have `values`."""
    matrix = cross[seen] + noise * torch.eye(len(seen), dtype=torch.float64)
    factor = torch.linalg.cholesky(matrix)
    level = _mean_level(factor, values)
    variance = _variance(factor, values - level)
    weights = torch.cholesky_solve((values - level)[:, None], factor)[:, 0]
    explained = torch.linalg.solve_triangular(factor, cross.T, upper=False).square().sum(0)
    deviation = (variance * (1 - explained).clamp_min(1e-6)).sqrt()
    return Posterior(level + cross @ weights, deviation)


def expected_improvement(posterior: Posterior, best: float) -> torch.Tensor:
    """Return the expected improvement of each point over the best log time."""
    ahead = best - posterior.mean
    z = ahead / posterior.deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    gain: torch.Tensor = ahead * torch.special.ndtr(z) + posterior.deviation * density
    return gain.clamp_min(0.0)


def _subset(values: torch.Tensor) -> torch.Tensor:
    """Return the indices of at most MAX_FITTED values: the lowest ones, and a sample of the others."""
    order = values.argsort()
    others = order[MAX_FITTED // 2 :]
    return torch.cat([order[: MAX_FITTED // 2], others[:: math.ceil(2 * len(others) / MAX_FITTED)]])


def _matern(distance: torch.Tensor, length: float) -> torch.Tensor:
    """Return the Matern 5/2 correlation of one knob."""
    scaled = distance * (math.sqrt(5) / length)
    return (1 + scaled + scaled.square() / 3) * torch.exp(-scaled)


def _combined(each: Sequence[torch.Tensor], additive: float) -> torch.Tensor:
    product = total = each[0]
    for one in each[1:]:
        product, total = product * one, total + one
    return product + additive * (total / len(each) - product)


def _most_likely(
    grid: Sequence[_GridPoint], table: Sequence[Sequence[torch.Tensor]], values: torch.Tensor
) -> _GridPoint:
    """Return the hyperparameters with the highest penalised marginal likelihood."""
    eye = torch.eye(len(values), dtype=torch.float64)
    matrices = [
        _combined([of_one[length] for of_one, length in zip(table, point.lengths, strict=True)], point.additive)
        + point.noise * eye
        for point in grid
    ]
    factor = torch.linalg.cholesky(torch.stack(matrices))
    variance = _variance(factor, values - _mean_level(factor, values)[:, None])
    log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    lengths = torch.tensor([[LENGTH_SCALES[length] for length in point.lengths] for point in grid], dtype=torch.float64)
    penalty = LENGTH_PENALTY * lengths.log().square().sum(-1)
    score = -0.5 * (len(values) + PRIOR_OBSERVATIONS) * variance.log() - log_determinant - penalty
    return grid[int(score.argmax())]


def _mean_level(factor: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return the generalised least squares mean, in which correlated values have less weight."""
    ones = torch.ones((*factor.shape[:-1], 1), dtype=torch.float64)
    solved = torch.cholesky_solve(ones, factor)[..., 0]
    return (solved * values).sum(-1) / solved.sum(-1)


def _variance(factor: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
    solved = torch.cholesky_solve(rest[..., None], factor)[..., 0]
    return ((solved * rest).sum(-1) + PRIOR_OBSERVATIONS * PRIOR_DEVIATION**2) / (rest.shape[-1] + PRIOR_OBSERVATIONS)
