"""Errors of an output relative to the float64 result, and the errors that are allowed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from evolve.devices.error_passes import Allowance
from reference_ops.op import Tolerance

CUT_OFF_FACTOR = 1.75
RELATIVE, RELATIVE_ROUNDINGS = 2.0**-6, 8  # allowed relative error of an element, or its number of roundings
ELEMENT_FACTOR = 4  # an element's error may exceed the root mean square error by this factor
FLOAT32_UNIT = 2.0**-24
FLOOR_ROUNDINGS = 0.25  # at the output's magnitude; PyTorch's error is smaller only by chance
BIAS, BIAS_WHEN_ALIKE = 1 / 32, 1 / 16  # share of the roundings that do not cancel: twice the share measured
THREADS, PAIRS = 256, 8  # threads of a block that sums a row, and additions of pairs that follow
SHORT_ROW, IN_TURN = 1024, 1 / 4  # adding n terms one after the other has an error of 0.26 * sqrt(n) roundings
AT_ONCE = 16  # products that a tensor core adds at once
LANES = 32  # lanes of the warp that adds up a longer row
LONG_ROW = 4096  # terms of similar size that a single thread may add up
TINY, SMALLEST_NORMAL = 1e-38, 2.0**-126
LEAST_QUICK, MOST_QUICK = 1e-15, 1e18  # squares below 1e-38 are negligible in the sum, and no square exceeds 1e38
FEW = 64  # fewer results may all be zero by chance, and PyTorch's may all be exact
SMALL = 2**15  # largest number of elements of an output that is compared on the CPU
ENOUGH = 16  # smallest number of errors with a meaningful mean


@dataclass(frozen=True)
class Sums:
    """Allowed error of a float32 sum. It covers any order of addition, because a kernel may choose the order."""

    unit: float = FLOAT32_UNIT  # relative error that is always allowed on average
    element: float = FLOAT32_UNIT  # relative error that is always allowed of one element
    roundings: float = 1.0  # roundings that may add up where terms cancel
    vanishing: bool = False  # the inputs are zero or very small, so that a bias may be all that is left
    steps: int = 1  # number of steps of a sequence that all compute the same
    lost: float = 0.0  # error on average of partial sums that are subnormal and taken for zero
    recurrent: bool = False  # each step passes its errors to the next
    independent: int = 0  # number of sums on which all results depend, if it is known


NO_SUMS = Sums()


def summed(terms: int, *, alike: bool, running: bool = False) -> Sums:
    """Return the error that is allowed for a sum of this many terms.

    On average, this is twice the error of a block of 256 threads: each adds up every 256th term, then their sums are
    added in pairs. For short rows, whose roundings cancel, and for longer rows of similar terms, it is the error of a
    single thread. The error of a `running` sum, whose order is given, may be as large in a row of any length. A single
    element may have the error of one thread that adds small terms to a large sum, where all roundings have the same
    direction. Two roundings are always allowed, as in a sum that is multiplied by the inverse of a count.
    """
    if terms <= 1:
        return NO_SUMS
    chain, row = min(terms, math.ceil(terms / THREADS) + PAIRS, LONG_ROW), min(terms, LONG_ROW)
    roundings, one_way = max(2.0, math.sqrt(terms / THREADS)), BIAS_WHEN_ALIKE if alike else BIAS
    longer = SHORT_ROW if running else max(SHORT_ROW**2 / terms, terms / LANES)
    added = terms if terms <= SHORT_ROW else longer
    in_turn = row * one_way if alike else IN_TURN * math.sqrt(added)
    usual = max(2 * IN_TURN * math.sqrt(chain), chain * BIAS, in_turn)
    worst = max(math.sqrt(row), row * one_way)
    return Sums(FLOAT32_UNIT * max(usual, roundings), FLOAT32_UNIT * max(worst, roundings), roundings)


def cut_off(products: int) -> float:
    """Return the relative error that is allowed on average for a sum of products of 16 bits by tensor cores.

    A tensor core aligns 16 products and the sum so far with the largest of them, and cuts off bits, always towards
    zero. On an H200, sums of 128 positive products err by 8 roundings of float32 in float16 and by 3 in bfloat16, sums
    of 64 products by 3 and 1. Allowed is a rounding for each addition, which the tolerance's factor doubles.
    """
    return FLOAT32_UNIT * products / AT_ONCE


def lost_by_atomics(terms: int) -> float:
    """Return the error that is allowed for a float32 sum of this many subnormal terms.

    A GPU's atomic addition in global memory takes a subnormal number for zero; PyTorch's `index_add` uses it as well.
    Any partial sums may be such numbers.
    """
    return SMALLEST_NORMAL / 2 * math.sqrt(terms)


@dataclass(frozen=True)
class Scale:
    """Quantities, besides PyTorch's own error, with which an error is compared."""

    dtype: torch.dtype  # dtype of the output
    count: int  # number of finite results
    sums: Sums
    perturbed: Callable[[], torch.Tensor] | None
    repeated: Callable[[], torch.Tensor] | None = None

    @property
    def rounding(self) -> float:
        """Relative rounding error of the output's dtype."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def step(self) -> float:
        """Distance between neighbouring subnormal numbers, which is also the smallest of them."""
        limits = torch.finfo(self.dtype)
        return limits.smallest_normal * limits.eps

    @property
    def inevitable(self) -> float:
        return max(self.rounding, self.sums.element)


@dataclass(frozen=True)
class Limits:
    """Mean errors of an output, and the errors that are allowed, as they follow from norms over all elements."""

    size: float  # root mean square of the result
    error: float  # root mean square error
    yardstick: float  # root mean square error of PyTorch, or the error that is always allowed
    allowance: Allowance  # the error that one element may have
    finite: bool  # all results are finite, also after conversion to the output's dtype


@dataclass(frozen=True)
class Errors:
    """Errors of each element and on average. Differences are taken in float64 and stored in float32 to save memory."""

    off: torch.Tensor  # signed errors
    allowed: torch.Tensor
    magnitude: torch.Tensor  # magnitudes of the results
    excess: torch.Tensor  # PyTorch's error beyond a rounding
    size: float  # this and the following fields are as in `Limits`
    error: float
    yardstick: float
    finite: bool


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison: root mean square errors, and the worst element's error relative to its allowed error."""

    fault: str  # empty when the output is right
    error: float = 0.0
    pytorch_error: float = 0.0
    worst: float = 0.0

    def within(self, times: float) -> bool:
        """Return whether the only fault is an error of at most `times` times the allowed error."""
        return 0 < self.worst <= times and self.error <= times * self.pytorch_error


