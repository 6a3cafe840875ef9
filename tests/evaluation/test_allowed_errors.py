"""Errors that rounding of the inputs explains, where large terms cancel, and errors that it does not."""

import functools
from collections.abc import Sequence

import pytest
import torch

from evolve.evaluation.compare import FLOAT32_UNIT, compared, summed
from reference_ops.op import Tolerance


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Make each test independent of earlier ones."""
    torch.manual_seed(5)


@pytest.mark.parametrize(("moves", "right"), [(1e-8, True), (1e-12, False), (0.0, False)])
def test_few_zero_results_are_compared_by_the_error_of_float32(moves: float, right: bool) -> None:
    wanted = torch.zeros(2, dtype=torch.float64)
    nearly = torch.tensor([-6e-9, 0.0])
    found = compared(nearly, wanted.float(), wanted, Tolerance(), perturbed=lambda: torch.full((2,), moves))
    assert (found.fault == "") is right


def ill_conditioned(off_by: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return sums of which one has terms a hundred times as large.

    PyTorch's result of that one is exact by chance, the kernel's is off by `off_by` usual errors.
    """
    wanted, moves = torch.randn(4096, dtype=torch.float64), torch.full((4096,), 1e-6)
    moves[7] = 1e-4
    pytorch = wanted + moves * torch.randn(4096)
    pytorch[7] = wanted[7]
    kernel = wanted + moves * torch.randn(4096)
    kernel[7] = wanted[7] + off_by * moves[7]
    return kernel.float(), pytorch.float(), wanted, moves


def test_an_element_with_large_terms_may_be_off_by_chance() -> None:
    kernel, pytorch, wanted, moves = ill_conditioned(0.25)
    assert "[7]" in compared(kernel, pytorch, wanted, Tolerance()).fault
    assert compared(kernel, pytorch, wanted, Tolerance(), perturbed=lambda: moves).fault == ""


@pytest.mark.parametrize(
    ("off_at", "times", "right"),
    [((7,), 4, True), (range(64), 1, True), (range(64), 4, False)],
    ids=["one row", "everywhere as inputs are rounded", "everywhere"],
)
def test_all_elements_of_a_row_may_share_one_error(off_at: Sequence[int], times: int, right: bool) -> None:
    """As in an outer product, where a row shares one factor."""
    columns = torch.rand(128, dtype=torch.float64) + 0.5
    factor, luck = torch.randn(2, 64, 1, dtype=torch.float64)
    moves = torch.full((64, 1), 1e-7)
    moves[list(off_at)] = 1.6e-6 / times
    wanted = factor * columns
    pytorch = wanted + 1e-7 * columns * luck
    kernel = pytorch.clone()
    kernel[list(off_at)] = wanted[list(off_at)] + 1.6e-6 * columns
    found = compared(kernel.float(), pytorch.float(), wanted, Tolerance(), perturbed=lambda: moves * columns.float())
    assert (found.fault == "") is right


def test_half_precision_is_found_although_all_elements_move_and_terms_are_alike() -> None:
    """As in the gradient of a norm's weight, where no single element is off by much."""
    wanted = torch.randn(256, dtype=torch.float64)
    judged = functools.partial(
        compared,
        pytorch=wanted.float(),
        expected=wanted,
        tolerance=Tolerance(),
        sums=summed(2**16, alike=True),
        perturbed=lambda: torch.full((256,), 1e-5),
    )
    moved = wanted + 1e-5 * torch.randn(256)
    assert judged(moved.float()).fault == ""
    assert judged(wanted.half().float()).fault


def cancelled(off_by: float, rows: int) -> str:
    """Return the fault of differences of large numbers, exact in PyTorch, with some rows off by `off_by` moves."""
    wanted, moves = torch.randn(256, 64, dtype=torch.float64), torch.full((256, 64), 1e-4)
    kernel = wanted + moves * torch.randn(256, 1).clamp(-1.5, 1.5)
    kernel[:rows] = wanted[:rows] + off_by * moves[:rows]
    return compared(kernel.float(), wanted.float(), wanted, Tolerance(), perturbed=lambda: moves).fault


