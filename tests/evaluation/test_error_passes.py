"""Quick comparison of large outputs: it accepts the same outputs as the full comparison."""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from evolve.devices.error_passes import Allowance, ErrorPasses, Results
from evolve.evaluation.allowed_errors import NO_SUMS, SMALL, Comparison
from evolve.evaluation.clearly_right import Rule, clearly_right
from evolve.evaluation.compare import Excuses, NotFinite, compared
from reference_ops.op import Tolerance

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS, COLS = 67, 1031  # more elements than one block compares at once, and not a multiple of a block or a tile


class PlainPasses:
    """The passes as PyTorch computes them, in float64."""

    def takes(self, results: Results) -> bool:
        return bool(results)

    def norms(self, groups: Sequence[Results], rounding: float) -> list[list[float]]:
        norms = []
        for group in groups:
            result, off, own, excess, skipped = self._errors(group, rounding)
            figures = [float(values.norm()) for values in (result, off, own, excess)]
            norms.append([*figures, float(result.max()), float(skipped.sum())])
        return norms

    def worst(
        self, groups: Sequence[Results], rounding: float, allowances: Sequence[Sequence[Allowance]]
    ) -> list[list[float]]:
        ratios = []
        for group, own in zip(groups, allowances, strict=True):
            result, off, _, excess, _ = self._errors(group, rounding)
            allowed = [one.constant + one.of_result * result + one.of_excess * excess for one in own]
            ratios.append([float((off / most).max()) for most in allowed])
        return ratios

    def _errors(self, results: Results, rounding: float) -> tuple[torch.Tensor, ...]:
        actual, pytorch, expected = (values.double() for values in results)
        same = [(one == expected) | (one.isnan() & expected.isnan()) for one in (actual, pytorch)]
        skipped = ~expected.isfinite() & same[0] & same[1]
        result, off, own = (
            torch.where(skipped, 0.0, values.abs()) for values in (expected, actual - expected, pytorch - expected)
        )
        return result, off, own, (own - rounding * result).clamp(min=0), skipped


@pytest.fixture(params=["plain", pytest.param("cuda", marks=pytest.mark.gpu)])
def passes(request: pytest.FixtureRequest) -> Iterator[tuple[str, ErrorPasses]]:
    if request.param == "plain":
        yield "cpu", PlainPasses()
        return
    from evolve.devices import choose

    found = choose.make("cuda").tools.errors
    assert found
    yield "cuda", found


def results(dtype: torch.dtype, device: str) -> Results:
    generator = torch.Generator().manual_seed(3)
    expected = torch.softmax(torch.randn(ROWS, COLS, dtype=torch.float64, generator=generator) * 4, -1)
    rounded = expected.to(dtype)
    pytorch = torch.softmax(torch.log(expected).float(), -1).to(dtype)
    return rounded.to(device), pytorch.to(device), expected.to(device)


def alone(found: Results, tolerance: Tolerance, own: ErrorPasses) -> Comparison | None:
    """Return the quick comparison of a single group whose results must be finite."""
    return clearly_right([found], tolerance, [Rule(NO_SUMS)], own)[0]


