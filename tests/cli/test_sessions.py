"""What a run is made of when it begins or goes on, without a device."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from records import CPU
from scripted_runs import TimedEngine, op

from archive.proposals import Budget, Run
from archive.store import SqliteStore, open_archive
from evolve.cli.planning import Plan
from evolve.cli.session import Bench, opened
from evolve.cli.wishes import Wishes
from evolve.errors import UserError
from evolve.proposers.offline import OfflineProposer
from evolve.report.progress import Phases

FILES = ("one.py", "two.py")
LIMITS = Budget(evals=4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with_runs = open_archive(tmp_path / "a.db")
    yield with_runs
    with_runs.close()


def resumed(store: SqliteStore, *defined: str) -> tuple[str, ...]:
    """The ops of a campaign over `one` and `two` that goes on, where their files now define these."""
    runs = tuple(Run(f"run of {name}", name, CPU.key, "offline", 0, 1.0, campaign="both") for name in ("one", "two"))
    plan = Plan(FILES, Wishes(), LIMITS, runs)
    loaded = [(op(name), file) for name, file in dict(zip(defined, FILES, strict=True)).items()]
    session = opened(plan, loaded, Bench(OfflineProposer(), TimedEngine(), store, Phases()), [])
    return tuple(quest.op.name for quest in session.quests)


def test_runs_go_on_with_the_ops_they_are_of(store: SqliteStore) -> None:
    assert resumed(store, "one", "two") == ("one", "two")


@pytest.mark.parametrize("defined", [("one", "three"), ("one", "one"), ("two", "one")])
def test_a_file_that_defines_another_op_by_now_is_told(store: SqliteStore, defined: tuple[str, str]) -> None:
    with pytest.raises(UserError, match="no longer defines"):
        resumed(store, *defined)
