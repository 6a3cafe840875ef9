"""Who is blamed when a worker dies, hangs or fails, and who may try again."""

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest

from archive.records import Outcome
from evolve.engines import local
from evolve.engines.engine import Job
from evolve.engines.local import Failure
from evolve.engines.messages import Role
from evolve.engines.pool import Channel, JobState, Worker

SEGV, KILL = -signal.SIGSEGV, -signal.SIGKILL


@pytest.fixture
def task() -> JobState:
    return JobState(Job(bad_kernels.twice_kernel(), "twice"), shapes_seed=1, started=0.0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """One that has had two jobs."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        made = Worker(0, Role.EVALUATOR, tmp_path, Channel(ours))
        made.jobs = 2
        yield made


def death(task: JobState, worker: Worker, status: int, *, exposed: bool = True) -> Failure | None:
    return local.of_death(task, worker, status, "it ended", exposed=exposed)


def test_where_kernels_reach_no_memory_of_their_worker_the_one_that_it_dies_over_has_crashed(
    task: JobState, worker: Worker
) -> None:
    assert death(task, worker, SEGV, exposed=False) == Failure(Outcome.CRASHED, "it ended")


def test_where_they_do_it_may_have_been_another(task: JobState, worker: Worker) -> None:
    assert death(task, worker, SEGV) is None
    worker.jobs = 1  # tried again, alone
    assert death(task, worker, SEGV) == Failure(Outcome.CRASHED, "it ended")


@pytest.mark.parametrize("exposed", [True, False])
def test_who_was_ended_from_outside_has_one_more_try(task: JobState, worker: Worker, *, exposed: bool) -> None:
    worker.jobs = 1
    assert death(task, worker, KILL, exposed=exposed) is None
    assert death(task, worker, KILL, exposed=exposed) == Failure(Outcome.CRASHED, "it ended")


def test_a_compiler_that_dies_says_of_the_source_that_it_does_not_compile(task: JobState, worker: Worker) -> None:
    worker.role = Role.COMPILER
    (worker.folder / "stderr").write_text("out of memory")
    blame = death(task, worker, SEGV)
    assert blame
    assert (blame.outcome, "out of memory" in blame.log) == (Outcome.COMPILE_ERROR, True)


def test_a_second_failure_in_other_words_is_the_kernels_and_both_are_told(task: JobState) -> None:
    assert local.of_failure(task, "a TypeError") is None
    blame = local.of_failure(task, "a RuntimeError")
    assert blame
    assert blame.outcome is Outcome.CRASHED
    assert blame.log.index("a TypeError") < blame.log.index("a RuntimeError")


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("compile", Outcome.COMPILE_ERROR), ("run", Outcome.TIMED_OUT), ("check", Outcome.TIMED_OUT)],
)
def test_what_takes_too_long_is_named_after_what_it_was_doing(
    task: JobState, worker: Worker, phase: str, outcome: Outcome
) -> None:
    worker.begin(phase)
    blame = local.of_hanging(task, worker, "it took too long")
    assert blame
    assert (blame.outcome, "endless loop" in blame.log) == (outcome, phase == "run")


def test_what_has_run_before_may_miss_the_deadline_of_a_run_once(task: JobState, worker: Worker) -> None:
    for phase in ("run", "check", "run"):
        worker.begin(phase)
    assert local.of_hanging(task, worker, "it took too long") is None
    blame = local.of_hanging(task, worker, "it took too long")
    assert blame
    assert blame.outcome is Outcome.TIMED_OUT
