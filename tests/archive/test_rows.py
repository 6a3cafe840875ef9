"""Damaged archives, by accident or on purpose: the error says what is wrong, and none of their records is merged."""

import sqlite3
from pathlib import Path

import pytest
from records import GPU, checked, confirmed, failed_reply, kernel, passed, proposal

from archive import ArchiveError
from archive.kernel import Kernel, Proposal
from archive.records import Evaluation, Standard
from archive.runs import AskedQuestion, Question, Run
from archive.sqlite import SqliteStore, merge, open_archive

OURS = confirmed(kernel(1).id, w=20.0)


def damaged(folder: Path, statement: str) -> SqliteStore:
    """Return an archive with a record of each kind, damaged by this SQL statement."""
    path = folder / "damaged.db"
    store = open_archive(path)
    question = Question("m", "http://here/v1", "{}", (("user", "a kernel"),))
    reply = failed_reply()
    store.append(Run("run", "softmax", GPU.key, "offline", 0, 1.0), proposal(kernel(1)), reply)
    store.append(
        AskedQuestion(reply.id, "softmax", question), checked(OURS), Standard("softmax", "w", GPU, 30.0, created=2.0)
    )
    store.close()
    connection = sqlite3.connect(path)
    connection.executescript(statement)
    connection.close()
    return open_archive(path, read_only=True)


def with_text(text: str) -> str:
    """Return a statement that replaces the text of the kernel and updates its id to match."""
    words, other = text.replace("'", "''"), Kernel(text).id
    return f"UPDATE kernels SET text = '{words}', id = '{other}'; UPDATE proposals SET kernel_id = '{other}'"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE measurements SET median_us = 'fast'", "table `evaluations`: measurements[0].median_us must be"),
        ("UPDATE measurements SET median_us = 0", "median_us must be a time"),
        ("UPDATE measurements SET median_us = 9e999", "median_us must be a finite number"),
        ("UPDATE measurements SET median_us = -1", "median_us must be a finite number, at least 0"),
        ("UPDATE measurements SET workload = zeroblob(9)", "measurements[0].workload must be text"),
        ("UPDATE evaluations SET outcome = 'splendid'", "'splendid' is not a valid Outcome"),
        ("UPDATE evaluations SET checks = '[[1, 2]]'", "`checks` must hold lists of 6"),
        ("UPDATE evaluations SET checks = 'none'", "`checks` is not JSON"),
        ("UPDATE evaluations SET checks = '{}'", "`checks` is not a list"),
        (f"UPDATE evaluations SET checks = '{'[' * 50_000}'", "table `evaluations`"),
        ("""UPDATE evaluations SET confirmed = '{"x": 1}'""", "`confirmed` is not a valid Confirmed"),
        ("UPDATE evaluations SET confirmed = '[]'", "`confirmed` is not a valid Confirmed"),
        ("UPDATE evaluations SET created = 'soon'", "created must be a time"),
        ("UPDATE evaluations SET created = 1e18", "created must be a time"),
        ("UPDATE evaluations SET created = 9e9", "days ahead of this machine"),
        ("UPDATE evaluations SET deterministic = 'maybe'", "deterministic must be true or false"),
        ("UPDATE evaluations SET log = zeroblob(9)", "log must be text"),
        ("DELETE FROM devices", "its device"),
        ("UPDATE devices SET name = char(27) || '[31mH200'", "`name` has the control character U+001B"),
        ("UPDATE devices SET sms = 'many'", "table `devices`: sms must be a whole number"),
        ("UPDATE kernels SET text = zeroblob(9)", "table `kernels`: it holds bytes instead of text"),
        ("UPDATE kernels SET text = 'not a kernel'", "table `kernels`: its text has the id"),
        (with_text("not a kernel"), "line 1: a kernel begins with its plan"),
        (with_text(kernel(1).text + chr(27)), "the control character U+001B"),
        ("DELETE FROM kernels", "table `proposals`: its kernel"),
        ("UPDATE proposals SET parents = '7'", "`parents` is not a list"),
        ("UPDATE proposals SET usd = -5", "cost.usd must be"),
        ("UPDATE runs SET budget = '[]'", "`budget` is not a valid Budget"),
        ("UPDATE questions SET messages = '[[1]]'", "`messages` must hold lists of 2"),
        ("DELETE FROM texts", "its text"),
        ("UPDATE standards SET standard = '{}'", "table `standards`"),
        ("DROP TABLE profiles", "no such table: profiles"),
        ("ALTER TABLE legs RENAME COLUMN ended TO finished", "no such column"),
    ],
)
def test_a_damaged_archive_is_not_merged_and_the_error_says_where_it_is_damaged(
    tmp_path: Path, statement: str, said: str
) -> None:
    mine = open_archive(tmp_path / "mine.db")
    mine.append(passed(kernel(2).id, w=1.0))
    with pytest.raises(ArchiveError) as caught:
        merge(mine, damaged(tmp_path, statement))
    assert said in str(caught.value)
    assert "damaged.db" in str(caught.value)
    assert (mine.find(Kernel), mine.find(Proposal), len(mine.find(Evaluation))) == ([], [], 1)


def test_a_row_is_named_by_its_id(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=f"row {checked(OURS).id} of its table `evaluations`"):
        damaged(tmp_path, "UPDATE evaluations SET outcome = 'splendid'").find(Evaluation)


def test_an_old_archive_with_a_character_that_is_now_refused_is_still_read(tmp_path: Path) -> None:
    (found,) = damaged(tmp_path, with_text(kernel(1).text + "// \x0c x\n")).find(Kernel)
    assert "\x0c" in found.source
