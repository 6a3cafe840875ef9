"""Is an output right? Judged against float64, with PyTorch's own error at the same dtype as the yardstick."""

import torch

from reference_ops.op import Tolerance

ELEMENT_FACTOR = 4  # one element may be off by this much more than the root mean square error
FLOAT32_UNIT = 2.0**-24  # nobody computes better than this inside
FLOOR_ROUNDINGS = 0.25  # of an output's magnitude: below this, PyTorch was lucky


def fault(actual: torch.Tensor, theirs: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> str:
    """What is wrong with `actual`, or nothing. `expected` is the float64 result, `theirs` PyTorch's at this dtype."""
    if actual.shape != expected.shape:
        return f"the shape is {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if tolerance.exact or not actual.is_floating_point():
        return _inexact(actual, expected.to(actual.dtype))
    return _not_finite(actual.double(), expected) or _inaccurate(actual, theirs.double(), expected, tolerance)


def _inaccurate(actual: torch.Tensor, theirs: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance) -> str:
    finite = expected.isfinite()
    if not bool(finite.any()):
        return ""
    wanted, off = expected[finite], (actual.double() - expected)[finite]
    unit = torch.finfo(actual.dtype).eps / 2
    rounding = unit * wanted.abs()
    their_error = (theirs - expected)[finite].nan_to_num(0.0, 0.0, 0.0).abs()
    # Beyond the rounding of the result itself; or one large element would excuse every small one.
    their_excess = (their_error - rounding).clamp(min=0)
    floor = FLOAT32_UNIT * _rms(wanted)
    usual = ELEMENT_FACTOR * (rounding + _rms(their_excess) + floor)
    # Sums of products have heavy tails: among many elements PyTorch's own worst lies far beyond its mean.
    allowed = tolerance.factor * torch.maximum(usual, rounding + their_excess.max())
    # On few rows PyTorch can be lucky: an error that a whole row shares, as of its norm, is drawn once per row.
    yardstick = max(_rms(their_error), FLOOR_ROUNDINGS * unit * _rms(wanted), floor)
    if bool((off.abs() > allowed).any()):
        return _elements_off(off.abs(), allowed, actual, expected)
    if _rms(off) > tolerance.factor * yardstick:
        return (
            f"the root mean square error is {_rms(off):.3g}, {_rms(off) / yardstick:.1f} times PyTorch's own "
            f"{yardstick:.3g}; {tolerance.factor:g} times is allowed"
        )
    return ""


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def _inexact(actual: torch.Tensor, expected: torch.Tensor) -> str:
    wrong = ~(actual == expected)
    if not bool(wrong.any()):
        return ""
    at = _position(wrong)
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ, and this output must be exact; "
        f"the first at {list(at)}: {actual[at].item()}, expected {expected[at].item()}"
    )


def _not_finite(got: torch.Tensor, expected: torch.Tensor) -> str:
    """NaN and infinities must stand exactly where the float64 result has them."""
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
    worst = int((error - allowed).argmax())
    at = tuple(int(i) for i in expected.isfinite().nonzero()[worst])
    return (
        f"{int((error > allowed).sum())} of {expected.numel()} elements are off by more than rounding explains; the "
        f"worst at {list(at)}: {actual[at].item():.6g}, expected {expected[at].item():.6g} within {allowed[worst]:.2g}"
    )


def _position(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])