def spoiled(dtype: torch.dtype) -> dict[str, Callable[[torch.Tensor], object]]:
    """Return faults by name; each changes an output in place."""
    eps = torch.finfo(dtype).eps
    return {
        "NaN": lambda out: out[5, 7].fill_(math.nan),
        "infinity": lambda out: out[-1, -1].fill_(math.inf),
        "one element is zero": lambda out: out[3].zero_(),
        "one element is twice as large": lambda out: out.view(-1)[int(out.argmax())].mul_(2),
        "all are off by a share": lambda out: out.mul_(1 + 16 * eps),
        "small ones are lost": lambda out: out.masked_fill_(out < 1e-4, 0),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("relative", [False, True])
def test_a_right_output_passes_with_the_figures_of_the_full_comparison(
    passes: tuple[str, ErrorPasses], dtype: torch.dtype, relative: bool
) -> None:
    device, own = passes
    found, tolerance = results(dtype, device), Tolerance(2.0, relative=relative)
    assert found[0].numel() > SMALL
    quick, full = alone(found, tolerance, own), compared(*found, tolerance)
    assert quick is not None
    assert full.fault == ""
    assert quick.error == pytest.approx(full.error, rel=1e-4)
    assert quick.pytorch_error == pytest.approx(full.pytorch_error, rel=1e-4)
    assert quick.worst == pytest.approx(full.worst, rel=1e-3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_fault_passes(passes: tuple[str, ErrorPasses], dtype: torch.dtype) -> None:
    device, own = passes
    for name, spoil in spoiled(dtype).items():
        found = results(dtype, device)
        spoil(found[0])
        assert compared(*found, Tolerance(2.0, relative=True)).fault, name
        assert alone(found, Tolerance(2.0, relative=True), own) is None, name


def test_rows_of_one_group_are_compared_separately(passes: tuple[str, ErrorPasses]) -> None:
    device, own = passes
    even = results(torch.bfloat16, device)
    wide = tuple(values.repeat_interleave(2, 0) for values in even)
    wide[0][1::2].fill_(7)  # overwrites the rows of the other group
    assert alone((wide[0][::2], wide[1][::2], wide[2][::2]), Tolerance(2.0), own) is not None


def test_an_overflow_of_the_dtype_is_left_to_the_full_comparison(passes: tuple[str, ErrorPasses]) -> None:
    device, own = passes
    expected = torch.full((ROWS, COLS), 1.0, dtype=torch.float64, device=device)
    expected[0, 0] = 1e5
    rounded = expected.to(torch.float16)
    assert alone((rounded, rounded, expected), Tolerance(2.0), own) is None


def with_special_rows(found: Results, groups: int) -> Results:
    """Put infinities and NaN into all but the first of the groups of rows, at the same places of all three results."""
    for values in found:
        values[1::groups, ::7], values[1::groups, 3] = math.nan, -math.inf
        values[2::groups] = math.inf
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_groups_with_special_values_are_compared_with_the_others(
    passes: tuple[str, ErrorPasses], dtype: torch.dtype
) -> None:
    device, own = passes
    groups, tolerance = 3, Tolerance(2.0, relative=True)
    whole = with_special_rows(results(dtype, device), groups)
    parts = [(whole[0][turn::groups], whole[1][turn::groups], whole[2][turn::groups]) for turn in range(groups)]
    found = clearly_right(parts, tolerance, [Rule(NO_SUMS, not_finite=True)] * groups, own)
    for part, quick in zip(parts, found, strict=True):
        full = compared(*part, tolerance, Excuses(not_finite=NotFinite((part[1],))))
        assert quick is not None
        assert full.fault == ""
        assert (quick.error, quick.worst) == pytest.approx((full.error, full.worst), rel=1e-3)
    strict = clearly_right(parts, tolerance, [Rule(NO_SUMS)] * groups, own)
    assert [one is not None for one in strict] == [True, False, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.25])
@pytest.mark.parametrize("place", [(0, 0), (1, 0), (1, 3), (2, 5)])
def test_a_wrong_special_value_is_never_clearly_right(
    passes: tuple[str, ErrorPasses], place: tuple[int, int], value: float
) -> None:
    device, own = passes
    for wrong in range(2):  # the kernel's result, then PyTorch's
        whole = with_special_rows(results(torch.float32, device), 3)
        before = float(whole[wrong][place])
        whole[wrong][place] = value
        same = before == value or (math.isnan(before) and math.isnan(value))
        if same or (math.isfinite(before) and math.isfinite(value) and wrong):  # PyTorch may be inexact
            continue
        turn = place[0] % 3
        part = (whole[0][turn::3], whole[1][turn::3], whole[2][turn::3])
        assert clearly_right([part], Tolerance(2.0), [Rule(NO_SUMS, not_finite=True)], own) == [None]


@pytest.mark.gpu
def test_the_gpu_refuses_strides_that_it_does_not_read() -> None:
    from evolve.devices import choose

    own = choose.make("cuda").tools.errors
    assert own
    found = results(torch.float32, "cuda")
    assert own.takes(found)
    assert not own.takes((found[0].t(), found[1].t(), found[2].t()))
