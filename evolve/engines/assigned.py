"""Workers from the engine's view: their jobs and deadlines, and what happens to a job when its worker fails."""

import contextlib
import math
import os
import secrets
import signal
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from archive.records import DeviceInfo, Evaluation, Outcome, Traits
from evolve.engines.engine import Job
from evolve.engines.lacking import Place
from evolve.engines.messages import WAITING, Assignment, Channel, Message, Role
from evolve.errors import UserError
from evolve.evaluation.requests import Answer, Request

START_SECONDS, EXIT_SECONDS = 300.0, 20.0
DELAYED = 6  # factor of the time limit of compiling on a machine where a process gets little CPU time
STDERR_CHARACTERS = 1500
MOST_COMPILED_AHEAD = 8  # largest number of compiled kernels that wait for an evaluator


@dataclass(eq=False)
class JobState:
    """A job and its history so far."""

    job: Job
    shapes_seed: int
    started: float
    retried: bool = False
    overran: bool = False  # a run has exceeded its deadline although an earlier run met it
    fault: str = ""  # a failure whose cause may be an earlier kernel that wrote to the worker's memory
    traits: Traits | None = None  # set once the kernel has been compiled
    contends: bool = False  # a setting of knobs that must be evaluated in full
    shared: bool = False  # idle compilers help to compile it

    @property
    def at_a_glance(self) -> bool:
        """Whether a few calls may be enough for a verdict."""
        return self.job.setting and not self.job.confirm and not self.contends

    @property
    def subject(self) -> str:
        """Name under which the job's phases are reported."""
        return self.job.kernel.id

    def duplicate_by_code(self) -> str:
        """Return a log that names another kernel with the same machine code, or an empty string."""
        job = self.job
        if job.duplicates is None or self.traits is None or job.confirm:
            return ""
        return job.duplicates.by_code(job.kernel.id, self.traits.code)

    def message(self, device: DeviceInfo) -> Assignment:
        job = self.job
        return Assignment(
            job.kernel.text, job.op, job.bars, job.confirm, self.shapes_seed, device, self.at_a_glance, self.traits
        )


class JobQueue:
    """The jobs of an `evaluate` call that no worker has: new jobs, compiled jobs, and jobs that were not read yet."""

    def __init__(self, *, compiles_ahead: bool) -> None:
        self._compiles_ahead = compiles_ahead
        self._incoming: Iterator[Job | None] = iter(())
        self.ended = True  # whether there are no more jobs to take
        self.new, self.compiled = deque[JobState](), deque[JobState]()

    @property
    def waiting(self) -> bool:
        return bool(self.new or self.compiled)

    def begin(self, jobs: Iterable[Job | None]) -> None:
        self._incoming, self.ended = iter(jobs), False

    def take_next(self) -> None:
        for job in self._incoming:
            if job:
                self.new.append(JobState(job, secrets.randbelow(2**31), time.monotonic()))
            return
        self._incoming, self.ended = iter(()), True

    def stage(self, role: Role) -> deque[JobState]:
        """Return the jobs for workers with this role. If they wait for new jobs, the next one is taken."""
        if role is Role.EVALUATOR and self._compiles_ahead:
            return self.compiled
        if not self.new and len(self.compiled) < MOST_COMPILED_AHEAD:
            self.take_next()
        return self.new

    def drop(self) -> None:
        self.new.clear()
        self.compiled.clear()


@dataclass(eq=False)
class SideJob:
    """A request to a worker other than a job, and the answer. A request is tried only once."""

    request: Request | Assignment  # an `Assignment` goes to a compiler that helps another compiler
    subject: str
    place: Place | None = None  # where baselines are timed for kernels that wait for them
    answer: Answer | None = None
    fault: str = ""  # the reason why the worker ended without an answer

    def message(self, _device: DeviceInfo) -> Message:
        return self.request


