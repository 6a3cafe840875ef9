"""Comparison of outputs: errors that rounding explains, and errors that it does not explain."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from compared_results import fault

from evolve.evaluation import compare
from evolve.evaluation.allowed_errors import NO_SUMS, Comparison, summed
from evolve.evaluation.clearly_right import Rule, right_in_turn
from evolve.evaluation.compare import Excuses, NotFinite, compared
from reference_ops.op import Tolerance

torch.manual_seed(5)
EXPECTED = torch.softmax(torch.randn(64, 256, dtype=torch.float64), -1)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make each test independent of earlier tests."""
    torch.manual_seed(5)


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


def test_the_message_names_the_worst_element_and_its_expected_value() -> None:
    assert "[3, 7]" in judged(one_wrong(EXPECTED.float()))


def test_noise_below_the_limit_for_single_elements_fails_in_the_mean() -> None:
    noisy = EXPECTED.float() * (1 + 5e-7 * (torch.rand(64, 256) - 0.5))
    assert "root mean square" in judged(noisy)


def test_integers_must_be_exact_whatever_the_tolerance() -> None:
    expected = torch.arange(12).reshape(3, 4)
    assert fault(expected, expected, expected, Tolerance(100)) == ""
    assert "the first at [0, 0]: 1, expected 0" in fault(expected + 1, expected, expected, Tolerance(100))


def test_infinities_must_be_where_they_are_expected() -> None:
    expected = torch.tensor([0.0, float("-inf"), 2.0], dtype=torch.float64)
    assert fault(expected.float(), expected.float(), expected, Tolerance()) == ""
    assert "not finite" in fault(torch.tensor([0.0, -1e30, 2.0]), expected.float(), expected, Tolerance())


def test_a_rounding_error_is_allowed_even_if_pytorch_happens_to_be_exact() -> None:
    expected = torch.full((1000,), 1.0, dtype=torch.float64) + 2.0**-26
    kernel = expected.float()
    assert fault(kernel, kernel.clone(), expected, Tolerance()) == ""


def cancelling_sums() -> tuple[torch.Tensor, torch.Tensor]:
    """Return terms of very different size that nearly cancel, so that float32 errors have a heavy tail."""
    terms = torch.randn(200_000, 4) * torch.rand(200_000, 1).pow(-0.5)
    return terms, terms.double().sum(-1)


def test_a_heavy_tail_of_errors_passes_if_pytorch_has_one_too() -> None:
    terms, expected = cancelling_sums()
    other_order = ((terms[:, 3] + terms[:, 2]) + terms[:, 1]) + terms[:, 0]
    assert fault(other_order, terms.sum(-1), expected, Tolerance(2.0)) == ""


def test_a_large_element_does_not_excuse_small_ones() -> None:
    expected = torch.full((1000,), 1e-4, dtype=torch.float64)
    expected[0] = 0.9
    spoiled = expected.to(torch.bfloat16)
    spoiled[5] = 0.0
    assert "[5]" in fault(spoiled, expected.to(torch.bfloat16), expected, Tolerance(2.0))


def test_the_elements_of_a_row_may_share_a_rounding_error_if_there_are_few_rows() -> None:
    rows = torch.randn(2, 4096, dtype=torch.float64)
    expected = rows / rows.square().mean(-1, keepdim=True).sqrt()
    kernel = (expected * (1 + 1.2 * 2.0**-24)).float()
    assert fault(kernel, expected.float(), expected, Tolerance(2.0)) == ""


def shared_error(rows: int, independent: int = 0) -> str:
    """Return the fault found if all elements share one error of 2.6 float32 roundings."""
    expected = torch.rand(rows, 512, dtype=torch.float64) + 0.5
    actual, sums = (expected * (1 + 2.6 * 2.0**-24)).float(), replace(NO_SUMS, independent=independent)
    return compared(actual, expected.float(), expected, Tolerance(2.0), Excuses(sums)).fault


def test_an_error_that_one_row_may_share_is_too_large_for_many_rows() -> None:
    assert shared_error(rows=1) == ""
    assert "root mean square" in shared_error(rows=200)


def test_an_error_that_all_rows_of_an_image_may_share_is_too_large_for_many_images() -> None:
    assert shared_error(rows=200, independent=1) == ""
    assert "root mean square" in shared_error(rows=200, independent=100)


@pytest.mark.parametrize("found", [-65472.0, -math.inf])
def test_a_rounding_near_the_largest_number_may_overflow(found: float) -> None:
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
def test_other_results_near_the_largest_number_are_wrong(found: float) -> None:
    expected = torch.tensor([-65467.6] + [1.0] * 99, dtype=torch.float64)
    pytorch = expected.to(torch.float16)
    pytorch[0] = -math.inf
    actual = expected.to(torch.float16)
    actual[0] = found
    assert fault(actual, pytorch, expected, Tolerance())


def test_a_result_too_large_for_the_dtype_must_be_infinite() -> None:
    expected = torch.tensor([1.0, 1e6], dtype=torch.float64)
    assert fault(expected.half(), expected.half(), expected, Tolerance()) == ""
    assert "not finite" in fault(torch.tensor([1.0, 65504.0]).half(), expected.half(), expected, Tolerance())


