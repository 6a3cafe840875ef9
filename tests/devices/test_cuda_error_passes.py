"""The GPU's passes over large outputs, run on the emulated device: their figures are those that PyTorch computes."""

import math

import pytest
import torch
from device_kernels import run, single

from evolve.devices.emulated.device import EmulatedDevice

HALF = 'asm("cvt.f32.f16 %0, %1;" : "=f"(half) : "h"(bits));'
ROWS, COLS, ROUNDING = 6, 50, 2.0**-9
ARGUMENTS = (
    "const float* actual, const unsigned short* pytorch, const double* expected, double* found, int rows, int cols"
)
BODY = f"""
    Values got{{actual, cols, 0}}, own{{pytorch, cols, 2}}, right{{expected, cols, 3}};
    squares(got, own, right, rows * cols, cols, {ROUNDING}, found);
    largest_ratios(got, own, right, rows * cols, cols, {ROUNDING}, {{1e-3, 0.5, 0.0}}, {{2.0, 0.25, 4.0}}, found + 6);
"""


def figures(actual: torch.Tensor, pytorch: torch.Tensor, expected: torch.Tensor) -> list[float]:
    """Return what the two GPU kernels find, with plain functions in place of launches."""
    errors = pytest.importorskip("evolve.devices.cuda.error_passes")
    head, _, entry = single(BODY, ARGUMENTS, block="[64]", grid="[2]").rpartition('extern "C"')
    functions = errors.SOURCE.replace('extern "C" __global__', "__device__").replace(HALF, "half = bits;")
    found = torch.zeros(8, dtype=torch.float64)
    tensors = {"actual": actual, "pytorch": pytorch, "expected": expected, "found": found}
    run(EmulatedDevice(), f'{head}{functions}extern "C"{entry}', tensors, {"rows": ROWS, "cols": COLS})
    return found.tolist()


def results() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    expected = torch.randn(ROWS, COLS, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    return (expected * 1.01).float(), (expected * 0.99).bfloat16(), expected


@pytest.mark.parametrize("special", [0, 37])
def test_figures_of_a_group(special: int) -> None:
    actual, pytorch, expected = results()
    for values in (actual, pytorch, expected):
        values.view(-1)[:special:2], values.view(-1)[1:special:2] = math.nan, -math.inf
    off, own = (one.double()[expected.isfinite()] for one in (actual - expected, pytorch - expected))
    size = expected[expected.isfinite()].abs()
    excess = (own.abs() - ROUNDING * size).clamp(min=0)
    allowed = (1e-3 + 0.5 * size, 2.0 + 0.25 * size + 4.0 * excess)
    sums = [float(values.square().sum()) for values in (size, off, own, excess)]
    ratios = [float((off.abs() / most).max()) for most in allowed]
    assert figures(actual, pytorch, expected) == pytest.approx([*sums, special, float(size.max()), *ratios], rel=1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("spoiled", [0, 1, 2])
def test_a_special_value_in_only_some_results_shows(spoiled: int, value: float) -> None:
    whole = results()
    for values in whole:
        values[2, 3] = math.inf
    whole[spoiled][2, 3] = value
    found = figures(*whole)
    alike = value == math.inf
    assert (found[4] == 1, all(map(math.isfinite, found[:6]))) == (alike, alike)
