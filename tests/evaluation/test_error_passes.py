"""Quick comparison of large outputs: it accepts the same outputs as the full comparison."""

import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from evolve.devices.error_passes import Allowance, ErrorPasses, Results
from evolve.evaluation.allowed_errors import NO_SUMS, SMALL
from evolve.evaluation.compare import clearly_right, compared
from reference_ops.op import Tolerance

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
ROWS, COLS = 67, 1031  # more elements than one block compares at once, and not a multiple of a block or a tile


class PlainPasses:
    """The passes as PyTorch computes them, in float64."""

    def takes(self, results: Results) -> bool:
        return bool(results)

    def norms(self, results: Results, rounding: float) -> list[float]:
        result, off, own, excess = self._errors(results, rounding)
        return [float(values.norm()) for values in (result, off, own, excess)] + [float(result.max())]

    def worst(self, results: Results, rounding: float, allowances: Sequence[Allowance]) -> list[float]:
        result, off, _, excess = self._errors(results, rounding)
        allowed = [one.constant + one.of_result * result + one.of_excess * excess for one in allowances]
        return [float((off / most).max()) for most in allowed]

    def _errors(self, results: Results, rounding: float) -> tuple[torch.Tensor, ...]:
        actual, pytorch, expected = (values.double() for values in results)
        own = (pytorch - expected).abs()
        return expected.abs(), (actual - expected).abs(), own, (own - rounding * expected.abs()).clamp(min=0)


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
    quick, full = clearly_right(found, tolerance, NO_SUMS, own), compared(*found, tolerance)
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
        assert clearly_right(found, Tolerance(2.0, relative=True), NO_SUMS, own) is None, name


def test_rows_of_one_group_are_compared_separately(passes: tuple[str, ErrorPasses]) -> None:
    device, own = passes
    even = results(torch.bfloat16, device)
    wide = tuple(values.repeat_interleave(2, 0) for values in even)
    wide[0][1::2].fill_(7)  # overwrites the rows of the other group
    assert clearly_right((wide[0][::2], wide[1][::2], wide[2][::2]), Tolerance(2.0), NO_SUMS, own) is not None


def test_an_overflow_of_the_dtype_is_left_to_the_full_comparison(passes: tuple[str, ErrorPasses]) -> None:
    device, own = passes
    expected = torch.full((ROWS, COLS), 1.0, dtype=torch.float64, device=device)
    expected[0, 0] = 1e5
    rounded = expected.to(torch.float16)
    assert clearly_right((rounded, rounded, expected), Tolerance(2.0), NO_SUMS, own) is None


@pytest.mark.gpu
def test_the_gpu_refuses_strides_that_it_does_not_read() -> None:
    from evolve.devices import choose

    own = choose.make("cuda").tools.errors
    assert own
    found = results(torch.float32, "cuda")
    assert own.takes(found)
    assert not own.takes((found[0].t(), found[1].t(), found[2].t()))
