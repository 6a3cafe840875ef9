"""What becomes of a kernel over which its worker has died, hung or failed: a verdict, or another try (None).

That it has had one is noted on its task.
"""

import signal
from dataclasses import dataclass

from archive.records import Outcome
from evolve.engines.handles import Task, Worker
from evolve.engines.messages import Role

# Not what a kernel does to its process: somebody, or the system short of memory, ended it. One more try is fair.
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
ENDLESS = ("run", "time")


@dataclass(frozen=True)
class Blame:
    """A verdict that no worker lived to give."""

    outcome: Outcome
    log: str


def how(status: int) -> str:
    """By what a worker was ended."""
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"


def from_outside(status: int) -> bool:
    return -status in KILLED_FROM_OUTSIDE


def of_death(task: Task, worker: Worker, status: int, ended: str, *, exposed: bool) -> Blame | None:
    """`exposed` says that kernels can write to all memory of their worker, where those after them may die of it."""
    if from_outside(status):
        task.traits = None  # another kernel of the same code has nothing to fear
        if not task.retried:
            task.retried = True
            return None
    if worker.role is Role.COMPILER:
        words = f"the compiler ended {how(status)}, as it does when it needs too much memory{worker.last_words()}"
        return Blame(Outcome.COMPILE_ERROR, words)
    if exposed and worker.jobs > 1:
        task.fault = ended
        return None
    return Blame(Outcome.CRASHED, ended)


def of_failure(task: Task, fault: str) -> Blame | None:
    """Where what failed was no kernel's doing, it fails again in the same words: that is for the engine to see."""
    if not task.fault:
        task.fault = fault
        return None
    log = f"it seems to overwrite memory that is not its own; first {task.fault}, and then {fault}"
    return Blame(Outcome.CRASHED, log)


def of_hanging(task: Task, worker: Worker, fault: str) -> Blame | None:
    """What has run and then takes seconds may have been held up: by others on the GPU, or with the whole machine."""
    if worker.phase == "compile":
        return Blame(Outcome.COMPILE_ERROR, fault)
    if worker.phase == "run" and worker.has_run and not task.held_up:
        task.held_up = True
        return None
    why = ": an endless loop, or a deadlock" if worker.phase in ENDLESS else ""
    return Blame(Outcome.TIMED_OUT, f"{fault}{why}")