@pytest.mark.parametrize(("share", "right"), [(0.5, True), (3.0, False)])
def test_an_allowed_error_beyond_the_largest_number_still_limits_the_mean_error(share: float, right: bool) -> None:
    expected = torch.full((64,), 1e38, dtype=torch.float64)
    pytorch, actual = (expected * 1.5).float(), (expected * (1 - share)).float()
    assert (fault(actual, pytorch, expected, Tolerance()) == "") is right


@pytest.mark.parametrize(("others", "right"), [(1e-6, True), (1.0, False)], ids=["one", "all alike"])
def test_a_mean_error_may_be_larger_with_fewer_elements(others: float, right: bool) -> None:
    """The kernel is off by three roundings, while PyTorch happens to be exact."""
    expected = torch.full((4096,), others, dtype=torch.float64)
    expected[7] = 1.0
    kernel = expected * (1 + 3 * 2.0**-24)
    assert (fault(kernel.float(), expected.float(), expected, Tolerance()) == "") is right


def not_finite(
    actual: list[float],
    pytorch: list[float],
    expected: list[float],
    others: list[list[float]],
    *,
    infinite: bool = True,
) -> str:
    results = tuple(torch.tensor(values) for values in (pytorch, *others))
    exact, context = torch.tensor(expected).double(), NotFinite(results, infinite)
    return compared(torch.tensor(actual), results[0], exact, Tolerance(), Excuses(not_finite=context)).fault


def test_nan_must_be_kept_where_all_of_pytorch_gives_nan() -> None:
    assert "not finite where they should be" in not_finite([1.0, 0.0], [1.0, math.nan], [1.0, math.nan], [])


def test_an_element_on_which_pytorchs_results_disagree_may_have_any_value() -> None:
    assert not not_finite([1.0, 5.0], [1.0, math.nan], [1.0, 7.0], [])
    assert not not_finite([1.0, 5.0], [1.0, math.nan], [1.0, math.nan], [[1.0, 7.0]])


def test_an_infinity_may_stand_for_nan_but_not_nan_for_an_infinity() -> None:
    assert not not_finite([1.0, math.inf], [1.0, math.nan], [1.0, math.nan], [])
    assert not_finite([1.0, math.nan], [1.0, math.inf], [1.0, math.inf], [])


def test_nan_may_stand_for_an_infinity_where_another_output_of_the_row_is_nan() -> None:
    expected, actual = torch.tensor([1.0, math.inf]), torch.tensor([1.0, math.nan])

    def judged(lost: list[bool]) -> str:
        context = NotFinite((expected,), infinite=True, lost=lambda: torch.tensor(lost))
        return compared(actual, expected, expected.double(), Tolerance(), Excuses(not_finite=context)).fault

    assert judged([False, True]) == ""
    assert judged([True, False])


def fault_in(actual: list[float], **said: Any) -> str:
    """Return the fault of a result where NaN, a number and an infinity are expected."""
    right = torch.tensor([math.nan, 1.0, math.inf])
    found = compared(
        torch.tensor(actual), right, right.double(), Tolerance(), Excuses(not_finite=NotFinite((right,), True, **said))
    )
    return found.fault


def test_an_infinity_may_not_stand_for_nan_that_results_only_from_nan() -> None:
    of_nan = torch.tensor([True, False, False])
    assert fault_in([math.inf, 1.0, math.inf], of_nan=lambda: of_nan)
    assert not fault_in([math.inf, 1.0, math.inf], of_nan=lambda: ~of_nan)


def test_nan_may_be_a_number_where_an_infinity_was_saved_but_not_the_reverse() -> None:
    assert not fault_in([7.0, 1.0, math.inf], lenient=True)
    assert fault_in([7.0, math.nan, math.inf], lenient=True)
    assert fault_in([7.0, 1.0, 7.0], lenient=True)


def test_an_infinite_weight_may_make_nan_only_of_results_that_depend_on_it() -> None:
    def of_weights(actual: list[float], *, depends: bool) -> str:
        where = torch.tensor([True, depends, True])
        return fault_in(actual, lenient=True, of_weights=True, depends=lambda: where)

    assert not of_weights([math.nan, math.nan, math.nan], depends=True)
    assert of_weights([math.nan, 1.0, 7.0], depends=True)


def test_an_infinity_may_not_stand_for_nan_where_no_input_is_infinite() -> None:
    assert not_finite([1.0, math.inf], [1.0, math.nan], [1.0, math.nan], [], infinite=False)


def test_an_infinity_of_the_other_sign_is_wrong() -> None:
    assert not_finite([1.0, -math.inf], [1.0, math.inf], [1.0, math.inf], [])


def test_equal_nan_are_equal_where_an_output_must_be_exact() -> None:
    values = torch.tensor([1.0, math.nan])
    assert not fault(values, values, values.double(), Tolerance(exact=True))
    assert fault(torch.tensor([1.0, 2.0]), values, values.double(), Tolerance(exact=True))


