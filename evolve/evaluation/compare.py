"""Comparison of an output with the float64 result: whether its errors, NaN and infinities are allowed."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from evolve.evaluation.allowed_errors import (
    FEW,
    NO_SUMS,
    SMALL,
    Comparison,
    Errors,
    Scale,
    Sums,
    allow_repeated_errors,
    allow_rounding_of_inputs,
    allow_worst_of_pytorch,
    errors_of,
    largest_factor,
    leeway,
    relative_allowance,
)
from reference_ops.op import Tolerance

EDGE = 2.0**-8  # relative distance from the largest number: a few roundings of float16
NEARLY, FEW_OFF = 4, 8  # at most 8 of many rows may exceed the allowed error by chance, and by less than 4 times
FAR, FAR_IN_16_BITS = 4096, 64  # times the allowed error; a larger one is never explained by rounding of the inputs


@dataclass(frozen=True)
class NotFinite:
    """Facts about a result for inputs that are not finite."""

    results: tuple[torch.Tensor, ...]  # those of the reference in PyTorch and of its baseline
    infinite: bool = False  # infinities are among the inputs, not NaN alone
    # Any result may stand in place of NaN: PyTorch's formula multiplies an infinity by zero, another formula need not
    lenient: bool = False
    # the inputs that are not finite are weights, which are multiplied by the zeros of a padding
    of_weights: bool = False
    depends: Callable[[], torch.Tensor] | None = None  # computes which elements depend on an input that is not finite
    of_nan: Callable[[], torch.Tensor] | None = None  # computes which elements NaN inputs alone make NaN
    lost: Callable[[], torch.Tensor] | None = None  # computes in which rows another output is NaN


@dataclass(frozen=True)
class Excuses:
    """Explanations of an error besides rounding and PyTorch's own error. The functions are called only where needed."""

    sums: Sums = NO_SUMS  # the allowed error of sums; see `summed`
    # Computes the change of each element when the inputs are perturbed by a rounding, which is slow.
    perturbed: Callable[[], torch.Tensor] | None = None
    # Computes PyTorch's error on the perturbed inputs, which is slower.
    repeated: Callable[[], torch.Tensor] | None = None
    not_finite: NotFinite | None = None


NOTHING = Excuses()


