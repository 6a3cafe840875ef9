"""Failures of workers: which become a verdict on the kernel, and which jobs are retried."""

import signal
from dataclasses import dataclass

from archive.records import Outcome
from evolve.engines.assigned import JobState, Worker
from evolve.engines.messages import Role

# Signals sent by a user or by a system short of memory, not caused by a kernel. The job is retried once.
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
ENDLESS = ("run", "time")


@dataclass(frozen=True)
class Failure:
    """Verdict that the engine gives because the worker could not."""

    outcome: Outcome
    log: str


def after_exit(state: JobState, worker: Worker, status: int, fault: str, *, shared_memory: bool) -> Failure | None:
    """Return the verdict on a job whose worker's process ended, or None to retry the job.

    With `shared_memory`, kernels can write to all of their worker's memory, so an earlier kernel may be the cause.
    """
    if killed_from_outside(status):
        state.traits = None  # this is not a verdict on kernels with the same code
        if not state.retried:
            state.retried = True
            return None
    if worker.role is Role.COMPILER:
        ending = f"the compiler ended {describe_exit(status)}, possibly because it needs too much memory"
        return Failure(Outcome.COMPILE_ERROR, f"{ending}{worker.stderr_tail()}")
    if shared_memory and worker.jobs > 1:
        state.fault = fault
        return None
    return Failure(Outcome.CRASHED, fault)


def after_failure(state: JobState, fault: str) -> Failure | None:
    """Return the verdict on a job during which the evaluator itself failed, or None to retry it in a fresh process.

    If the same failure occurs there again, the kernel is not at fault, and this function is not called.
    """
    if not state.fault:
        state.fault = fault
        return None
    log = f"the kernel seems to overwrite memory that is not its own; first {state.fault}, and then {fault}"
    return Failure(Outcome.CRASHED, log)


def after_timeout(state: JobState, worker: Worker, fault: str) -> Failure | None:
    """Return the verdict on a job that missed a deadline, or None to retry it.

    If earlier runs met the deadline, other programs on the machine may have delayed this one.
    """
    if worker.phase == "compile":
        return Failure(Outcome.COMPILE_ERROR, fault)
    if worker.phase == "run" and worker.has_run and not state.overran:
        state.overran = True
        return None
    reason = ": an endless loop, or a deadlock" if worker.phase in ENDLESS else ""
    return Failure(Outcome.TIMED_OUT, f"{fault}{reason}")


def describe_exit(status: int) -> str:
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"


def killed_from_outside(status: int) -> bool:
    return -status in KILLED_FROM_OUTSIDE
