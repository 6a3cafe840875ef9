"""Comparison of an output with the float64 result: computes its error and the error that is allowed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from reference_ops.op import Tolerance

ELEMENT_FACTOR = 4  # an element's error may exceed the root mean square error by this factor
FLOAT32_UNIT = 2.0**-24
FLOOR_ROUNDINGS = 0.25  # of the output's magnitude; PyTorch's error is below this only by chance
BIAS, BIAS_WHEN_ALIKE = 1 / 32, 1 / 16  # share of the roundings that do not cancel: twice the share measured
THREADS, PAIRS = 256, 8  # threads of a block that sums a row, and additions of pairs that follow
SHORT_ROW, IN_TURN = 1024, 1 / 4  # of n positive terms added in turn, the error is 0.26 * sqrt(n) roundings
LONG_ROW = 4096  # of terms that are alike, a single thread may add up so many
TINY = 1e-38
FEW = 64  # fewer results than this may all be zero by chance, and PyTorch's all exact
ENOUGH = 16  # number of errors with a meaningful mean


@dataclass(frozen=True)
class Sums:
    """Allowed error of a float32 sum. It covers any order of addition, because a kernel may choose the order."""

    unit: float = FLOAT32_UNIT  # relative error that is always allowed
    roundings: float = 1.0  # roundings that may add up where terms cancel


NO_SUMS = Sums()


def summed(terms: int, *, alike: bool) -> Sums:
    """Return the error that is allowed for a sum of this many terms.

    A block of 256 threads may add it up: each thread every 256th term, then the threads' sums in pairs. Where small
    terms are added to a large sum, all roundings go the same way. A single thread may add up a short row: its roundings
    cancel, except where the terms are alike. Two roundings are always allowed, as in a sum that is multiplied by the
    inverse of a count.
    """
    if terms <= 1:
        return NO_SUMS
    chain, roundings = min(terms, math.ceil(terms / THREADS) + PAIRS), max(2.0, math.sqrt(terms / THREADS))
    in_turn = IN_TURN * math.sqrt(min(terms, SHORT_ROW))
    lost = max(math.sqrt(chain), chain * BIAS, in_turn, min(terms, LONG_ROW) * BIAS_WHEN_ALIKE if alike else 0)
    return Sums(FLOAT32_UNIT * max(lost, roundings), roundings)


@dataclass(frozen=True)
class Scale:
    """Quantities that an error is compared with, besides PyTorch's own error."""

    dtype: torch.dtype  # of the output
    count: int  # number of finite results
    sums: Sums
    perturbed: Callable[[], torch.Tensor] | None

    @property
    def rounding(self) -> float:
        """Relative rounding error of the output's dtype."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def step(self) -> float:
        """Distance of neighbouring subnormal numbers, and of zero from the least of them."""
        limits = torch.finfo(self.dtype)
        return limits.smallest_normal * limits.eps

    @property
    def inevitable(self) -> float:
        return max(self.rounding, self.sums.unit)


@dataclass(frozen=True)
class Errors:
    """Errors of each element and on average. Differences are taken in float64 and stored in float32 to save memory."""

    off: torch.Tensor  # signed
    allowed: torch.Tensor
    magnitude: torch.Tensor  # of the result
    excess: torch.Tensor  # PyTorch's error beyond a rounding
    size: float  # root mean square of the result
    error: float  # root mean square error
    yardstick: float
    finite: bool  # all results are finite, also after conversion to the output's dtype


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
    norms = [_norm(values) for values in (magnitude, off, pytorch_error)]
    # Subtract the rounding of each result: otherwise the error of one large element would excuse all small ones.
    excess = pytorch_error.sub_(magnitude, alpha=scale.rounding).clamp_(min=0)
    norms += [_norm(excess), magnitude.max().double()]
    *found, largest = torch.stack(norms).tolist()  # one transfer from the GPU
    size, error, pytorch_rms, usual_excess = (norm / math.sqrt(scale.count) for norm in found)
    floor, factor = scale.sums.unit * size, ELEMENT_FACTOR * tolerance.factor
    least = magnitude.new_full((), max(factor * (usual_excess + floor), TINY, scale.step))
    return Errors(
        off,
        torch.add(least, magnitude, alpha=factor * scale.inevitable),
        magnitude,
        excess,
        size,
        error,
        # With few rows, PyTorch's error may be small by chance: an error that a whole row shares is a single sample.
        max(pytorch_rms, FLOOR_ROUNDINGS * scale.rounding * size, floor, scale.step / 2),
        all(map(math.isfinite, found)) and largest <= torch.finfo(scale.dtype).max,
    )


def allow_worst_of_pytorch(errors: Errors, tolerance: Tolerance, scale: Scale) -> Errors:
    """Allow each element PyTorch's worst error, in proportion to the element.

    Errors of sums of products have heavy tails: among many elements, PyTorch's worst error is far larger than its mean.
    The error of the largest element does not excuse that of a small one. Overwrites `errors.allowed`.
    """
    large = errors.magnitude.clamp(min=errors.size + TINY)
    worst, worst_share = torch.stack([errors.excess.max(), (errors.excess / large).max()]).tolist()
    allowed = large.mul_(worst_share).clamp_(max=worst).add_(errors.magnitude, alpha=scale.inevitable)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed.mul_(tolerance.factor), out=errors.allowed))


def allow_rounding_of_inputs(
    errors: Errors, perturbed: torch.Tensor, tolerance: Tolerance, scale: Scale, *, chance: bool
) -> Errors:
    """Allow the error that rounding the inputs would cause, for example where large terms cancel.

    The mean error may be that of inputs rounded once more; an element's error may be that of inputs rounded as often as
    float32 rounds a sum. With `chance`, more is allowed, in proportion to PyTorch's errors relative to `perturbed`.
    These ratios have no heavy tail. They are taken wherever `perturbed` exceeds a rounding.
    """
    rounding, least = errors.magnitude * scale.rounding, scale.sums.roundings
    if chance:
        usual = max(least, _usual_share(errors, perturbed, rounding, scale))
        allowed = tolerance.factor * ELEMENT_FACTOR * (rounding + usual * perturbed)
    else:
        allowed = tolerance.factor * (rounding + least * perturbed)
    # For one rounding only: where all elements move far, a larger allowance would hide the loss of half their bits.
    yardstick = float(_norm(perturbed)) / math.sqrt(scale.count)
    return replace(errors, allowed=torch.maximum(errors.allowed, allowed), yardstick=max(errors.yardstick, yardstick))


def _usual_share(errors: Errors, perturbed: torch.Tensor, rounding: torch.Tensor, scale: Scale) -> float:
    """Return the root mean square of PyTorch's errors over `perturbed`; 0 if too few elements exceed a rounding."""
    seen = perturbed > rounding
    count = int(seen.sum())
    if count < ENOUGH and not (count and scale.count < FEW):
        return 0.0
    return float(_norm(torch.where(seen, errors.excess / perturbed, 0.0))) / math.sqrt(count)