def test_rounding_may_explain_a_hundred_times_the_usual_error() -> None:
    assert cancelled(1.0, rows=0) == ""


@pytest.mark.parametrize(("off_by", "rows", "right"), [(5.0, 4, True), (5.0, 9, False), (9.0, 1, False)])
def test_few_rows_may_be_farther_off_than_rounding_explains(off_by: float, rows: int, right: bool) -> None:
    assert (cancelled(off_by, rows) == "") is right


def test_an_element_with_ordinary_terms_may_not_be_off_by_chance() -> None:
    kernel, pytorch, wanted, _ = ill_conditioned(0.25)
    assert "[7]" in compared(kernel, pytorch, wanted, Tolerance(), perturbed=lambda: torch.full((4096,), 1e-6)).fault


def test_a_large_error_is_not_explained_by_large_terms() -> None:
    kernel, pytorch, wanted, moves = ill_conditioned(20.0)
    assert "[7]" in compared(kernel, pytorch, wanted, Tolerance(), perturbed=lambda: moves).fault


def test_pytorchs_error_near_zero_explains_no_error_elsewhere() -> None:
    """PyTorch's error there is no rounding, and is large compared with how far float32 moves the result."""
    wanted = 100 * torch.randn(4096, dtype=torch.float64)
    wanted[7], wanted[9] = 1e-4, 1.0
    pytorch = wanted + 0.1 * torch.randn(4096)
    pytorch[7] = wanted[7] + 0.3
    kernel = pytorch.clone()
    kernel[9] = wanted[9] + 1.2
    judged = functools.partial(compared, kernel.bfloat16(), pytorch.bfloat16(), wanted, Tolerance())
    assert "[9]" in judged().fault
    assert "[9]" in judged(perturbed=lambda: torch.full((4096,), 1e-5)).fault


@pytest.mark.parametrize(("moves_by", "right"), [(1e-5, True), (1e-6, False)], ids=["ill conditioned", "ordinary"])
def test_a_mean_error_may_come_from_few_rows_with_large_terms(moves_by: float, right: bool) -> None:
    """As in heads of attention whose two largest scores are nearly equal; no single element is off by much."""
    wanted = torch.randn(8, 72, dtype=torch.float64)
    pytorch = wanted + 1e-6 * torch.randn(8, 72)
    kernel = wanted + 1e-6 * torch.randn(8, 72)
    kernel[:3] = wanted[:3] + 7.5e-6
    moves = torch.full((8, 72), 1e-6)
    moves[:3] = moves_by
    judged = functools.partial(compared, kernel.float(), pytorch.float(), wanted, Tolerance())
    assert "root mean square" in judged().fault
    assert (judged(perturbed=lambda: moves).fault == "") is right


def summed_in_turn(terms: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, added in turn; `cumsum` keeps more digits on the way."""
    total = torch.zeros(len(terms))
    for column in terms.T:
        total += column
    return total


@pytest.mark.parametrize(("times", "bits", "right"), [(2.45, 32, True), (1.0, 32, False), (2.45, 16, False)])
def test_a_sum_by_one_thread_passes_and_half_precision_does_not(times: float, bits: int, right: bool) -> None:
    """One result each, which PyTorch's matches exactly by chance."""
    terms = torch.randn(300, 72)
    found = []
    for row, kernel in zip(terms, summed_in_turn(terms if bits == 32 else terms.half().float()), strict=True):
        wanted, moves = row.double().sum()[None], row.norm()[None] * FLOAT32_UNIT * times
        judged = functools.partial(compared, kernel[None], wanted.float(), wanted, Tolerance())
        found.append(judged(perturbed=functools.partial(torch.clone, moves)))
    assert (not any(comparison.fault for comparison in found)) is right
