"""Requests without a kernel: counted by reason, and listed with their ids."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import evolve
from records import failed_reply, proposal_summary
from rich.console import Console

from archive.kernel import Proposal
from archive.sqlite import open_archive
from evolve.report.failures import MOST_LISTED, failures_line, failures_table, reasons, tally


def failing(reason: str, number: int = 0, run: str = "run") -> Proposal:
    return replace(failed_reply(), failure=reason, call=str(number), run=run, created=float(number))


def test_failures_that_differ_in_numbers_and_ids_are_counted_together() -> None:
    found = reasons(["prose", "status 500: req_1a2", "status 500: req_7b8", "status 503: gone"])
    assert found == [(2, "status 500: req_7b8"), (1, "prose"), (1, "status 503: gone")]


def test_a_tally_names_the_most_frequent_reasons_and_counts_the_others() -> None:
    many = [letter for letter in "abcde" for _ in range(ord("f") - ord(letter))]
    assert tally(reasons(many)) == "5 x a; 4 x b; 3 x c; 3 for 2 other reasons"


def test_a_line_counts_the_failures_and_names_the_command_that_lists_them() -> None:
    line = failures_line([proposal_summary(failing("out of order", number)) for number in range(2)], " --archive a.db")
    assert line.startswith("2 requests without a kernel: 2 x out of order; ")
    assert line.endswith(f"`evolve top {failing('').op} --failures --archive a.db` lists them")


def test_a_list_of_failures_fits_the_terminal_and_begins_with_the_newest() -> None:
    failed = [proposal_summary(failing("out of order " * 9, number), number) for number in range(MOST_LISTED + 5)]
    for width in (50, 80, 160):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(failures_table(failed, width))
        lines = console.export_text().splitlines()
        assert len(lines) == 1 + MOST_LISTED
        assert all(len(line) <= width for line in lines)
        assert lines[1].startswith(failed[-1].id[:8])
        assert "out of order out of order" in lines[1]


def test_top_lists_failures_with_ids_that_show_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_archive(tmp_path / "a.db")
    failed = failing("the request failed with status 500: out of order")
    store.append(failed)
    store.close()
    code, output, _ = evolve(capsys, "top", failed.op, "--failures", "--archive", tmp_path / "a.db")
    assert (code, "status 500: out of order" in output) == (0, True)
    shown = output.splitlines()[1].split()[0]
    assert failed.id.startswith(shown)
    assert "status 500" in evolve(capsys, "show", shown, "--archive", tmp_path / "a.db")[1]


def test_top_says_when_there_are_no_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_archive(tmp_path / "a.db").close()
    code, _, errors = evolve(capsys, "top", "softmax", "--failures", "--archive", tmp_path / "a.db")
    assert (code, "every request for softmax gave a kernel" in errors) == (1, True)