def relative_allowance(scale: Scale) -> Allowance:
    share = max(RELATIVE, RELATIVE_ROUNDINGS * scale.rounding)
    return Allowance(torch.finfo(scale.dtype).smallest_normal, share, ELEMENT_FACTOR)


def largest_factor(dtype: torch.dtype, tolerance: Tolerance) -> float:
    """Return the tolerance's factor. For dtypes of 16 bits or fewer it is limited, so that truncation is rejected."""
    return min(tolerance.factor, CUT_OFF_FACTOR) if dtype.itemsize < 4 else tolerance.factor


def limits_of(found: Sequence[float], tolerance: Tolerance, scale: Scale) -> Limits:
    """Return the limits for norms of the result, of the output's error, of PyTorch's error and of its usual excess.

    The fifth number in `found` is the largest magnitude of a result.
    """
    size, error, pytorch_rms, usual_excess = (norm / math.sqrt(scale.count) for norm in found[:4])
    floor, factor = scale.sums.unit * size, ELEMENT_FACTOR * tolerance.factor
    least = max(factor * max(usual_excess + scale.sums.element * size, scale.sums.lost), TINY, scale.step)
    return Limits(
        size,
        error,
        # With few rows, PyTorch's error may be small by chance: an error that a whole row shares is a single sample.
        max(pytorch_rms, FLOOR_ROUNDINGS * scale.rounding * size, floor, scale.step / 2, scale.sums.lost),
        Allowance(least, factor * scale.inevitable),
        all(map(math.isfinite, found)) and found[4] <= torch.finfo(scale.dtype).max,
    )


def errors_of(
    actual: torch.Tensor,
    pytorch: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    scale: Scale,
) -> Errors:
    """Compute the errors in few passes over memory: no other step of an evaluation moves more bytes."""
    magnitude = expected.float().abs_()
    off = torch.sub(actual, expected, out=_like(expected))
    pytorch_error = torch.sub(pytorch, expected, out=_like(expected)).abs_()
    # Subtract the rounding of each result: otherwise the error of one large element would excuse all small ones.
    excess = torch.sub(pytorch_error, magnitude, alpha=scale.rounding).clamp_(min=0)
    limits = limits_of(norms([magnitude, off, pytorch_error, excess], magnitude.max()), tolerance, scale)
    del pytorch_error  # to save memory
    # beyond float32's range where results are nearly as large and PyTorch's error is, too
    least = magnitude.new_full((), min(limits.allowance.constant, torch.finfo(magnitude.dtype).max))
    allowed = torch.add(least, magnitude, alpha=limits.allowance.of_result)
    return Errors(off, allowed, magnitude, excess, limits.size, limits.error, limits.yardstick, limits.finite)


def allow_worst_of_pytorch(errors: Errors, tolerance: Tolerance, scale: Scale) -> Errors:
    """Allow each element PyTorch's worst error, in proportion to the element.

    Errors of sums of products have heavy tails: among many elements, PyTorch's worst error is far larger than its mean.
    A large error of the largest element does not excuse a large error of a small one. This overwrites `errors.allowed`.
    """
    large = errors.magnitude.clamp(min=errors.size + TINY)
    worst, worst_share = torch.stack([errors.excess.max(), (errors.excess / large).max()]).tolist()
    allowed = large.mul_(worst_share).clamp_(max=worst).add_(errors.magnitude, alpha=scale.inevitable)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed.mul_(tolerance.factor), out=errors.allowed))


