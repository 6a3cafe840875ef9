"""What is explained by how far float32 moves a result, where terms are large and cancel, and what is not."""

import functools
from collections.abc import Sequence

import pytest
import torch

from evolve.evaluation.compare import FLOAT32_UNIT, compared, summed
from reference_ops.op import Tolerance


@pytest.fixture(autouse=True)
def seeded() -> None:
    """So that no test depends on what ran before."""
    torch.manual_seed(5)


@pytest.mark.parametrize(("moves", "right"), [(1e-8, True), (1e-12, False), (0.0, False)])
def test_few_results_that_happen_to_be_zero_are_measured_by_how_exact_float32_is_there(
    moves: float, right: bool
) -> None:
    wanted = torch.zeros(2, dtype=torch.float64)
    nearly = torch.tensor([-6e-9, 0.0])
    found = compared(nearly, wanted.float(), wanted, Tolerance(), shaken=lambda: torch.full((2,), moves))
    assert (found.fault == "") is right


def ill_conditioned(off_by: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sums of which one has terms a hundred times as large: by luck PyTorch's is exact, ours is off by so many of
    the errors that are usual there."""
    wanted, moves = torch.randn(4096, dtype=torch.float64), torch.full((4096,), 1e-6)
    moves[7] = 1e-4
    theirs = wanted + moves * torch.randn(4096)
    theirs[7] = wanted[7]
    ours = wanted + moves * torch.randn(4096)
    ours[7] = wanted[7] + off_by * moves[7]
    return ours.float(), theirs.float(), wanted, moves


def test_an_element_may_be_off_by_chance_where_its_terms_are_large() -> None:
    ours, theirs, wanted, moves = ill_conditioned(0.25)
    assert "[7]" in compared(ours, theirs, wanted, Tolerance()).fault
    assert compared(ours, theirs, wanted, Tolerance(), shaken=lambda: moves).fault == ""


@pytest.mark.parametrize(
    ("off_at", "times", "right"),
    [((7,), 4, True), (range(64), 1, True), (range(64), 4, False)],
    ids=["one row", "everywhere as inputs are rounded", "everywhere"],
)
def test_all_elements_of_a_row_may_be_off_by_one_chance(off_at: Sequence[int], times: int, right: bool) -> None:
    """As in an outer product: of the factor that a row has in common."""
    columns = torch.rand(128, dtype=torch.float64) + 0.5
    factor, luck = torch.randn(2, 64, 1, dtype=torch.float64)
    moves = torch.full((64, 1), 1e-7)
    moves[list(off_at)] = 1.6e-6 / times
    wanted = factor * columns
    theirs = wanted + 1e-7 * columns * luck
    ours = theirs.clone()
    ours[list(off_at)] = wanted[list(off_at)] + 1.6e-6 * columns
    found = compared(ours.float(), theirs.float(), wanted, Tolerance(), shaken=lambda: moves * columns.float())
    assert (found.fault == "") is right


def test_half_precision_does_not_hide_where_all_elements_move_however_many_terms_are_alike() -> None:
    """As in the gradient of a norm's weight: all are off by so little that none stands out."""
    wanted = torch.randn(256, dtype=torch.float64)
    judged = functools.partial(
        compared,
        theirs=wanted.float(),
        expected=wanted,
        tolerance=Tolerance(),
        sums=summed(2**16, alike=True),
        shaken=lambda: torch.full((256,), 1e-5),
    )
    moved = wanted + 1e-5 * torch.randn(256)
    assert judged(moved.float()).fault == ""
    assert judged(wanted.half().float()).fault


def cancelled(off_by: float, rows: int) -> str:
    """What is said of differences of large numbers, exact in PyTorch by luck, where rows are off by so many moves."""
    wanted, moves = torch.randn(256, 64, dtype=torch.float64), torch.full((256, 64), 1e-4)
    ours = wanted + moves * torch.randn(256, 1).clamp(-1.5, 1.5)
    ours[:rows] = wanted[:rows] + off_by * moves[:rows]
    return compared(ours.float(), wanted.float(), wanted, Tolerance(), shaken=lambda: moves).fault


def test_rounding_explains_what_is_a_hundred_times_off_without_it() -> None:
    assert cancelled(1.0, rows=0) == ""


@pytest.mark.parametrize(("off_by", "rows", "right"), [(5.0, 4, True), (5.0, 9, False), (9.0, 1, False)])
def test_few_may_be_farther_off_than_rounding_explains_and_not_many(off_by: float, rows: int, right: bool) -> None:
    assert (cancelled(off_by, rows) == "") is right


def test_where_its_terms_are_ordinary_an_element_may_not() -> None:
    ours, theirs, wanted, _ = ill_conditioned(0.25)
    assert "[7]" in compared(ours, theirs, wanted, Tolerance(), shaken=lambda: torch.full((4096,), 1e-6)).fault


def test_what_is_far_off_is_not_explained_by_its_terms() -> None:
    ours, theirs, wanted, moves = ill_conditioned(20.0)
    assert "[7]" in compared(ours, theirs, wanted, Tolerance(), shaken=lambda: moves).fault


def test_what_pytorch_makes_of_a_few_results_near_zero_explains_nothing_elsewhere() -> None:
    """Its error there is no rounding, and vast beside how little float32 moves the result."""
    wanted = 100 * torch.randn(4096, dtype=torch.float64)
    wanted[7], wanted[9] = 1e-4, 1.0
    theirs = wanted + 0.1 * torch.randn(4096)
    theirs[7] = wanted[7] + 0.3
    ours = theirs.clone()
    ours[9] = wanted[9] + 1.2
    judged = functools.partial(compared, ours.bfloat16(), theirs.bfloat16(), wanted, Tolerance())
    assert "[9]" in judged().fault
    assert "[9]" in judged(shaken=lambda: torch.full((4096,), 1e-5)).fault


@pytest.mark.parametrize(("moves_by", "right"), [(1e-5, True), (1e-6, False)], ids=["ill conditioned", "ordinary"])
def test_a_mean_error_may_come_of_few_rows_whose_terms_are_large(moves_by: float, right: bool) -> None:
    """As of heads of attention whose two largest scores are nearly alike; no element of them stands out."""
    wanted = torch.randn(8, 72, dtype=torch.float64)
    theirs = wanted + 1e-6 * torch.randn(8, 72)
    ours = wanted + 1e-6 * torch.randn(8, 72)
    ours[:3] = wanted[:3] + 7.5e-6
    moves = torch.full((8, 72), 1e-6)
    moves[:3] = moves_by
    judged = functools.partial(compared, ours.float(), theirs.float(), wanted, Tolerance())
    assert "root mean square" in judged().fault
    assert (judged(shaken=lambda: moves).fault == "") is right


def summed_in_turn(terms: torch.Tensor) -> torch.Tensor:
    """Each row; `cumsum` keeps more digits on the way."""
    total = torch.zeros(len(terms))
    for column in terms.T:
        total += column
    return total


@pytest.mark.parametrize(("times", "bits", "right"), [(2.45, 32, True), (1.0, 32, False), (2.45, 16, False)])
def test_what_one_thread_adds_up_is_inexact_and_half_precision_more_so(times: float, bits: int, right: bool) -> None:
    """A result each, with which PyTorch was lucky."""
    terms = torch.randn(300, 72)
    found = []
    for row, ours in zip(terms, summed_in_turn(terms if bits == 32 else terms.half().float()), strict=True):
        wanted, moves = row.double().sum()[None], row.norm()[None] * FLOAT32_UNIT * times
        judged = functools.partial(compared, ours[None], wanted.float(), wanted, Tolerance())
        found.append(judged(shaken=functools.partial(torch.clone, moves)))
    assert (not any(comparison.fault for comparison in found)) is right