def compared(
    actual: torch.Tensor,
    pytorch: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    excuses: Excuses = NOTHING,
) -> Comparison:
    """Compare an output with the float64 result `expected`, and its error with that of `pytorch` at this dtype.

    Where inputs are not finite, only those elements are compared for which all of PyTorch's results agree with
    `expected` on whether they are finite, NaN or infinite.
    """
    if actual.shape != expected.shape:
        return Comparison(f"the shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() <= SMALL:  # with so few elements, launches on a GPU take longer
        actual, pytorch, expected = actual.cpu(), pytorch.cpu(), expected.cpu()
    dtype = actual.dtype
    if dtype.is_floating_point and dtype.itemsize == 1:  # PyTorch has few operations on 8-bit floats
        actual, pytorch, expected = actual.float(), pytorch.float(), expected.double()
    not_finite = excuses.not_finite
    if tolerance.exact or not actual.is_floating_point():
        expected = expected.to(dtype).to(actual.dtype)
        return _exactly(torch.where(_agreed(expected, not_finite, actual), actual, expected), expected)
    if not actual.numel():
        return Comparison("")
    scale = Scale(dtype, actual.numel(), excuses.sums, excuses.perturbed, excuses.repeated)
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

    If inputs are infinite, a result may be infinite in place of NaN, because that depends on the order of operations.
    This does not hold for results that would also be NaN without the infinities. NaN in place of an infinity is right
    only where NaN spreads in any case, as in the mean of a row that is normalised. Results that depend on an infinite
    weight may be NaN: a kernel may multiply the weight by the mean first. NaN that comes from a product with zero may
    be missing, because a kernel need not multiply by zero.
    """
    if (found := _alike_throughout(actual, pytorch, expected, tolerance, scale, not_finite)) is not None:
        return found
    largest = torch.finfo(scale.dtype).max
    target = torch.where(expected.abs() > largest, expected.to(scale.dtype).double(), expected)
    # Near the largest number, rounding decides whether a result is infinite. Where an intermediate result of PyTorch
    # overflows, a kernel's may overflow too.
    edge = (expected.abs() / largest - 1).abs() < EDGE
    overflowed = pytorch.isinf() & (expected.abs() > largest / 2)
    got = actual.double()
    either = (edge & (got.abs() > (1 - 2 * EDGE) * largest)) | (overflowed & got.isinf())
    either &= got.sign() == expected.sign()
    either |= ~_agreed(target, not_finite, got)
    if not_finite and not_finite.infinite:
        swapped = target.isnan() & (got.isinf() | not_finite.lenient)
        if not_finite.of_nan and bool(swapped.any()):
            swapped &= ~not_finite.of_nan().to(got.device)
        either |= swapped
        if not_finite.lost and bool((swapped := target.isinf() & got.isnan()).any()):
            either |= swapped & not_finite.lost().to(got.device)
    fault = _not_finite(torch.where(either, target, got), target)
    if fault and not_finite and not_finite.lenient and not_finite.of_weights and not_finite.depends:
        either |= got.isnan() & not_finite.depends().to(got.device)
    if fault and not_finite and not_finite.depends:
        by_zero = ~not_finite.depends().to(got.device)
        either |= by_zero if not_finite.of_weights else by_zero & ~target.isfinite()
        fault = _not_finite(torch.where(either, target, got), target)
    if fault:
        return Comparison(fault)
    finite = target.isfinite() & ~either
    return _inaccurate_where(finite, actual, pytorch, torch.where(finite, target, 0.0), tolerance, scale)


def _alike_throughout(
    actual: torch.Tensor, pytorch: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale,
    not_finite: NotFinite | None,
) -> Comparison | None:  # fmt: skip
    """Compare an output with few operations in the usual case, in which no error must be explained.

    Otherwise return None. Then the output and all of PyTorch's results are finite exactly where the float64 result is,
    with the same NaN and infinities elsewhere, and no result is near the largest number.
    """
    finite = expected.isfinite()
    elsewhere = (~finite).reshape(-1).nonzero().reshape(-1)
    special = expected.reshape(-1)[elsewhere]
    others = (one.to(expected.device, actual.dtype) for one in (not_finite.results if not_finite else ()))
    for one in (actual, *others):
        found = one.reshape(-1)[elsewhere]
        same = (found == special) | (found.isnan() & special.isnan())
        if not (torch.equal(one.isfinite(), finite) and bool(same.all())):
            return None
    target = torch.where(finite, expected, 0.0)
    if float(torch.linalg.vector_norm(target, math.inf)) > torch.finfo(scale.dtype).max / 2:
        return None
    return _inaccurate_where(finite, actual, pytorch, target, tolerance, scale)


def _inaccurate_where(
    finite: torch.Tensor, actual: torch.Tensor, pytorch: torch.Tensor, target: torch.Tensor, tolerance: Tolerance,
    scale: Scale,
) -> Comparison:  # fmt: skip
    """Compare the elements that are finite; the others are zero in `target`."""
    if not (count := int(finite.sum())):
        return Comparison("")
    got = torch.where(finite, actual, 0.0)
    own = torch.where(finite & pytorch.isfinite(), pytorch.double(), target.to(scale.dtype).double())
    scale = replace(scale, count=count)
    return _inaccurate(errors_of(got, own, target, tolerance, scale), got, target, tolerance, scale)


def _inaccurate(
    errors: Errors, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    found = _verdict(errors, actual, expected, tolerance, scale)
    if found.worst > 1:  # most outputs pass without this computation, which takes more passes over memory
        errors = allow_worst_of_pytorch(errors, tolerance, scale)
        found = _verdict(errors, actual, expected, tolerance, scale)
    few, far = scale.count < FEW, FAR if scale.dtype.itemsize >= 4 else FAR_IN_16_BITS
    if found.fault and scale.perturbed and (few or found.worst < far):
        explain = partial(allow_rounding_of_inputs, errors, scale.perturbed().to(actual.device), tolerance, scale)
        excused = explain(chance=few)
        found = _verdict(excused, actual, expected, tolerance, scale)
        if found.fault and not few and found.worst < NEARLY and _few_rows(excused, scale.sums):
            excused = explain(chance=True)
            found = _verdict(excused, actual, expected, tolerance, scale)
        if found.fault and not few and scale.repeated and _few_rows(excused, scale.sums):
            excused = allow_repeated_errors(excused, scale.repeated().to(actual.device), tolerance, scale)
            found = _verdict(excused, actual, expected, tolerance, scale)
    if tolerance.relative and not found.fault:
        return replace(found, fault=_relatively_off(errors, actual, expected, scale))
    return found


def _relatively_off(errors: Errors, actual: torch.Tensor, expected: torch.Tensor, scale: Scale) -> str:
    """Return a fault if an element's relative error exceeds the limit, PyTorch's and that of subnormal rounding."""
    one = relative_allowance(scale)
    least = errors.excess.new_full((), one.constant)
    allowed = torch.add(least, errors.magnitude, alpha=one.of_result).add_(errors.excess, alpha=one.of_excess)
    if float(torch.linalg.vector_norm(errors.off / allowed, math.inf)) <= 1:
        return ""
    return f"{_elements_off(errors.off.abs(), allowed, actual, expected)}, as its logarithm must be right too"


def _verdict(
    errors: Errors, actual: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance, scale: Scale
) -> Comparison:
    error, yardstick = errors.error, errors.yardstick
    worst = float(torch.linalg.vector_norm(errors.off / errors.allowed, math.inf))
    factor = largest_factor(scale.dtype, tolerance)
    fault = ""
    if worst > 1:
        fault = _elements_off(errors.off.abs(), errors.allowed, actual, expected)
    elif error > factor * yardstick:
        times = factor * leeway(expected, scale.dtype, scale.sums, errors.off)
        if error > times * yardstick:
            fault = (
                f"the root mean square error is {error:.3g}, {error / yardstick:.1f} times PyTorch's own "
                f"{yardstick:.3g}; {times:.3g} times is allowed"
            )
    return Comparison(fault, error, yardstick, worst)


def _few_rows(errors: Errors, sums: Sums) -> bool:
    """Return whether only a few rows have too large errors. A row may share one error, so it counts once.

    So do the rows of all steps of a sequence.
    """
    off = errors.off.abs() > errors.allowed
    off = off.any(0) if sums.recurrent else off
    rows = off.reshape(-1, off.shape[-1]).any(1) if off.ndim > 1 else off
    return int(rows.sum()) <= FEW_OFF


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
    """Return the elements at which PyTorch is finite, NaN or infinite as expected; all if nothing is known."""
    agreed = torch.ones_like(like, dtype=torch.bool)
    for found in not_finite.results if not_finite else ():
        agreed &= alike(found.to(like.device, like.dtype), expected)
    return agreed


def alike(some: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Return where both are finite, both NaN, or the same infinity; for integers, where they are equal."""
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
    # This avoids `torch.unravel_index`, whose first call imports SymPy, which would cost every new worker a second.
    at = tuple(int(i) for i in np.unravel_index(int((error - allowed).argmax()), error.shape))
    return (
        f"{int((error > allowed).sum())} of {expected.numel()} elements are off by more than rounding explains; the "
        f"worst at {list(at)}: {actual[at].item():.6g}, expected {expected[at].item():.6g} within {allowed[at]:.2g}"
    )


def _position(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])