def test_a_small_probability_that_is_lost_is_found_only_if_its_relative_error_counts() -> None:
    expected = torch.tensor([0.9, 0.1, 1e-12], dtype=torch.float64)
    lost = torch.tensor([0.9, 0.1, 0.0])
    assert not fault(lost, expected.float(), expected, Tolerance())
    assert "its logarithm must be right" in fault(lost, expected.float(), expected, Tolerance(relative=True))


def test_a_relative_error_is_allowed_up_to_that_of_pytorch() -> None:
    expected = torch.tensor([0.9, 0.1, 1e-12], dtype=torch.float64)
    pytorch = torch.tensor([0.9, 0.1, 1.05e-12])
    assert not fault(torch.tensor([0.9, 0.1, 0.9e-12]), pytorch, expected, Tolerance(relative=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("relative", [False, True])
def test_groups_of_rows_get_the_same_verdict_together_as_separately(dtype: torch.dtype, relative: bool) -> None:
    torch.manual_seed(5)
    groups, tolerance = 5, Tolerance(relative=relative)
    sums = [summed(300, alike=turn == 2) for turn in range(groups)]
    for spoilt in (0.0, 1.0, 6.0, 400.0):
        expected = torch.rand(23, 11, dtype=torch.float64) * 10.0 ** torch.arange(23)[:, None].remainder(5)
        noise = torch.randn(2, 23, 11, dtype=torch.float64) * torch.finfo(dtype).eps / 8
        actual, pytorch = (expected * (1 + noise * torch.tensor([spoilt, 1.0])[:, None, None])).to(dtype)
        actual[3, 3] = torch.nan if spoilt == 6 else actual[3, 3]
        together = right_in_turn((actual, pytorch, expected), tolerance, list(map(Rule, sums)))
        for turn, found in enumerate(together):
            rows = slice(turn, None, groups)
            alone = compared(actual[rows], pytorch[rows], expected[rows], tolerance, Excuses(sums[turn]))
            assert found is None or (alone.fault == "" and found.error == pytest.approx(alone.error))
            assert found is None or found.worst == pytest.approx(alone.worst, rel=1e-5)
        right = sum(found is not None for found in together)
        assert right == {0.0: groups, 1.0: groups, 400.0: 0}.get(spoilt, right)
        assert together[3] is None or spoilt != 6  # this group contains NaN


@pytest.mark.parametrize("groups", [1, 3])
def test_groups_with_special_values_get_the_same_verdict_together_as_separately(groups: int) -> None:
    generator, clear = torch.Generator().manual_seed(8), 0
    for trial in range(60):
        share = (0.0, 0.1, 1.0)[trial % 3]
        expected = with_special_values(torch.randn(6, 5, generator=generator), generator, share).double()
        if trial % 4:  # without numbers near the largest
            expected = torch.where(expected.isfinite() & (expected.abs() > 1e38), 1.0, expected)
        pytorch, actual = ((expected * (1 + error)).float() for error in (1e-7, (2e-7, 9e-7)[trial % 2]))
        if trial % 5 == 0:
            actual = with_special_values(actual, generator, 0.03)
        rules = [Rule(NO_SUMS, not_finite=True)] * groups
        for turn, found in enumerate(right_in_turn((actual, pytorch, expected), Tolerance(), rules)):
            rows = slice(turn, None, groups)
            excuses = Excuses(not_finite=NotFinite((pytorch[rows],)))
            alone = compared(actual[rows], pytorch[rows], expected[rows], Tolerance(), excuses)
            clear += found is not None
            assert found is None or alone.fault == ""
            assert found is None or (found.error, found.worst) == pytest.approx((alone.error, alone.worst), rel=1e-4)
    assert clear > 5 * groups


def with_special_values(values: torch.Tensor, generator: torch.Generator, share: float) -> torch.Tensor:
    """Return the values with NaN, infinities and numbers near the largest in this share of the places."""
    special = torch.tensor([math.nan, math.inf, -math.inf, 3e38, -2e38])
    which = torch.randint(len(special), values.shape, generator=generator)
    return torch.where(torch.rand(values.shape, generator=generator) < share, special[which], values)


def test_the_quick_comparison_gives_the_result_of_the_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdict(seed: int) -> Comparison:
        generator = torch.Generator().manual_seed(seed)
        right = with_special_values(torch.randn(40, generator=generator), generator, 0.2)
        own, actual, other = (right * (1 + error) for error in (1e-7, 3e-7 * (seed % 7), 0.0))
        if seed % 3 == 0:  # every third result differs
            actual = with_special_values(actual, generator, 0.05)
        if seed % 5 == 0:
            other = with_special_values(other, generator, 0.05)
        context = NotFinite((own, other), infinite=seed % 2 == 0) if seed % 4 else None
        return compared(actual, own, right.double(), Tolerance(), Excuses(not_finite=context))

    quick = [verdict(seed) for seed in range(300)]
    monkeypatch.setattr(compare, "_alike_throughout", lambda *_: None)
    assert quick == [verdict(seed) for seed in range(300)]
    assert len({one.fault == "" for one in quick}) == 2
