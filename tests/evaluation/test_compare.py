import functools
import math

import pytest
import torch

from evolve.evaluation.compare import NO_SUMS, Sums, compared, summed
from reference_ops.op import Tolerance

torch.manual_seed(5)
EXPECTED = torch.softmax(torch.randn(64, 256, dtype=torch.float64), -1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make each test independent of earlier ones."""
    torch.manual_seed(5)


def fault(
    actual: torch.Tensor,
    pytorch: torch.Tensor,
    expected: torch.Tensor,
    tolerance: Tolerance,
    sums: Sums = NO_SUMS,
) -> str:
    return compared(actual, pytorch, expected, tolerance, sums=sums).fault


def judged(actual: torch.Tensor, factor: float = 2.0) -> str:
    pytorch = EXPECTED.to(actual.dtype)
    return fault(actual, pytorch, EXPECTED, Tolerance(factor))


def one_wrong(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values[3, 7] *= 1.1
    return values


def with_nan(values: torch.Tensor) -> torch.Tensor:
    values = values.clone()
    values[0, 0] = float("nan")
    return values


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_result_that_is_only_rounded_passes(dtype: torch.dtype) -> None:
    assert judged(EXPECTED.to(dtype)) == ""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "spoil",
    [
        torch.zeros_like,
        lambda values: torch.full_like(values, values.float().mean().item()),
        lambda values: values.roll(1, 0),
        lambda values: values * 1.03,
        one_wrong,
        with_nan,
        lambda values: values.log().exp().nan_to_num().clamp(max=0.01),
    ],
    ids=["zeros", "means", "shuffled rows", "scaled", "one element", "a NaN", "clamped"],
)
def test_a_corrupted_result_fails(spoil: object, dtype: torch.dtype) -> None:
    assert judged(spoil(EXPECTED.to(dtype))) != ""  # type: ignore[operator]


def test_half_precision_within_a_float32_op_fails() -> None:
    assert "off by more than rounding" in judged(EXPECTED.to(torch.float16).float())


def test_the_message_names_the_worst_element_and_what_was_expected() -> None:
    assert "[3, 7]" in judged(one_wrong(EXPECTED.float()))


def test_noise_below_the_limit_of_one_element_fails_in_the_mean() -> None:
    noisy = EXPECTED.float() * (1 + 5e-7 * (torch.rand(64, 256) - 0.5))
    assert "root mean square" in judged(noisy)


def test_integers_must_be_exact_whatever_the_tolerance() -> None:
    wanted = torch.arange(12).reshape(3, 4)
    assert fault(wanted, wanted, wanted, Tolerance(100)) == ""
    assert "the first at [0, 0]: 1, expected 0" in fault(wanted + 1, wanted, wanted, Tolerance(100))


def test_infinities_must_be_where_they_are_expected() -> None:
    wanted = torch.tensor([0.0, float("-inf"), 2.0], dtype=torch.float64)
    assert fault(wanted.float(), wanted.float(), wanted, Tolerance()) == ""
    assert "not finite" in fault(torch.tensor([0.0, -1e30, 2.0]), wanted.float(), wanted, Tolerance())


def test_a_rounding_is_allowed_although_pytorch_is_exact_by_chance() -> None:
    wanted = torch.full((1000,), 1.0, dtype=torch.float64) + 2.0**-26
    kernel = wanted.float()
    assert fault(kernel, kernel.clone(), wanted, Tolerance()) == ""


def cancelling_sums() -> tuple[torch.Tensor, torch.Tensor]:
    """Return terms of very different size that nearly cancel, so that float32 errors have a heavy tail."""
    terms = torch.randn(200_000, 4) * torch.rand(200_000, 1).pow(-0.5)
    return terms, terms.double().sum(-1)


def test_a_heavy_tail_of_errors_passes_where_pytorch_has_one_too() -> None:
    terms, wanted = cancelling_sums()
    other_order = ((terms[:, 3] + terms[:, 2]) + terms[:, 1]) + terms[:, 0]
    assert fault(other_order, terms.sum(-1), wanted, Tolerance(2.0)) == ""


def test_a_large_element_does_not_excuse_small_ones() -> None:
    wanted = torch.full((1000,), 1e-4, dtype=torch.float64)
    wanted[0] = 0.9
    spoiled = wanted.to(torch.bfloat16)
    spoiled[5] = 0.0
    assert "[5]" in fault(spoiled, wanted.to(torch.bfloat16), wanted, Tolerance(2.0))


def test_few_rows_may_share_a_rounding() -> None:
    rows = torch.randn(2, 4096, dtype=torch.float64)
    wanted = rows / rows.square().mean(-1, keepdim=True).sqrt()
    kernel = (wanted * (1 + 1.2 * 2.0**-24)).float()
    assert fault(kernel, wanted.float(), wanted, Tolerance(2.0)) == ""


def shared_error(rows: int) -> str:
    """Return the fault of an error that each row shares, as of a rounded sum: twice that of float32."""
    wanted = torch.rand(rows, 512, dtype=torch.float64) + 0.5
    return fault((wanted * (1 + 2.6 * 2.0**-24)).float(), wanted.float(), wanted, Tolerance(2.0))


def test_the_error_that_one_row_may_share_is_too_large_for_many() -> None:
    assert shared_error(rows=1) == ""
    assert "root mean square" in shared_error(rows=200)


@pytest.mark.parametrize("found", [-65472.0, -math.inf])
def test_near_the_largest_number_a_rounding_may_overflow(found: float) -> None:
    expected = torch.tensor([-65467.6] + [1.0] * 99, dtype=torch.float64)
    pytorch = expected.to(torch.float16)
    pytorch[0] = -math.inf
    actual = expected.to(torch.float16)
    actual[0] = found
    assert not fault(actual, pytorch, expected, Tolerance())


@pytest.mark.parametrize("pytorch_first", [-math.inf, -50000.0])
def test_a_kernel_may_overflow_where_pytorch_does(pytorch_first: float) -> None:
    expected = torch.tensor([-50000.0] + [1.0] * 99, dtype=torch.float64)
    pytorch, actual = expected.to(torch.float16), expected.to(torch.float16)
    pytorch[0], actual[0] = pytorch_first, -math.inf
    assert bool(fault(actual, pytorch, expected, Tolerance())) is math.isfinite(pytorch_first)
    actual[0] = -50000.0
    assert not fault(actual, pytorch, expected, Tolerance())


@pytest.mark.parametrize("found", [-40000.0, math.inf, math.nan, 0.0])
def test_near_the_largest_number_other_results_are_wrong(found: float) -> None:
    expected = torch.tensor([-65467.6] + [1.0] * 99, dtype=torch.float64)
    pytorch = expected.to(torch.float16)
    pytorch[0] = -math.inf
    actual = expected.to(torch.float16)
    actual[0] = found
    assert fault(actual, pytorch, expected, Tolerance())


def test_a_result_too_large_for_the_dtype_must_be_infinite() -> None:
    wanted = torch.tensor([1.0, 1e6], dtype=torch.float64)
    assert fault(wanted.half(), wanted.half(), wanted, Tolerance()) == ""
    assert "not finite" in fault(torch.tensor([1.0, 65504.0]).half(), wanted.half(), wanted, Tolerance())


@pytest.mark.parametrize(("others", "right"), [(1e-6, True), (1.0, False)], ids=["one", "all alike"])
def test_a_mean_error_may_be_larger_with_fewer_elements(others: float, right: bool) -> None:
    """Three roundings, where PyTorch has none by chance."""
    wanted = torch.full((4096,), others, dtype=torch.float64)
    wanted[7] = 1.0
    kernel = wanted * (1 + 3 * 2.0**-24)
    assert (fault(kernel.float(), wanted.float(), wanted, Tolerance()) == "") is right


def test_a_truncated_result_fails() -> None:
    wanted = torch.randn(300, 512, dtype=torch.float64)
    cut = (wanted.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    assert "root mean square" in fault(cut, wanted.bfloat16(), wanted, Tolerance(2.0))


def summed_in_chains(terms: torch.Tensor, chains: int) -> torch.Tensor:
    """Return the sum of each row from several partial sums in turn. `cumsum` keeps more digits on the way."""
    totals = torch.zeros(len(terms), chains)
    for column in terms.reshape(len(terms), -1, chains).unbind(1):
        totals += column
    return totals.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("terms", "chains"), [(2**17, 256), (2**17, 32), (4096, 1)], ids=["a block", "a warp", "one thread"]
)
def test_a_sum_may_be_added_in_any_order_but_not_in_half_precision(terms: int, chains: int) -> None:
    numbers = torch.rand(8, terms) + 1e-3
    wanted, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    judged = functools.partial(fault, pytorch=pytorch, expected=wanted, tolerance=Tolerance())
    assert judged(summed_in_chains(numbers, chains), sums=summed(terms, alike=False)) == ""
    assert judged(pytorch.half().float(), sums=summed(terms, alike=False)) != ""


@pytest.mark.parametrize(("terms", "right"), [(4096, True), (2**17, False)])
def test_one_thread_may_lose_few_small_terms_beside_a_large_one(terms: int, right: bool) -> None:
    """As in the sum of a softmax whose logits differ much."""
    numbers = torch.exp(torch.randn(16, terms) * 4)
    numbers[:, 0] = numbers.amax(-1) * 4
    wanted, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    found = fault(summed_in_chains(numbers, 1), pytorch, wanted, Tolerance(), summed(terms, alike=False))
    assert (found == "") is right


def test_equal_terms_may_all_be_rounded_the_same_way() -> None:
    terms = torch.full((4, 4096), 1.001)
    wanted, pytorch = terms.double().sum(-1, keepdim=True), terms.sum(-1, keepdim=True)
    in_turn = summed_in_chains(terms, 1)
    assert fault(in_turn, pytorch, wanted, Tolerance(), summed(4096, alike=True)) == ""
    assert fault(in_turn, pytorch, wanted, Tolerance()) != ""