def _like(expected: torch.Tensor) -> torch.Tensor:
    """Return an empty float32 tensor for the result of a float64 computation."""
    return torch.empty(expected.shape, dtype=torch.float32, device=expected.device)


def _norm(values: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm


CUT_OFF_FACTOR = 1.75
EDGE = 2.0**-8  # relative distance from the largest number: a few roundings of float16
SMALL = 2**15  # elements of an output that is compared on the CPU
RELATIVE, RELATIVE_ROUNDINGS = 2.0**-6, 8  # allowed of an element that counts relatively, or so many roundings
NEARLY, FEW_OFF = 4, 8  # at most 8 of many rows may exceed the allowed error by chance, and by less than 4 times
FAR, FAR_IN_16_BITS = 4096, 64  # times the allowed error; rounding of the inputs is not considered beyond this


@dataclass(frozen=True)
class NotFinite:
    """Facts about a result for inputs that are not finite."""

    results: tuple[torch.Tensor, ...]  # of PyTorch's reference and of its baseline
    infinite: bool = False  # infinities are among the inputs, not NaN alone
    of_weights: bool = False  # such inputs are weights, which meet the zeros of a padding
    depends: Callable[[], torch.Tensor] | None = None  # computes where the result depends on such an input


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


def compared(
    actual: torch.Tensor,
    pytorch: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    *,
    sums: Sums = NO_SUMS,
    perturbed: Callable[[], torch.Tensor] | None = None,
    not_finite: NotFinite | None = None,
) -> Comparison:
    """Compare an output with the float64 result `expected`, and its error with that of `pytorch` at this dtype.

    With `not_finite`, only elements are compared that are finite, NaN or infinite in all of PyTorch's results as in
    `expected`. `sums` is the allowed error of sums, see `summed`. `perturbed`
    computes how far each element moves when the inputs are perturbed by a rounding; it is slow.
    """
    if actual.shape != expected.shape:
        return Comparison(f"the shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() <= SMALL:  # with so few elements, launches on a GPU take longer
        actual, pytorch, expected = actual.cpu(), pytorch.cpu(), expected.cpu()
    dtype = actual.dtype
    if dtype.is_floating_point and dtype.itemsize == 1:  # PyTorch has few operations on 8-bit floats
        actual, pytorch, expected = actual.float(), pytorch.float(), expected.double()
    if tolerance.exact or not actual.is_floating_point():
        expected = expected.to(dtype).to(actual.dtype)
        return _exactly(torch.where(_agreed(expected, not_finite, actual), actual, expected), expected)
    if not actual.numel():
        return Comparison("")
    scale = Scale(dtype, actual.numel(), sums, perturbed)
    errors = None if not_finite else errors_of(actual, pytorch, expected, tolerance, scale)
    if not errors or not errors.finite:
        del errors  # to save memory
        return _with_infinities(actual, pytorch, expected, tolerance, scale, not_finite)
    return _inaccurate(errors, actual, expected, tolerance, scale)


def _with_infinities(
    actual: torch.Tensor, pytorch: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale,
    not_finite: NotFinite | None,
) -> Comparison:  # fmt: skip
    """Require NaN and infinities exactly where the float64 result has them, and compare the rest as usual.

    If inputs are infinite, an infinity may stand for NaN: the order of operations decides which of them comes out.
    NaN that comes from a product with zero may be missing, because a kernel need not multiply by zero.
    """
    largest = torch.finfo(scale.dtype).max
    target = torch.where(expected.abs() > largest, expected.to(scale.dtype).double(), expected)
    # Near the largest number, rounding decides about infinity. Where PyTorch overflows on the way, a kernel may too.
    edge = (expected.abs() / largest - 1).abs() < EDGE
    overflowed = pytorch.isinf() & (expected.abs() > largest / 2)
    got = actual.double()
    either = (edge & (got.abs() > (1 - 2 * EDGE) * largest)) | (overflowed & got.isinf())
    either &= got.sign() == expected.sign()
    either |= ~_agreed(target, not_finite, got)
    if not_finite and not_finite.infinite:
        either |= target.isnan() & got.isinf()
    fault = _not_finite(torch.where(either, target, got), target)
    if fault and not_finite and not_finite.depends:
        by_zero = ~not_finite.depends().to(got.device)
        either |= by_zero if not_finite.of_weights else by_zero & ~target.isfinite()
        fault = _not_finite(torch.where(either, target, got), target)
    if fault:
        return Comparison(fault)
    finite = target.isfinite() & ~either
    if not (count := int(finite.sum())):
        return Comparison("")
    target = torch.where(finite, target, 0.0)
    got = torch.where(finite, actual, 0.0)
    own = torch.where(finite & pytorch.isfinite(), pytorch.double(), target.to(scale.dtype).double())
    scale = replace(scale, count=count)
    return _inaccurate(errors_of(got, own, target, tolerance, scale), got, target, tolerance, scale)


def _inaccurate(
    errors: Errors, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    found = _verdict(errors, actual, expected, tolerance, scale)
    if found.worst > 1:  # most outputs pass without this, which takes more passes over memory
        errors = allow_worst_of_pytorch(errors, tolerance, scale)
        found = _verdict(errors, actual, expected, tolerance, scale)
    few, far = scale.count < FEW, FAR if scale.dtype.itemsize >= 4 else FAR_IN_16_BITS
    if found.fault and scale.perturbed and (few or found.worst < far):
        explain = partial(allow_rounding_of_inputs, errors, scale.perturbed().to(actual.device), tolerance, scale)
        excused = explain(chance=few)
        found = _verdict(excused, actual, expected, tolerance, scale)
        if found.fault and not few and _nearly(found, excused):
            found = _verdict(explain(chance=True), actual, expected, tolerance, scale)
    if tolerance.relative and not found.fault:
        return replace(found, fault=_relatively_off(errors, actual, expected, scale))
    return found


def _relatively_off(errors: Errors, actual: torch.Tensor, expected: torch.Tensor, scale: Scale) -> str:
    """Return a fault if an element is far off in relation to itself, further than PyTorch's and than subnormal ones."""
    share = max(RELATIVE, RELATIVE_ROUNDINGS * scale.rounding)
    least = errors.excess.new_full((), torch.finfo(scale.dtype).smallest_normal)
    allowed = torch.add(least, errors.magnitude, alpha=share).add_(errors.excess, alpha=ELEMENT_FACTOR)
    if float(torch.linalg.vector_norm(errors.off / allowed, math.inf)) <= 1:
        return ""
    return f"{_elements_off(errors.off.abs(), allowed, actual, expected)}, as its logarithm must be right too"


def _verdict(
    errors: Errors, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    error, yardstick = errors.error, errors.yardstick
    worst = float(torch.linalg.vector_norm(errors.off / errors.allowed, math.inf))
    factor = _factor(scale.dtype, tolerance)
    fault = ""
    if worst > 1:
        fault = _elements_off(errors.off.abs(), errors.allowed, actual, expected)
    elif error > factor * yardstick and error > (allowance := factor * leeway(expected, scale.dtype)) * yardstick:
        fault = (
            f"the root mean square error is {error:.3g}, {error / yardstick:.1f} times PyTorch's own "
            f"{yardstick:.3g}; {allowance:.3g} times is allowed"
        )
    return Comparison(fault, error, yardstick, worst)


def _nearly(found: Comparison, errors: Errors) -> bool:
    """Return whether only a few rows are off, and by little. A row may share one error, so it counts once."""
    off = errors.off.abs() > errors.allowed
    rows = off.reshape(-1, off.shape[-1]).any(1) if off.ndim > 1 else off
    return found.worst < NEARLY and int(rows.sum()) <= FEW_OFF


def _factor(dtype: torch.dtype, tolerance: Tolerance) -> float:
    """Return the tolerance's factor. For dtypes of 16 bits or fewer it is limited, so that truncation is rejected."""
    return min(tolerance.factor, CUT_OFF_FACTOR) if dtype.itemsize < 4 else tolerance.factor


def leeway(expected: torch.Tensor, dtype: torch.dtype) -> float:
    """Return by what factor the mean error may exceed the usual limit; it is larger the fewer rows there are.

    All elements of a row may share one error, such as that of its sum, so a single row may be as far off as a single
    element. Rows are weighted by their share of the result. With 16 bits or fewer, most of the error is rounding, which
    is alike in all rows.
    """
    rows = expected.reshape(-1, expected.shape[-1] if expected.ndim > 1 else 1)
    count = float(len(rows))
    if dtype.itemsize >= 4:
        sizes = rows.double().square().sum(1)
        count = float(sizes.sum().square() / sizes.square().sum().clamp(min=TINY))
    return math.sqrt((max(1.0, count) - 1 + ELEMENT_FACTOR**2) / max(1.0, count))


def _exactly(actual: torch.Tensor, expected: torch.Tensor) -> Comparison:
    if torch.equal(actual, expected):
        return Comparison("")
    wrong = ~((actual == expected) | (actual.isnan() & expected.isnan()))
    if not bool(wrong.any()):
        return Comparison("")
    at = _position(wrong)
    return Comparison(
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, and this output must be exact; "
        f"the first at {list(at)}: {actual[at].item()}, expected {expected[at].item()}"
    )


def _agreed(expected: torch.Tensor, not_finite: NotFinite | None, like: torch.Tensor) -> torch.Tensor:
    """Return where PyTorch's results are finite, NaN or infinite as expected. Without them, everywhere."""
    agreed = torch.ones_like(like, dtype=torch.bool)
    for found in not_finite.results if not_finite else ():
        agreed &= alike(found.to(like.device, like.dtype), expected)
    return agreed


def alike(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return where both are finite, both NaN, or the same infinity; of integers, where they are equal."""
    if not some.is_floating_point():
        return some == others
    return (some.isfinite() & others.isfinite()) | (some.isnan() & others.isnan()) | (some == others)


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
