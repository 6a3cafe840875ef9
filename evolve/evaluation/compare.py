"""Comparison of an output with the truth: how far it may be off, and how far it is."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

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


CUT_OFF_FACTOR = 1.75
EDGE = 2.0**-8  # of the largest number: a few of float16's roundings
SMALL = 2**15  # elements
NEARLY, FEW_OFF = 4, 8  # of many, if so few are so far off, rounding may explain more there than elsewhere
FAR, FAR_IN_16_BITS = 4096, 64  # off by more, it is not worth the time to find out what rounding explains


@dataclass(frozen=True)
class Comparison:
    """Root mean squares of the errors, and the worst element as a share of what is allowed there at the least."""

    fault: str  # empty when the output is right
    error: float = 0.0
    theirs: float = 0.0
    worst: float = 0.0

    def within(self, times: float) -> bool:
        """Whether what is wrong is so many times too inexact at most, and nothing else."""
        return 0 < self.worst <= times and self.error <= times * self.theirs


def compared(
    actual: torch.Tensor,
    theirs: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    *,
    exact: bool = False,
    sums: Sums = NO_SUMS,
    shaken: Callable[[], torch.Tensor] | None = None,
) -> Comparison:
    """`expected` is the float64 result, `theirs` PyTorch's at this dtype; `exact` allows not even a rounding.

    `sums` says what float32 may make of them, see `summed`; `shaken` tells how far each element moves when the inputs
    are as inexact as that, which takes a while.
    """
    if actual.shape != expected.shape:
        return Comparison(f"the shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() <= SMALL:  # launching kernels for so little takes a GPU longer
        actual, theirs, expected = actual.cpu(), theirs.cpu(), expected.cpu()
    dtype = actual.dtype
    if dtype.is_floating_point and dtype.itemsize == 1:  # PyTorch hardly computes with so few bits
        actual, theirs, expected = actual.float(), theirs.float(), expected.double()
    if exact or tolerance.exact or not actual.is_floating_point():
        return _exactly(actual, expected.to(dtype).to(actual.dtype))
    if not actual.numel():
        return Comparison("")
    scale = Scale(dtype, actual.numel(), sums, shaken)
    errors = errors_of(actual, theirs, expected, tolerance, scale)
    if not errors.finite:
        del errors  # room for others
        return _with_infinities(actual, theirs, expected, tolerance, scale)
    return _inaccurate(errors, actual, expected, tolerance, scale)


def _with_infinities(
    actual: torch.Tensor, theirs: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    """NaN and infinities must stand exactly where the float64 result has them; the rest is compared as ever."""
    largest = torch.finfo(scale.dtype).max
    wanted = torch.where(expected.abs() > largest, expected.to(scale.dtype).double(), expected)
    # So near to the largest number a rounding decides; and where PyTorch overflows on the way, a kernel may as well.
    edge = (expected.abs() / largest - 1).abs() < EDGE
    overflowed = theirs.isinf() & (expected.abs() > largest / 2)
    got = actual.double()
    either = (edge & (got.abs() > (1 - 2 * EDGE) * largest)) | (overflowed & got.isinf())
    either &= got.sign() == expected.sign()
    if said := _not_finite(torch.where(either, wanted, got), wanted):
        return Comparison(said)
    finite = wanted.isfinite() & ~either
    if not (count := int(finite.sum())):
        return Comparison("")
    wanted = torch.where(finite, wanted, 0.0)
    got = torch.where(finite, actual, 0.0)
    own = torch.where(finite & theirs.isfinite(), theirs.double(), wanted.to(scale.dtype).double())
    scale = replace(scale, count=count)
    return _inaccurate(errors_of(got, own, wanted, tolerance, scale), got, wanted, tolerance, scale)


def _inaccurate(
    errors: Errors, actual: torch.Tensor, wanted: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    found = _verdict(errors, actual, wanted, tolerance, scale)
    if found.worst > 1:  # what is usual is enough for most, and takes far fewer passes over memory
        errors = with_theirs_at_worst(errors, tolerance, scale)
        found = _verdict(errors, actual, wanted, tolerance, scale)
    few, far = scale.count < FEW, FAR if scale.dtype.itemsize >= 4 else FAR_IN_16_BITS
    if found.fault and scale.shaken and (few or found.worst < far):
        explain = partial(explained, errors, scale.shaken().to(actual.device), tolerance, scale)
        excused = explain(chance=few)
        found = _verdict(excused, actual, wanted, tolerance, scale)
        if found.fault and not few and _nearly(found, excused):
            found = _verdict(explain(chance=True), actual, wanted, tolerance, scale)
    return found


def _verdict(
    errors: Errors, actual: torch.Tensor, wanted: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    error, yardstick = errors.error, errors.yardstick
    worst = float(torch.linalg.vector_norm(errors.off / errors.allowed, math.inf))
    factor = _factor(scale.dtype, tolerance)
    said = ""
    if worst > 1:
        said = _elements_off(errors.off.abs(), errors.allowed, actual, wanted)
    elif error > factor * yardstick and error > (allowance := factor * leeway(wanted, scale.dtype)) * yardstick:
        said = (
            f"the root mean square error is {error:.3g}, {error / max(yardstick, TINY):.1f} times PyTorch's own "
            f"{yardstick:.3g}; {allowance:.3g} times is allowed"
        )
    return Comparison(said, error, yardstick, worst)


def _nearly(found: Comparison, errors: Errors) -> bool:
    """Elements of a row may share one error, and so count as one. With none off, the whole is at fault."""
    off = errors.off.abs() > errors.allowed
    rows = off.reshape(-1, off.shape[-1]).any(1) if off.ndim > 1 else off
    return found.worst < NEARLY and int(rows.sum()) <= FEW_OFF


def _factor(dtype: torch.dtype, tolerance: Tolerance) -> float:
    """With so few bits the last rounding is all the error there is, and cutting off instead doubles it."""
    return min(tolerance.factor, CUT_OFF_FACTOR) if dtype.itemsize < 4 else tolerance.factor


def leeway(wanted: torch.Tensor, dtype: torch.dtype) -> float:
    """A row may share one error, as of its sum, and one row may be as far off as one element: of few, that shows.

    Rows count as far as they make up the result: of a heavy tail it is a few. With few bits a rounding is all the error
    there is, and no row has a much larger one than another.
    """
    rows = wanted.reshape(-1, wanted.shape[-1] if wanted.ndim > 1 else 1)
    count = float(len(rows))
    if dtype.itemsize >= 4:
        sizes = rows.double().square().sum(1)
        count = float(sizes.sum().square() / sizes.square().sum().clamp(min=TINY))
    return math.sqrt((max(1.0, count) - 1 + ELEMENT_FACTOR**2) / max(1.0, count))


def _exactly(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    if torch.equal(actual, expected):
        return Comparison("")
    wrong = ~(actual == expected)
    at = _position(wrong)
    return Comparison(
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, and this output must be exact; "
        f"the first at {list(at)}: {actual[at].item()}, expected {expected[at].item()}"
    )


def _not_finite(got: torch.Tensor, expected: torch.Tensor) -> str:
    same = (got.isnan() & expected.isnan()) | (got == expected)
    wrong = ~same & ~(got.isfinite() & expected.isfinite())
    if not bool(wrong.any()):
        return ""
    at = _position(wrong)
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements are not finite where they should be, or the reverse; "
        f"the first at {list(at)}: {got[at].item():g}, expected {expected[at].item():g}"
    )


def _elements_off(error: torch.Tensor, allowed: torch.Tensor, actual: torch.Tensor, expected: torch.Tensor) -> str:
    at = tuple(int(i) for i in torch.unravel_index((error - allowed).argmax(), error.shape))
    return (
        f"{int((error > allowed).sum())} of {expected.numel()} elements are off by more than rounding explains; the "
        f"worst at {list(at)}: {actual[at].item():.6g}, expected {expected[at].item():.6g} within {allowed[at]:.2g}"
    )


def _position(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])
