"""Local engine: compiles kernels in one set of worker processes and evaluates them in another, on this machine."""

import secrets
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome, Profile
from evolve.engines.engine import Job
from evolve.engines.messages import (
    Done,
    Exited,
    Failed,
    Message,
    Phase,
    Precompiled,
    ProfileRequest,
    ProfileResult,
    Ready,
    Role,
    TimingRequest,
    TimingResult,
)
from evolve.engines.pool import JobState, SideJob, Worker, WorkerPool
from evolve.errors import UserError

# Not what a kernel does to its process: somebody, or the system short of memory, ended it. One more try is fair.
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
ENDLESS = ("run", "time")


@dataclass(frozen=True)
class Failure:
    """A verdict that no worker lived to give."""

    outcome: Outcome
    log: str


def ending_of(status: int) -> str:
    """By what a worker was ended."""
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"


def from_outside(status: int) -> bool:
    return -status in KILLED_FROM_OUTSIDE


def of_death(task: JobState, worker: Worker, status: int, ended: str, *, exposed: bool) -> Failure | None:
    """`exposed` says that kernels can write to all memory of their worker, where those after them may die of it."""
    if from_outside(status):
        task.traits = None  # another kernel of the same code has nothing to fear
        if not task.retried:
            task.retried = True
            return None
    if worker.role is Role.COMPILER:
        words = f"the compiler ended {ending_of(status)}, as it does when it needs too much memory{worker.last_words()}"
        return Failure(Outcome.COMPILE_ERROR, words)
    if exposed and worker.jobs > 1:
        task.fault = ended
        return None
    return Failure(Outcome.CRASHED, ended)


def of_failure(task: JobState, fault: str) -> Failure | None:
    """Where what failed was no kernel's doing, it fails again in the same words: that is for the engine to see."""
    if not task.fault:
        task.fault = fault
        return None
    log = f"it seems to overwrite memory that is not its own; first {task.fault}, and then {fault}"
    return Failure(Outcome.CRASHED, log)


def of_hanging(task: JobState, worker: Worker, fault: str) -> Failure | None:
    """What has run and then takes seconds may have been held up: by others on the GPU, or with the whole machine."""
    if worker.phase == "compile":
        return Failure(Outcome.COMPILE_ERROR, fault)
    if worker.phase == "run" and worker.has_run and not task.held_up:
        task.held_up = True
        return None
    why = ": an endless loop, or a deadlock" if worker.phase in ENDLESS else ""
    return Failure(Outcome.TIMED_OUT, f"{fault}{why}")


# Compiling has it for each workload, running for the candidate alone; torch.compile makes baselines slow.
PHASE_SECONDS = {
    "compile": 20.0,
    "run": 5.0,
    "check": 60.0,
    "baseline": 300.0,
    "time": 60.0,
    "sanitize": 120.0,
    "profile": 120.0,
}
# Every workload in one, and the emulator's own runtime with them; the host's compiler has a deadline besides.
EMULATED_PHASE_SECONDS = {**PHASE_SECONDS, "compile": 240.0, "run": 30.0}
TICK_SECONDS = 0.2
AHEAD = 8  # kernels that may wait, compiled, for an evaluator
JOBS_OF_A_WORKER = 200
START_ATTEMPTS = 3
IN_VAIN = 3  # profiles in a row that came to nothing: the next kernel would fare no better
COMPILER_BYTES, EMULATED_BYTES = 8 * 2**30, 16 * 2**30


