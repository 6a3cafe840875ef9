"""How far off may a result be? By PyTorch's own error, a rounding, and what float32 does where terms cancel."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from reference_ops.op import Tolerance

ELEMENT_FACTOR = 4  # one element may be off by this much more than the root mean square error
FLOAT32_UNIT = 2.0**-24
FLOOR_ROUNDINGS = 0.25  # of an output's magnitude: below this, PyTorch was lucky
LONGEST_CHAIN = 4096  # numbers that one thread may add up: of many more float32 loses too much
ONE_WAY, ALIKE_ONE_WAY = 1 / 32, 1 / 16  # of its roundings, on balance; half of that was seen
THREADS = 256  # of a plain kernel that sums a row
TINY = 1e-38
FEW = 64  # results: any may be zero by chance, and PyTorch exact
ENOUGH = 16  # errors, for their mean to be no luck


@dataclass(frozen=True)
class Sums:
    """What float32 makes of sums, in whichever order: that is the kernel's to choose."""

    unit: float = FLOAT32_UNIT  # of a sum: nobody is asked to add up more exactly
    roundings: float = 1.0  # that may come together where terms cancel


NO_SUMS = Sums()


def summed(terms: int, *, alike: bool) -> Sums:
    """One thread may add up a row; where small terms meet a large sum, what is lost goes the same way.

    Where terms cancel such a loss may be all that is left: there it takes a block of threads, with terms / 256 each,
    though a sum that is multiplied by the inverse of a count is rounded twice.
    """
    if terms <= 1:
        return NO_SUMS
    chain, roundings = min(terms, LONGEST_CHAIN), max(2.0, math.sqrt(terms / THREADS))
    lost = max(math.sqrt(chain), chain * (ALIKE_ONE_WAY if alike else ONE_WAY))
    return Sums(FLOAT32_UNIT * max(lost, roundings), roundings)


@dataclass(frozen=True)
class Scale:
    """What an error is measured against, besides PyTorch's own."""

    dtype: torch.dtype  # of the output
    count: int  # of finite results
    sums: Sums
    shaken: Callable[[], torch.Tensor] | None

    @property
    def rounding(self) -> float:
        """Of a result to its dtype, as a share of it."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def inevitable(self) -> float:
        return max(self.rounding, self.sums.unit)


@dataclass(frozen=True)
class Errors:
    """Differences are taken in float64 and kept in float32: they need no more digits, and memory is what it costs."""

    off: torch.Tensor  # with its sign
    allowed: torch.Tensor
    magnitude: torch.Tensor  # of the result
    excess: torch.Tensor  # PyTorch's error beyond its rounding
    size: float  # root mean squares, of the result and of the error
    error: float
    yardstick: float
    finite: bool  # no result is NaN or infinite, nor becomes so at the output's dtype


def errors_of(
    actual: torch.Tensor,
    theirs: torch.Tensor,
    wanted: torch.Tensor,
    tolerance: Tolerance,
    scale: Scale,
) -> Errors:
    """In as few passes over memory as it takes: of all that an evaluation does, this moves most bytes."""
    magnitude = wanted.float().abs_()
    off = torch.sub(actual, wanted, out=_like(wanted))
    their_error = torch.sub(theirs, wanted, out=_like(wanted)).abs_()
    norms = [_norm(values) for values in (magnitude, off, their_error)]
    # Beyond the rounding of the result itself; or one large element would excuse every small one.
    excess = their_error.sub_(magnitude, alpha=scale.rounding).clamp_(min=0)
    norms += [_norm(excess), magnitude.max().double()]
    *found, largest = torch.stack(norms).tolist()  # everything in one answer from the GPU
    size, error, own_error, usual_excess = (norm / math.sqrt(scale.count) for norm in found)
    floor, factor = scale.sums.unit * size, ELEMENT_FACTOR * tolerance.factor
    least = magnitude.new_full((), max(factor * (usual_excess + floor), TINY))
    return Errors(
        off,
        torch.add(least, magnitude, alpha=factor * scale.inevitable),
        magnitude,
        excess,
        size,
        error,
        # On few rows PyTorch can be lucky: an error that a whole row shares, as of its norm, is drawn once per row.
        max(own_error, FLOOR_ROUNDINGS * scale.rounding * size, floor),
        all(map(math.isfinite, found)) and largest <= torch.finfo(scale.dtype).max,
    )


def with_theirs_at_worst(errors: Errors, tolerance: Tolerance, scale: Scale) -> Errors:
    """Sums of products have heavy tails: among many elements PyTorch's own worst lies far beyond its mean.

    What that excuses grows with the elements: the error of the largest is no excuse for a small one. It takes the place
    of what was allowed before.
    """
    large = errors.magnitude.clamp(min=errors.size + TINY)
    worst, worst_share = torch.stack([errors.excess.max(), (errors.excess / large).max()]).tolist()
    allowed = large.mul_(worst_share).clamp_(max=worst).add_(errors.magnitude, alpha=scale.inevitable)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed.mul_(tolerance.factor), out=errors.allowed))


def explained(errors: Errors, shaken: torch.Tensor, tolerance: Tolerance, scale: Scale, *, chance: bool) -> Errors:
    """Where terms are large and cancel, PyTorch's luck with one element tells of no other.

    As exact as with inputs rounded once more is right anywhere; an element as with those rounded as often as float32
    rounds a sum. Few may by `chance` be farther off: there PyTorch's errors are taken as shares, which have no heavy
    tail, of how far float32 moves each element, where that shows.
    """
    rounding, least = errors.magnitude * scale.rounding, scale.sums.roundings
    if chance:
        usual = max(least, _usual_share(errors, shaken, rounding, scale))
        allowed = tolerance.factor * ELEMENT_FACTOR * (rounding + usual * shaken)
    else:
        allowed = tolerance.factor * (rounding + least * shaken)
    # Not as often here: where all elements move alike and far, half of their bits could hide in that.
    yardstick = float(_norm(shaken)) / math.sqrt(scale.count)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed), yardstick=max(errors.yardstick, yardstick))


def _usual_share(errors: Errors, shaken: torch.Tensor, rounding: torch.Tensor, scale: Scale) -> float:
    """PyTorch's errors by how far each element moves, root mean square; 0 where a few of many tell of luck alone."""
    seen = shaken > rounding
    count = int(seen.sum())
    if count < ENOUGH and not (count and scale.count < FEW):
        return 0.0
    return float(_norm(torch.where(seen, errors.excess / shaken, 0.0))) / math.sqrt(count)


def _like(wanted: torch.Tensor) -> torch.Tensor:
    """Room for what is computed in float64 and kept in float32."""
    return torch.empty(wanted.shape, dtype=torch.float32, device=wanted.device)


def _norm(values: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm
