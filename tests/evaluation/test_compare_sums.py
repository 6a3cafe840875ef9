"""Comparison of results that are sums: the error that another order of the terms explains, and no more."""

import functools
from collections.abc import Callable, Sequence

import pytest
import torch
from compared_results import fault

from evolve.evaluation.allowed_errors import FLOAT32_UNIT, NO_SUMS, Sums, summed
from evolve.evaluation.clearly_right import Rule, right_in_turn
from evolve.evaluation.compare import Excuses, compared
from reference_ops.op import Tolerance


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make each test independent of earlier tests."""
    torch.manual_seed(5)


def test_a_truncated_result_fails() -> None:
    expected = torch.randn(300, 512, dtype=torch.float64)
    cut = (expected.float().view(torch.int32) & -65536).view(torch.float32).bfloat16()
    assert "root mean square" in fault(cut, expected.bfloat16(), expected, Tolerance(2.0))


def summed_in_chains(terms: torch.Tensor, chains: int) -> torch.Tensor:
    """Return the sum of each row, added up in `chains` float32 partial sums. `cumsum` would keep more digits."""
    totals = torch.zeros(len(terms), chains)
    for column in terms.reshape(len(terms), -1, chains).unbind(1):
        totals += column
    return totals.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("terms", "chains"), [(2**17, 256), (2**17, 32), (1024, 1)], ids=["a block", "a warp", "one thread"]
)
def test_a_sum_may_be_added_in_any_order_but_not_in_half_precision(terms: int, chains: int) -> None:
    numbers = torch.rand(8, terms) + 1e-3
    expected, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    judged = functools.partial(fault, pytorch=pytorch, expected=expected, tolerance=Tolerance())
    assert judged(summed_in_chains(numbers, chains), sums=summed(terms, alike=False)) == ""
    assert judged(pytorch.half().float(), sums=summed(terms, alike=False)) != ""


@pytest.mark.parametrize(("terms", "chains", "right"), [(256, 1, True), (4096, 1, False), (4096, 32, True)])
def test_one_thread_may_not_lose_hundreds_of_small_terms_next_to_a_large_one(
    terms: int, chains: int, right: bool
) -> None:
    """This happens in the sum of a softmax whose logits differ widely."""
    numbers = torch.exp(torch.randn(16, terms) * 4)
    numbers[:, 0] = numbers.amax(-1) * 4
    expected, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    found = fault(summed_in_chains(numbers, chains), pytorch, expected, Tolerance(), summed(terms, alike=False))
    assert (found == "") is right


def test_equal_terms_may_all_be_rounded_the_same_way() -> None:
    terms = torch.full((4, 4096), 1.001)
    expected, pytorch = terms.double().sum(-1, keepdim=True), terms.sum(-1, keepdim=True)
    in_turn = summed_in_chains(terms, 1)
    assert fault(in_turn, pytorch, expected, Tolerance(), summed(4096, alike=True)) == ""
    assert fault(in_turn, pytorch, expected, Tolerance(), summed(4096, alike=False)) != ""


@pytest.mark.parametrize(("terms", "right"), [(1024, True), (4096, False)])
def test_one_thread_may_add_up_a_short_row_alone(terms: int, right: bool) -> None:
    numbers = torch.rand(64, terms) + 1e-3
    expected, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    found = fault(summed_in_chains(numbers, 1), pytorch, expected, Tolerance(), summed(terms, alike=False))
    assert (found == "") is right


def test_terms_of_half_the_digits_are_found_in_two_long_rows() -> None:
    numbers = torch.exp(torch.randn(2, 4096))
    expected, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    coarse = expected * (1 + 30 * FLOAT32_UNIT)  # an error as large as that of terms rounded to float16
    assert fault(coarse.float(), pytorch, expected, Tolerance(), summed(4096, alike=False)) != ""


def test_terms_of_half_the_digits_do_not_pass_as_rounding_of_their_sum() -> None:
    numbers = torch.exp(torch.randn(64, 4096))
    expected, pytorch = numbers.double().sum(-1, keepdim=True), numbers.sum(-1, keepdim=True)
    coarse = numbers.half().float().sum(-1, keepdim=True)
    assert fault(coarse, pytorch, expected, Tolerance(), summed(4096, alike=False)) != ""


@pytest.mark.parametrize(("moves", "right"), [(1e-8, True), (1e-12, False), (0.0, False)])
def test_a_few_results_that_are_all_zero_are_compared_by_the_error_of_float32(moves: float, right: bool) -> None:
    expected = torch.zeros(2, dtype=torch.float64)
    nearly = torch.tensor([-6e-9, 0.0])
    found = compared(
        nearly, expected.float(), expected, Tolerance(), Excuses(perturbed=lambda: torch.full((2,), moves))
    )
    assert (found.fault == "") is right


def ill_conditioned(off_by: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the kernel's sums, PyTorch's sums, the exact sums, and how far rounding moves each of them.

    One sum has terms a hundred times larger. There PyTorch happens to be exact and the kernel is off by `off_by` moves.
    """
    expected, moves = torch.randn(4096, dtype=torch.float64), torch.full((4096,), 1e-6)
    moves[7] = 1e-4
    pytorch = expected + moves * torch.randn(4096)
    pytorch[7] = expected[7]
    kernel = expected + moves * torch.randn(4096)
    kernel[7] = expected[7] + off_by * moves[7]
    return kernel.float(), pytorch.float(), expected, moves


