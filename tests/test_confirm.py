"""Confirmation of the champions of several ops: in one stream of jobs, with a leg for each op."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_engine import AllAtOnce
from records import CPU
from scripted_runs import by_number, kernel

from archive.kernel import Proposal
from archive.sqlite import SqliteStore, open_archive
from evolve.confirm import Champions, confirm
from evolve.engines.engine import Job
from evolve.selection.sharing import Share
from evolve.selection.view import OpView

OPS = ("twice", "thrice")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """An archive in which kernel 2 of each op is its champion, and kernel 1 is the second best."""
    store, judge = open_archive(tmp_path / "a.db"), by_number(dict.fromkeys(OPS, (20.0, 15.0)))
    for name in OPS:
        for number in (1, 2):
            store.append(Proposal(name, "draft", "a person", kernel(number, name)))
            store.append(judge(Job(kernel(number, name), name)))
    return store


def champions(store: SqliteStore, events: list[str]) -> list[Champions]:
    def legs_of(name: str) -> Champions:
        @contextmanager
        def leg() -> Iterator[None]:
            events.append(f"{name} begins")
            yield
            events.append(f"{name} ends")

        return Champions(name, OpView(store, name, CPU), Share(), leg)

    return [legs_of(name) for name in OPS]


def engine(*failing: int) -> AllAtOnce:
    return AllAtOnce(by_number(dict.fromkeys(OPS, (20.0, 15.0)), *failing))


def test_the_champions_of_all_ops_reach_the_engine_together(store: SqliteStore) -> None:
    used = engine()
    assert [verdict.op for verdict in confirm(champions(store, []), used)] == list(OPS)
    assert used.streams[0] == list(OPS)


def test_an_ops_leg_ends_with_its_last_verdict(store: SqliteStore) -> None:
    events: list[str] = []
    for verdict in confirm(champions(store, events), engine()):
        events.append(f"{verdict.op} judged")  # noqa: PERF401 - the generator appends to the same list
    assert events == [
        "twice begins", "thrice begins", "twice judged", "twice ends", "thrice judged", "thrice ends"
    ]  # fmt: skip


def test_the_successors_of_champions_that_fail_are_confirmed_in_the_next_round(store: SqliteStore) -> None:
    used = engine(2)
    verdicts = list(confirm(champions(store, []), used))
    assert [(verdict.op, bool(verdict.confirmed)) for verdict in verdicts] == [
        ("twice", False), ("thrice", False), ("twice", True), ("thrice", True)
    ]  # fmt: skip
    assert used.streams == [list(OPS), list(OPS), [], []]


def test_legs_end_if_the_confirmation_is_interrupted(store: SqliteStore) -> None:
    events: list[str] = []
    running = confirm(champions(store, events), engine())
    next(running)
    running.close()
    assert sorted(events) == ["thrice begins", "thrice ends", "twice begins", "twice ends"]