def verdict_on(state: JobState, device: DeviceInfo, outcome: Outcome, log: str) -> Evaluation:
    """Return the verdict that the engine gives on a job itself."""
    seconds = round(time.monotonic() - state.started, 3)
    kernel = state.job.kernel
    return Evaluation(
        kernel.id, kernel.op, device, outcome, log, seconds=seconds, created=time.time() - seconds, traits=state.traits
    )


class Worker:
    """One forked process and its current work."""

    def __init__(self, number: int, role: Role, card: str, folder: Path, channel: Channel) -> None:
        self.number, self.role, self.card, self.folder, self.channel = number, role, card, folder, channel
        self.pid = 0
        self.status: int | None = None  # set once the process has ended
        self.ready = False
        self.current: JobState | SideJob | None = None
        self.jobs = 0  # number of jobs given to it so far
        self.has_run = False  # whether one run of the current job has ended
        self.begin("")

    @property
    def idle(self) -> bool:
        known = self.pid != 0  # without its pid, the worker could not be ended after the fork server is killed
        return self.ready and known and self.current is None and self.channel.closed_at is None

    def begin(self, phase: str) -> None:
        self.phase, self.phase_started = phase, time.monotonic()
        self._cpu_before = cpu_seconds(self.pid) if phase == "compile" else 0.0
        self.has_run |= phase == "check"

    def give(self, job: JobState | SideJob, device: DeviceInfo) -> None:
        self.current = job
        self.jobs += 1
        self.has_run = False
        self.begin("compile")
        with contextlib.suppress(OSError):  # drop the output of earlier kernels
            os.truncate(self.folder / "stderr", 0)
        self.channel.send(job.message(device))

    def overdue(self, phase_seconds: Mapping[str, float]) -> str:
        """Return a message if the worker has missed a deadline, otherwise an empty string."""
        if self.idle or self.phase == WAITING:  # the deadline of the worker that it waits for ends the wait
            return ""
        doing = {"compile": "compiling", "profile": "profiling", "": "starting"}.get(self.phase, self.phase)
        since, limit = self.phase_started, phase_seconds.get(self.phase, START_SECONDS)
        if self.channel.closed_at is not None:
            doing, since, limit = "ending", self.channel.closed_at, EXIT_SECONDS
        elapsed = time.monotonic() - since
        if elapsed <= limit or (elapsed <= DELAYED * limit and self._waits_for_a_core(limit)):
            return ""
        return f"{doing} took more than {limit:g} s"

    def _waits_for_a_core(self, limit: float) -> bool:
        """Return whether the worker compiles but has used little of its time, as on an overloaded machine."""
        return self.phase == "compile" and cpu_seconds(self.pid) - self._cpu_before < limit / 2

    def stderr_tail(self) -> str:
        return tail_of(self.folder / "stderr")


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its ended children; infinity if they are unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return math.inf
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def tail_of(file: Path) -> str:
    """Return a newline and the end of a text file, or an empty string."""
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - STDERR_CHARACTERS))
            text = stream.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return f"\n{text}" if text else ""


# Signals sent by a user or by a system short of memory, and not caused by a kernel. The job is retried once.
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
ENDLESS = ("run", "time")


@dataclass(frozen=True)
class Failure:
    """Verdict that the engine gives because the worker could not give one."""

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
    """Return the verdict on a job during which the evaluator failed, or None to retry the job in a fresh process.

    If the same failure occurs again in the fresh process, the kernel is not at fault, and this function is not called.
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


def not_started(kind: str, why: str) -> UserError:
    return UserError(f"the {kind} device did not start: {why}", "run `evolve doctor` to check this machine")


def check_of_one_kind(infos: Mapping[str, DeviceInfo]) -> None:
    """Raise UserError if cards are of different kinds: ranking is per device."""
    kinds = {info.key: f"GPU {card} is {info.name}" for card, info in infos.items()}
    if len(kinds) > 1:
        message = f"{' and '.join(sorted(kinds.values()))}: their times cannot be compared"
        raise UserError(message, "name GPUs of one kind with --gpus, and start a run for each kind")