def test_an_element_with_large_terms_may_have_a_larger_error() -> None:
    kernel, pytorch, expected, moves = ill_conditioned(0.25)
    assert "[7]" in compared(kernel, pytorch, expected, Tolerance()).fault
    assert compared(kernel, pytorch, expected, Tolerance(), Excuses(perturbed=lambda: moves)).fault == ""


@pytest.mark.parametrize(
    ("off_at", "times", "right"),
    [((7,), 4, True), (range(64), 1, True), (range(64), 4, False)],
    ids=["one row", "all rows, as far as rounding moves them", "all rows"],
)
def test_all_elements_of_a_row_may_share_one_error(off_at: Sequence[int], times: int, right: bool) -> None:
    """In an outer product, for example, all elements of a row share one factor."""
    columns = torch.rand(128, dtype=torch.float64) + 0.5
    factor, luck = torch.randn(2, 64, 1, dtype=torch.float64)
    moves = torch.full((64, 1), 1e-7)
    moves[list(off_at)] = 1.6e-6 / times
    expected = factor * columns
    pytorch = expected + 1e-7 * columns * luck
    kernel = pytorch.clone()
    kernel[list(off_at)] = expected[list(off_at)] + 1.6e-6 * columns
    found = compared(
        kernel.float(), pytorch.float(), expected, Tolerance(), Excuses(perturbed=lambda: moves * columns.float())
    )
    assert (found.fault == "") is right


def test_half_precision_is_found_even_if_all_elements_move_and_terms_are_alike() -> None:
    """In the gradient of a norm's weight, for example, no single element is off by much."""
    expected = torch.randn(256, dtype=torch.float64)
    judged = functools.partial(
        compared,
        pytorch=expected.float(),
        expected=expected,
        tolerance=Tolerance(),
        excuses=Excuses(summed(2**16, alike=True), perturbed=lambda: torch.full((256,), 1e-5)),
    )
    moved = expected + 1e-5 * torch.randn(256)
    assert judged(moved.float()).fault == ""
    assert judged(expected.half().float()).fault


def cancelled(off_by: float, rows: int) -> str:
    """Return the fault found where large numbers cancel, PyTorch is exact, and some rows are off by `off_by` moves."""
    expected, moves = torch.randn(256, 64, dtype=torch.float64), torch.full((256, 64), 1e-4)
    kernel = expected + moves * torch.randn(256, 1).clamp(-1.5, 1.5)
    kernel[:rows] = expected[:rows] + off_by * moves[:rows]
    return compared(kernel.float(), expected.float(), expected, Tolerance(), Excuses(perturbed=lambda: moves)).fault


def test_rounding_may_explain_a_hundred_times_the_usual_error() -> None:
    assert cancelled(1.0, rows=0) == ""


@pytest.mark.parametrize(("off_by", "rows", "right"), [(5.0, 4, True), (5.0, 9, False), (9.0, 1, False)])
def test_a_few_rows_may_have_larger_errors_than_rounding_explains(off_by: float, rows: int, right: bool) -> None:
    assert (cancelled(off_by, rows) == "") is right


def test_an_element_with_ordinary_terms_may_not_have_a_larger_error() -> None:
    kernel, pytorch, expected, _ = ill_conditioned(0.25)
    assert (
        "[7]"
        in compared(kernel, pytorch, expected, Tolerance(), Excuses(perturbed=lambda: torch.full((4096,), 1e-6))).fault
    )


