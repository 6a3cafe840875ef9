"""Gains of an op's champions, and the workloads that count."""

from dataclasses import replace

import pytest
from drawn import drawn
from records import GPU, kernel, passed
from standings import archive_of

from archive.records import Evaluation
from archive.sqlite import SqliteStore
from evolve.pages.overview import overview
from evolve.report.gains import reached_everywhere, reached_table

ROWS, COLS, TINY = "rows=8 cols=16 float32", "rows=2 cols=512 float32", "rows=1 cols=1 bfloat16"
ONE, OTHER = kernel(1), kernel(2)


def archive(*evaluations: Evaluation) -> SqliteStore:
    return archive_of(ONE, OTHER, *evaluations)


def only_some(us: float, *refused: str, of: str = ONE.id) -> Evaluation:
    """Return the verdict on a kernel that accepts `ROWS` and refuses other workloads."""
    return replace(passed(of, GPU, **{ROWS: us}), skipped=tuple(f"{one}: its `when` is false" for one in refused))


def test_a_workload_that_no_kernel_accepts_counts_among_all() -> None:
    (found,) = reached_everywhere(archive(only_some(20.0, COLS, TINY)))
    assert (len(found.timings), len(found.workloads)) == (1, 3)
    assert "1/3" in drawn(reached_table([found], 80))[1]


def test_a_workload_that_another_champion_accepts_counts_once() -> None:
    (found,) = reached_everywhere(archive(only_some(20.0, COLS), passed(OTHER.id, GPU, **{ROWS: 25.0, COLS: 30.0})))
    assert (len(found.timings), len(found.workloads)) == (2, 2)


def test_workloads_of_another_type_do_not_count_if_a_type_is_requested() -> None:
    (found,) = reached_everywhere(archive(only_some(20.0, COLS, TINY)), dtype="float32")
    assert len(found.workloads) == 2


def test_the_gain_of_an_op_counts_a_workload_without_a_champion_as_pytorchs() -> None:
    line = overview(archive(only_some(25.0, COLS)), "an archive").lines[0]
    assert line.mean == pytest.approx(4.0)
    assert line.gain == pytest.approx(2.0)
