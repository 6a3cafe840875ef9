"""Which failures of a worker become a verdict on the kernel, and which jobs are retried."""

import math
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest

from archive.records import Outcome
from evolve.engines import assigned
from evolve.engines.assigned import Failure, JobState, Worker, cpu_seconds
from evolve.engines.engine import Job
from evolve.engines.messages import Channel, Role

SEGV, KILL = -signal.SIGSEGV, -signal.SIGKILL


@pytest.fixture
def state() -> JobState:
    return JobState(Job(bad_kernels.twice_kernel(), "twice"), shapes_seed=1, started=0.0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """Yield a worker that was given two jobs."""
    own_end, worker_end = socket.socketpair()
    with own_end, worker_end:
        made = Worker(0, Role.EVALUATOR, "", tmp_path, Channel(own_end))
        made.jobs = 2
        yield made


def after_exit(state: JobState, worker: Worker, status: int, *, shared_memory: bool = True) -> Failure | None:
    return assigned.after_exit(state, worker, status, "it ended", shared_memory=shared_memory)


def test_without_shared_memory_the_kernel_that_ends_its_worker_has_crashed(state: JobState, worker: Worker) -> None:
    assert after_exit(state, worker, SEGV, shared_memory=False) == Failure(Outcome.CRASHED, "it ended")


def test_with_shared_memory_a_kernel_that_ends_a_used_worker_is_retried_alone(state: JobState, worker: Worker) -> None:
    assert after_exit(state, worker, SEGV) is None
    worker.jobs = 1  # the retry, in a fresh worker
    assert after_exit(state, worker, SEGV) == Failure(Outcome.CRASHED, "it ended")


@pytest.mark.parametrize("shared_memory", [True, False])
def test_a_job_whose_worker_was_killed_from_outside_is_retried_once(
    state: JobState, worker: Worker, *, shared_memory: bool
) -> None:
    worker.jobs = 1
    assert after_exit(state, worker, KILL, shared_memory=shared_memory) is None
    assert after_exit(state, worker, KILL, shared_memory=shared_memory) == Failure(Outcome.CRASHED, "it ended")


def test_a_compiler_that_ends_gives_a_compile_error(state: JobState, worker: Worker) -> None:
    worker.role = Role.COMPILER
    (worker.folder / "stderr").write_text("out of memory")
    failure = after_exit(state, worker, SEGV)
    assert failure
    assert (failure.outcome, "out of memory" in failure.log) == (Outcome.COMPILE_ERROR, True)


def test_a_second_different_failure_is_attributed_to_the_kernel_and_the_log_names_both(state: JobState) -> None:
    assert assigned.after_failure(state, "a TypeError") is None
    failure = assigned.after_failure(state, "a RuntimeError")
    assert failure
    assert failure.outcome is Outcome.CRASHED
    assert failure.log.index("a TypeError") < failure.log.index("a RuntimeError")


@pytest.mark.parametrize(
    ("phase", "outcome"),
    [("compile", Outcome.COMPILE_ERROR), ("run", Outcome.TIMED_OUT), ("check", Outcome.TIMED_OUT)],
)
def test_the_outcome_of_a_timeout_depends_on_its_phase(
    state: JobState, worker: Worker, phase: str, outcome: Outcome
) -> None:
    worker.begin(phase)
    failure = assigned.after_timeout(state, worker, "it took too long")
    assert failure
    assert (failure.outcome, "endless loop" in failure.log) == (outcome, phase == "run")


def test_a_kernel_that_has_run_before_may_miss_a_deadline_once(state: JobState, worker: Worker) -> None:
    for phase in ("run", "check", "run"):
        worker.begin(phase)
    assert assigned.after_timeout(state, worker, "it took too long") is None
    failure = assigned.after_timeout(state, worker, "it took too long")
    assert failure
    assert failure.outcome is Outcome.TIMED_OUT


def test_a_compiler_that_gets_no_cpu_time_is_overdue_only_much_later(worker: Worker) -> None:
    with subprocess.Popen(["sleep", "60"]) as idle:
        worker.pid = idle.pid
        worker.begin("compile")
        worker.phase_started -= 21
        assert worker.overdue({"compile": 20.0}) == ""
        worker.phase_started -= 100
        assert "compiling took more than 20 s" in worker.overdue({"compile": 20.0})
        idle.kill()


def test_a_compiler_that_had_cpu_time_is_overdue_at_its_limit(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([3.0, 18.0])
    monkeypatch.setattr(assigned, "cpu_seconds", lambda _: next(used))
    worker.begin("compile")
    worker.phase_started -= 21
    assert "compiling took more than 20 s" in worker.overdue({"compile": 20.0})


def test_the_cpu_seconds_of_a_process_are_counted() -> None:
    before = cpu_seconds(os.getpid())
    sum(range(10**7))
    assert before < cpu_seconds(os.getpid()) < before + 60
    assert cpu_seconds(2**30) == math.inf