def test_a_large_error_is_not_explained_by_large_terms() -> None:
    kernel, pytorch, expected, moves = ill_conditioned(20.0)
    assert "[7]" in compared(kernel, pytorch, expected, Tolerance(), Excuses(perturbed=lambda: moves)).fault


def test_an_error_of_pytorch_near_zero_does_not_excuse_errors_elsewhere() -> None:
    """PyTorch's error near zero is not a rounding error: it is far larger than float32 rounding could make it."""
    expected = 100 * torch.randn(4096, dtype=torch.float64)
    expected[7], expected[9] = 1e-4, 1.0
    pytorch = expected + 0.1 * torch.randn(4096)
    pytorch[7] = expected[7] + 0.3
    kernel = pytorch.clone()
    kernel[9] = expected[9] + 1.2
    judged = functools.partial(compared, kernel.bfloat16(), pytorch.bfloat16(), expected, Tolerance())
    assert "[9]" in judged().fault
    assert "[9]" in judged(excuses=Excuses(perturbed=lambda: torch.full((4096,), 1e-5))).fault


@pytest.mark.parametrize(("moves_by", "right"), [(1e-5, True), (1e-6, False)], ids=["ill conditioned", "ordinary"])
def test_a_mean_error_may_come_from_a_few_rows_with_large_terms(moves_by: float, right: bool) -> None:
    """In attention heads whose two largest scores nearly tie, for example, no single element is off by much."""
    expected = torch.randn(8, 72, dtype=torch.float64)
    pytorch = expected + 1e-6 * torch.randn(8, 72)
    kernel = expected + 1e-6 * torch.randn(8, 72)
    kernel[:3] = expected[:3] + 7.5e-6
    moves = torch.full((8, 72), 1e-6)
    moves[:3] = moves_by
    judged = functools.partial(compared, kernel.float(), pytorch.float(), expected, Tolerance())
    assert "root mean square" in judged().fault
    assert (judged(excuses=Excuses(perturbed=lambda: moves)).fault == "") is right


