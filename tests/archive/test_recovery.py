"""Recovery of damaged archives."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import filled
from records import GPU, kernel, passed, proposal

from archive import ArchiveError
from archive.kernel import Kernel, Proposal
from archive.records import Evaluation
from archive.recovery import recover
from archive.runs import AskedQuestion, Question, Run
from archive.sqlite import gathered, open_archive
from archive.summaries import EvaluationSummary

PAGE = 4096


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return an archive of a few hundred kernels with verdicts and questions."""
    path = tmp_path_factory.mktemp("many") / "a.db"
    store = open_archive(path)
    for number in range(300):
        made = kernel(number)
        asked = Question("model", "url", "{}", (("user", f"question {number}" * 20),))
        offered = replace(proposal(made), question=asked, created=float(number))
        store.append(offered, passed(made.id, GPU, float(number), **{"rows=8 cols=16 float32": 20.0}))
    store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return path.read_bytes()


def overwrite_page(path: Path, number: int) -> None:
    with path.open("r+b") as file:
        file.seek(number * PAGE)
        file.write(b"\xff" * PAGE)


def test_everything_is_recovered_from_an_archive_without_damage(tmp_path: Path) -> None:
    source = filled(tmp_path / "a.db")
    found = recover(source, tmp_path / "b.db")
    assert (found.refused, found.gaps) == (0, ())
    ids = [{record.id for record in gathered(open_archive(path))} for path in (source, tmp_path / "b.db")]
    assert ids[0] == ids[1]


def test_damaged_pages_cost_only_the_records_on_them(tmp_path: Path, many: bytes) -> None:
    pages = len(many) // PAGE
    for number in range(pages // 4, pages, max(1, pages // 8)):
        damaged = tmp_path / f"{number}.db"
        damaged.write_bytes(many)
        overwrite_page(damaged, number)
        found = recover(damaged, tmp_path / f"{number}.new.db")
        store = open_archive(tmp_path / f"{number}.new.db")
        assert len(store.find(Kernel)) > 200
        assert found.copied["Kernel"] == len(store.find(Kernel))
        assert len(store.find(Evaluation)) == len(store.find(EvaluationSummary))


def test_a_truncated_archive_keeps_the_records_before_the_cut(tmp_path: Path, many: bytes) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(many[: len(many) * 2 // 3])
    found = recover(path, tmp_path / "b.db")
    assert found.gaps
    assert found.copied["Kernel"] > 50
    assert len(open_archive(tmp_path / "b.db").find(Proposal)) == found.copied["Proposal"]


@pytest.mark.parametrize(
    ("change", "kind", "left"),
    [
        ("UPDATE evaluations SET outcome = 'splendid' WHERE rowid = 1", Evaluation, 4),
        ("UPDATE kernels SET text = 'changed' WHERE rowid = 1", Kernel, 4),
        ("UPDATE measurements SET median_us = 'fast'", Evaluation, 1),
        ("DELETE FROM measurements", Evaluation, 1),
        ("UPDATE runs SET created = 'today' WHERE rowid = 1", Run, 1),
    ],
)
def test_records_that_are_not_valid_are_left_out(tmp_path: Path, change: str, kind: Any, left: int) -> None:
    source = filled(tmp_path / "a.db")
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute(change)
    found = recover(source, tmp_path / "b.db")
    assert found.refused
    assert len(open_archive(tmp_path / "b.db").find(kind)) == left


def test_questions_without_their_texts_are_left_out(tmp_path: Path, many: bytes) -> None:
    source = tmp_path / "a.db"
    source.write_bytes(many)
    with closing(sqlite3.connect(source)) as connection, connection:
        connection.execute("DELETE FROM texts WHERE rowid <= 10")
    assert recover(source, tmp_path / "b.db").refused == 10
    assert len(open_archive(tmp_path / "b.db").find(AskedQuestion)) == 290


def test_the_damaged_file_is_not_changed_and_no_file_is_overwritten(tmp_path: Path) -> None:
    source = filled(tmp_path / "a.db")
    before = source.read_bytes()
    recover(source, tmp_path / "b.db")
    assert source.read_bytes() == before
    with pytest.raises(ArchiveError, match="exists already"):
        recover(source, tmp_path / "b.db")


def test_a_file_without_readable_records_is_an_error_and_makes_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("no database" * 999)
    with pytest.raises(ArchiveError, match="nothing can be read"):
        recover(tmp_path / "a.db", tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()
