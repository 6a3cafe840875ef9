"""Comparison of results with PyTorch's results, which are not exact either."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from evolve.export.template.drawn import Drawn, tensors

FP8_STEP, FP8_LEAST = 2**-2, 2**-9  # rounding step of the coarser type, and the smallest number of the finer type


def close(got: Any, expected: Any, dtype: torch.dtype, *, tf32: bool = False) -> None:
    """Raise an AssertionError unless results agree."""
    for out, exact in zip(tensors(got), tensors(expected), strict=True):
        if out.dtype != exact.dtype:
            raise AssertionError(f"the result is of {out.dtype}, PyTorch's of {exact.dtype}")
        if exact.dtype.itemsize == 1 and exact.is_floating_point():  # PyTorch can only compare these bit for bit
            torch.testing.assert_close(out.float(), exact.float(), rtol=FP8_STEP, atol=FP8_LEAST, equal_nan=True)
            continue
        finite = exact[exact.isfinite()].float()
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        # On a CPU, PyTorch rounds statistics and sums of 16-bit tensors to 16 bits.
        rtol, atol = (2e-2, 6e-2 * max(largest, 0.5)) if dtype.itemsize == 2 else (2e-4, 2e-5)
        if tf32:
            rtol, atol = max(rtol, 1e-2), max(atol, 1e-2 * largest)
        torch.testing.assert_close(out, exact, rtol=rtol, atol=atol, equal_nan=True)


def agree(got: Any, expected: Any, dtype: torch.dtype, exactly: Callable[[], Any], *, tf32: bool) -> None:
    """Raise an AssertionError unless results agree, or are as close as PyTorch's to those in float64.

    On a CPU, PyTorch rounds statistics of 16-bit tensors to 16 bits, so that differences of similar numbers are
    inaccurate.
    """
    try:
        close(got, expected, dtype, tf32=tf32)
    except AssertionError:
        if not all(map(_is_as_close, tensors(got), tensors(expected), tensors(exactly()))):
            raise


def _is_as_close(out: Tensor, theirs: Tensor, exact: Tensor) -> bool:
    if not out.is_floating_point() or out.dtype != theirs.dtype or not torch.equal(out.isfinite(), theirs.isfinite()):
        return torch.equal(out, theirs)
    ours, usual = (float((x.double() - exact)[x.isfinite()].abs().max()) for x in (out, theirs))
    return ours <= 2 * usual + torch.finfo(out.dtype).eps * float(exact.abs().max())


def raises(function: Callable[..., Any], given: Drawn, kind: type[Exception]) -> None:
    """Raise an AssertionError unless a call raises this kind of error, as PyTorch does."""
    try:
        function(*given.arguments, **given.named)
    except kind:
        return
    raise AssertionError(f"PyTorch raises a {kind.__name__}, but the function does not")