class LocalEngine:
    """Evaluates on this machine. `watch` is told which phase each kernel is in."""

    def __init__(
        self,
        device_kind: str,
        workers: int,
        watch: Callable[[str, str], None] | None = None,
        phase_seconds: Mapping[str, float] | None = None,
        compilers: int = 0,
        compiler_bytes: int = COMPILER_BYTES,
    ) -> None:
        self._kind = device_kind
        self._exposed = device_kind == "emulated"  # to kernels is all memory of the worker, for those after it too
        self._watch = watch or (lambda _kernel, _phase: None)
        self._phase_seconds = phase_seconds or (PHASE_SECONDS if device_kind == "cuda" else EMULATED_PHASE_SECONDS)
        self._compiles_ahead = compilers > 0
        self._info: DeviceInfo | None = None
        self._failed_starts = 0
        self._profiled = ProfileResult(None)  # the last answer
        self._faults: dict[tuple[str, str], ProfileResult] = {}  # answers that were none, by kernel and workload
        self._in_vain = 0
        self._coming: Iterator[Job] = iter(())
        self._new: deque[JobState] = deque()
        self._compiled: deque[JobState] = deque()
        self._codes: dict[str, str] = {}  # kernels compiled since `evaluate` was called, by what they became
        memory = {Role.EVALUATOR: None if device_kind == "cuda" else EMULATED_BYTES, Role.COMPILER: compiler_bytes}
        self._pool = WorkerPool(device_kind, [Role.EVALUATOR] * workers + [Role.COMPILER] * compilers, memory)

    @property
    def info(self) -> DeviceInfo:
        """Waits for the first worker to be ready."""
        while self._info is None:
            self._step()
        return self._info

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        self._abandon()
        info, self._coming = self.info, iter(jobs)
        verdicts: list[Evaluation] = []
        while True:
            try:
                self._hand_out(info)  # before our caller thinks about the verdicts
            finally:
                yield from verdicts
            if not self._busy:
                self._pull()  # there may be more, although all workers are only starting
            if not self._busy:
                return
            verdicts = self._step()

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        """By an evaluator like a job, but whatever becomes of the worker is no verdict on the kernel.

        What fails may take as long as its deadline, so it is not tried twice.
        """
        if self._profiled.lasting or self._in_vain >= IN_VAIN:
            return None
        if fault := self._faults.get((kernel.id, workload)):
            self._profiled = fault
            return None
        side_job = self._run(SideJob(ProfileRequest(kernel.text, op, workload), kernel.id), "profile")
        self._profiled = (
            side_job.answer if isinstance(side_job.answer, ProfileResult) else ProfileResult(None, side_job.fault)
        )
        self._in_vain = 0 if self._profiled.profile else self._in_vain + 1
        if not self._profiled.profile:
            self._faults[kernel.id, workload] = self._profiled
        return self._profiled.profile

    def time_pytorch(self, wanted: TimingRequest) -> TimingResult:
        side_job = self._run(SideJob(wanted, wanted.op), "baseline")
        return (
            side_job.answer
            if isinstance(side_job.answer, TimingResult)
            else TimingResult(None, side_job.fault, leaving=True)
        )

    def _run(self, side_job: SideJob, phase: str) -> SideJob:
        """Until it has an answer, or has cost a worker."""
        self._abandon()
        info = self.info
        while not (idle := [worker for worker in self._pool.workers if worker.idle and worker.role is Role.EVALUATOR]):
            self._step()
        idle[0].give(side_job, info)
        self._watch(side_job.subject, phase)
        while side_job.answer is None and not side_job.fault:
            self._step()
        return side_job

    @property
    def unprofiled(self) -> str:
        return self._profiled.fault

    def close(self) -> None:
        self._pool.close()

    def _abandon(self) -> None:
        """Forget what an evaluation that was broken off has left in hand."""
        self._new.clear()
        self._compiled.clear()
        self._codes.clear()
        for worker in list(self._pool.workers):
            if worker.task:
                self._replace(worker)

    @property
    def _busy(self) -> bool:
        return bool(self._new or self._compiled or any(worker.task for worker in self._pool.workers))

    def _pull(self) -> None:
        job = next(self._coming, None)
        if job:
            self._new.append(JobState(job, secrets.randbelow(2**31), time.monotonic()))
        else:
            self._coming = iter(())

    def _hand_out(self, info: DeviceInfo) -> None:
        """Give every idle worker the next task of its stage, evaluators first."""
        for worker in list(self._pool.workers):
            if not worker.idle:
                continue
            last_stage = worker.role is Role.EVALUATOR
            queue = self._compiled if last_stage and self._compiles_ahead else self._new
            if queue is self._new and not queue and len(self._compiled) < AHEAD:
                self._pull()
            if not queue:
                continue
            if last_stage and worker.jobs and (queue[0].job.confirm or queue[0].fault):
                if not any(other.role is Role.EVALUATOR and not other.jobs for other in self._pool.workers):
                    self._replace(worker)
                continue  # for one that has seen no kernel yet
            task = queue.popleft()
            worker.give(task, info)
            self._watch(task.job.kernel.id, worker.phase)

    def _step(self) -> list[Evaluation]:
        """Wait a moment for news of the workers."""
        verdicts: list[Evaluation] = []
        for worker, message in self._pool.news(TICK_SECONDS):
            verdicts += self._heard(worker, message)
        for worker in list(self._pool.workers):
            if fault := worker.overdue(self._phase_seconds):
                verdicts += self._hanging(worker, fault)
        return verdicts

    def _heard(self, worker: Worker, message: Message) -> Iterator[Evaluation]:
        match message:
            case Ready(device=device):
                worker.ready = True
                self._failed_starts = 0
                self._info = self._info or device
            case Phase(name=name):
                worker.begin(name)
                if worker.task:
                    self._watch(worker.task.subject, name)
            case Precompiled(traits=traits) if isinstance(worker.task, JobState):
                worker.task.traits = traits
                yield from self._precompiled(worker.task)
                self._finished(worker)
            case Done(evaluation=evaluation, leaving=leaving) if isinstance(worker.task, JobState):
                self._finished(worker, leaving=leaving)
                yield evaluation
            case ProfileResult() | TimingResult() if isinstance(worker.task, SideJob):
                worker.task.answer = message
                self._finished(worker, leaving=isinstance(message, TimingResult) and message.leaving)
            case Failed() as failed:
                yield from self._failed(worker, failed)
            case Exited(status=status):
                yield from self._lost(worker, status)

    def _precompiled(self, task: JobState) -> Iterator[Evaluation]:
        if twin := self._twin(task):
            yield self._verdict(task, Outcome.DUPLICATE, f"compiles to the very machine code of kernel {twin}")
            return
        self._watch(task.job.kernel.id, "waiting")
        self._compiled.append(task)

    def _twin(self, task: JobState) -> str:
        """Another kernel that is the same once compiled, and what is known of it; nothing where there is none."""
        kernel_id, job, traits = task.job.kernel.id, task.job, task.traits
        if job.known is None or job.confirm or traits is None:
            return ""
        judged = job.known.get(traits.code)
        if judged and judged.kernel_id != kernel_id:
            return f"{judged.kernel_id}, whose verdict is: {judged.outcome}"
        first = self._codes.setdefault(traits.code, kernel_id)
        return "" if first == kernel_id else f"{first}, which was proposed beside it"

    def _finished(self, worker: Worker, *, leaving: bool = False) -> None:
        worker.task = None
        if leaving or worker.jobs >= JOBS_OF_A_WORKER:
            self._replace(worker)

    def _failed(self, worker: Worker, failed: Failed) -> Iterator[Evaluation]:
        """What fails in the same words where no other kernel has run is no kernel's fault."""
        task, fault = worker.task, failed.message
        if not (failed.unforeseen and self._exposed and isinstance(task, JobState)) or task.fault == fault:
            raise UserError(fault, failed.hint)
        self._replace(worker)
        yield from self._settled(task, of_failure(task, fault))

    def _lost(self, worker: Worker, status: int) -> Iterator[Evaluation]:
        task, words, ending = worker.task, worker.last_words(), ending_of(status)
        self._failed_starts += not worker.ready
        if not worker.ready and not (from_outside(status) and self._failed_starts < START_ATTEMPTS):
            raise UserError(
                f"the {self._kind} device did not start: its worker ended {ending}{words}", "see evolve doctor"
            )
        ended = f"the worker was ended {ending} in {worker.phase}{words}"
        verdicts: Iterable[Evaluation] = ()
        if isinstance(task, JobState):
            verdicts = self._settled(task, of_death(task, worker, status, ended, exposed=self._exposed))
        elif task:
            task.fault = ended
        self._replace(worker)  # with what it has left behind, its last words
        yield from verdicts

    def _hanging(self, worker: Worker, fault: str) -> Iterator[Evaluation]:
        task = worker.task
        if not worker.ready:
            raise UserError(f"the {self._kind} device did not start: {fault}{worker.last_words()}", "see evolve doctor")
        self._replace(worker)
        if isinstance(task, SideJob):
            task.fault = fault
        elif task:
            yield from self._settled(task, of_hanging(task, worker, fault))

    def _settled(self, task: JobState, blame: Failure | None) -> Iterator[Evaluation]:
        """What nobody blames a kernel for, it may try again."""
        if blame:
            yield self._verdict(task, blame.outcome, blame.log)
        else:
            self._new.appendleft(task)

    def _replace(self, worker: Worker) -> None:
        self._pool.replace(worker, self._info)

    def _verdict(self, task: JobState, outcome: Outcome, log: str) -> Evaluation:
        seconds = round(time.monotonic() - task.started, 3)
        return Evaluation(
            kernel_id=task.job.kernel.id,
            op=task.job.kernel.op,
            device=self.info,
            outcome=outcome,
            log=log,
            seconds=seconds,
            created=time.time() - seconds,
            traits=task.traits,
        )