def allow_rounding_of_inputs(
    errors: Errors, perturbed: torch.Tensor, tolerance: Tolerance, scale: Scale, *, chance: bool
) -> Errors:
    """Allow the error that rounding the inputs would cause, for example where large terms cancel.

    The mean error may be as large as if the inputs were rounded once more; an element's error may be as large as if
    they were rounded as often as float32 rounds a sum. With `chance`, more is allowed, in proportion to PyTorch's
    errors relative to `perturbed`. These ratios have no heavy tail. They are computed for all elements whose
    `perturbed` exceeds a rounding.
    """
    rounding, least = errors.magnitude * scale.rounding, scale.sums.roundings
    if chance:
        usual = max(least, _usual_share(errors, perturbed, rounding, scale))
        allowed = tolerance.factor * ELEMENT_FACTOR * (rounding + usual * perturbed)
    else:
        allowed = tolerance.factor * (rounding + least * perturbed)
    # Only one rounding: if all elements change a lot, a larger allowance would hide the loss of half their bits.
    yardstick = norms([perturbed])[0] / math.sqrt(scale.count)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed), yardstick=max(errors.yardstick, yardstick))


def allow_repeated_errors(errors: Errors, repeated: torch.Tensor, tolerance: Tolerance, scale: Scale) -> Errors:
    """Allow each element PyTorch's error on inputs near these.

    Where 1 - n * n is computed from a rounded n near 1, every error is large, but PyTorch's own may be small by chance.
    In a sequence that enlarges errors, this holds for the mean error, too.
    """
    allowed = tolerance.factor * ELEMENT_FACTOR * (errors.magnitude * scale.rounding + repeated)
    errors = replace(errors, allowed=torch.maximum(errors.allowed, allowed))
    if not scale.sums.recurrent:
        return errors
    return replace(errors, yardstick=max(errors.yardstick, norms([repeated])[0] / math.sqrt(scale.count)))


def leeway(expected: torch.Tensor, dtype: torch.dtype, sums: Sums = NO_SUMS, off: torch.Tensor | None = None) -> float:
    """Return the factor by which the mean error may exceed the usual limit. It grows as the number of rows falls.

    All elements of a row may share one error, such as the error of its sum, so the error of a single row may be as
    large as the error of a single element. The same holds for the rows of an image that is normalised as a whole: then
    the number of `independent` sums counts. Rows are weighted by their share of the result. With 16 bits or fewer, most
    of the error is rounding, which is similar in all rows. If inputs are nearly zero, only a bias may be left. All
    results are then equal and share one error, as do all steps of a sequence, because each step repeats the one before.
    In a sequence, an error passes to the next steps, which may enlarge it until it exceeds the sum of all others. The
    errors `off` of one unit at all steps then count as one, and are weighted by their share of the whole error.
    """
    rows = expected.reshape(-1, expected.shape[-1] if expected.ndim > 1 else 1)
    count = float(len(rows))
    if dtype.itemsize >= 4:
        sizes = rows.double().square().sum(1)
        count = float(sizes.sum().square() / sizes.square().sum().clamp(min=TINY))
        count = min(count, sums.independent or count)
    if sums.vanishing:
        count = min(count, len(expected.reshape(-1)[:: 1 + expected.numel() // SMALL].float().unique()))
        count = min(count, expected.numel() / sums.steps)
    if off is not None and sums.recurrent and dtype.itemsize >= 4:
        of_units = off.double().square().sum(0)
        count = min(count, 1 / float((of_units / of_units.sum()).square().sum()))
    count = max(1.0, count)
    return math.sqrt((count - 1 + ELEMENT_FACTOR**2) / count)


def _usual_share(errors: Errors, perturbed: torch.Tensor, rounding: torch.Tensor, scale: Scale) -> float:
    """Return the root mean square of PyTorch's errors over `perturbed`; 0 if too few elements exceed a rounding."""
    seen = perturbed > rounding
    count = int(seen.sum())
    if count < ENOUGH and not (count and scale.count < FEW):
        return 0.0
    return norms([torch.where(seen, errors.excess / perturbed, 0.0)])[0] / math.sqrt(count)


def _like(expected: torch.Tensor) -> torch.Tensor:
    """Return an empty float32 tensor for the result of a float64 computation."""
    return torch.empty(expected.shape, dtype=torch.float32, device=expected.device)


def norms(tensors: Sequence[torch.Tensor], *others: torch.Tensor, quick: bool | None = None) -> list[float]:
    """Return the Euclidean norm of each float32 tensor, then the other single values, in one transfer from the GPU.

    On a GPU (`quick`) squares are first summed in float32, which moves a quarter of the bytes. A norm for which squares
    may have left float32's range is computed again in float64. On the CPU such sums are not exact enough.
    """
    quick = tensors[0].is_cuda if quick is None else quick
    dtype = torch.float32 if quick else torch.float64
    found = [torch.linalg.vector_norm(values, dtype=dtype) for values in tensors]
    results: list[float] = torch.stack([value.double() for value in (*found, *others)]).tolist()
    for index, values in enumerate(tensors if quick else ()):
        zero = results[index] == 0 and float(torch.linalg.vector_norm(values, math.inf)) == 0
        if not (zero or LEAST_QUICK < results[index] < MOST_QUICK):
            results[index] = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    return results