def summed_in_turn(terms: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, adding one float32 term after the other. `cumsum` would keep more digits."""
    total = torch.zeros(len(terms))
    for column in terms.T:
        total += column
    return total


@pytest.mark.parametrize(("times", "bits", "right"), [(2.45, 32, True), (1.0, 32, False), (2.45, 16, False)])
def test_a_sum_by_one_thread_passes_and_half_precision_does_not(times: float, bits: int, right: bool) -> None:
    """Each comparison has a single result, for which PyTorch happens to be exact."""
    terms = torch.randn(300, 72)
    found = []
    for row, kernel in zip(terms, summed_in_turn(terms if bits == 32 else terms.half().float()), strict=True):
        expected, moves = row.double().sum()[None], row.norm()[None] * FLOAT32_UNIT * times
        judged = functools.partial(compared, kernel[None], expected.float(), expected, Tolerance())
        found.append(judged(excuses=Excuses(perturbed=functools.partial(torch.clone, moves))))
    assert (not any(comparison.fault for comparison in found)) is right


def test_groups_of_another_shape_are_not_right() -> None:
    values = torch.ones(4, 3)
    assert right_in_turn((values[:, :2], values, values.double()), Tolerance(), [Rule(NO_SUMS)] * 2) == [None, None]


def test_a_subnormal_result_has_no_relative_error() -> None:
    expected = torch.tensor([0.9, 0.1, 1e-39], dtype=torch.float64)
    lost = torch.tensor([0.9, 0.1, 0.0])
    assert not fault(lost, expected.float(), expected, Tolerance(relative=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_subnormal_result_may_be_off_by_one_step(dtype: torch.dtype) -> None:
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    expected = torch.full((4, 64), 7.0, dtype=torch.float64) * step
    nearly = (expected + step).to(dtype)
    assert not fault(nearly, expected.to(dtype), expected, Tolerance())


def test_a_subnormal_result_of_float16_must_not_be_lost() -> None:
    step = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    expected = torch.full((400, 64), 70.0, dtype=torch.float64) * step
    assert fault(torch.zeros(400, 64, dtype=torch.float16), expected.half(), expected, Tolerance())


@pytest.mark.parametrize(("distinct", "vanishing"), [(1, True), (1, False), (512, True)])
def test_equal_results_share_one_error_where_inputs_vanish(distinct: int, vanishing: bool) -> None:
    """The kernel is off by three roundings in all results, while PyTorch happens to be exact."""
    expected = (1 + torch.arange(512, dtype=torch.float64) % distinct / 1024).repeat(8)
    kernel = (expected * (1 + 3 * 2.0**-24)).float()
    found = compared(kernel, expected.float(), expected, Tolerance(), Excuses(sums=Sums(vanishing=vanishing)))
    assert (found.fault == "") is (distinct == 1 and vanishing)


@pytest.mark.parametrize(("steps", "right"), [(1, False), (129, True)])
def test_the_steps_of_a_sequence_share_one_error_where_inputs_vanish(steps: int, right: bool) -> None:
    torch.manual_seed(2)
    expected = torch.rand(129, 3, 17, dtype=torch.float64) + 0.5
    pytorch = (expected * (1 + 2 * FLOAT32_UNIT * torch.randn_like(expected))).float()
    off = 2.15 * (pytorch.double() - expected)
    sums = Sums(vanishing=True, steps=steps)
    found = compared((expected + off).float(), pytorch, expected, Tolerance(), Excuses(sums=sums))
    assert (found.fault == "") is right, found.fault


def in_a_sequence(units: int, times: float, sums: Sums, **excuses: Callable[[], torch.Tensor]) -> str:
    """Return the fault of results whose mean error is `times` PyTorch's, because these units are off at all steps."""
    expected = torch.rand(129, 3, 17, dtype=torch.float64) + 0.5
    moved = 2 * FLOAT32_UNIT * torch.randn_like(expected).sign()
    more = moved.clone()
    more.view(129, 51)[:, :units] *= ((times**2 - 1) * 51 / units + 1) ** 0.5
    pytorch, kernel = ((expected * (1 + off)).float() for off in (moved, more))
    return compared(kernel, pytorch, expected, Tolerance(), Excuses(sums, **excuses)).fault  # type: ignore[arg-type]


@pytest.mark.parametrize(("units", "recurrent", "right"), [(3, True, True), (3, False, False), (51, True, False)])
def test_a_sequence_may_enlarge_the_errors_of_a_few_units(units: int, recurrent: bool, right: bool) -> None:
    assert (in_a_sequence(units, 2.5, Sums(recurrent=recurrent)) == "") is right


@pytest.mark.parametrize("recurrent", [True, False])
def test_a_sequence_may_have_the_mean_error_of_pytorch_on_other_inputs(recurrent: bool) -> None:
    still, repeated = torch.zeros(129, 3, 17), torch.full((129, 3, 17), 8 * FLOAT32_UNIT)
    found = in_a_sequence(17, 4.0, Sums(recurrent=recurrent), perturbed=lambda: still, repeated=lambda: repeated)
    assert (found == "") is recurrent, found


@pytest.mark.parametrize(("rows", "right"), [(1, True), (8, True), (9, False)])
def test_a_few_rows_may_have_the_error_of_pytorch_on_other_inputs(rows: int, right: bool) -> None:
    torch.manual_seed(2)
    expected = torch.rand(1000, 20, dtype=torch.float64) + 0.5
    actual = expected.clone()
    actual[:rows] *= 1 + 20 * FLOAT32_UNIT
    repeated = torch.zeros(1000, 20)
    repeated[:rows] = 10 * FLOAT32_UNIT
    still = functools.partial(torch.zeros, 1000, 20)
    excuses = Excuses(perturbed=still, repeated=lambda: repeated)
    found = compared(actual.float(), expected.float(), expected, Tolerance(), excuses)
    assert (found.fault == "") is right, found.fault


def test_a_running_sum_may_be_added_up_in_its_order() -> None:
    numbers = torch.randn(24, 5827)
    expected, in_order, sums = numbers.double().cumsum(1), torch.empty_like(numbers), torch.zeros(24)
    for place, column in enumerate(numbers.unbind(1)):
        sums += column
        in_order[:, place] = sums
    pytorch = expected.float()
    assert fault(in_order, pytorch, expected, Tolerance(), summed(5827, alike=False, running=True)) == ""
    assert fault(in_order.half().float(), pytorch, expected, Tolerance(), summed(5827, alike=False, running=True)) != ""
