"""Local engine: evaluates kernels in a pool of worker processes on this machine, some of which compile ahead."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome, Profile
from evolve.devices.choose import policy_of
from evolve.engines import messages
from evolve.engines.assigned import (
    Failure,
    JobQueue,
    JobState,
    SideJob,
    Worker,
    after_exit,
    after_failure,
    after_timeout,
    check_of_one_kind,
    describe_exit,
    killed_from_outside,
    not_started,
    verdict_on,
)
from evolve.engines.engine import Job
from evolve.engines.lacking import LackingBaselines, beside_eager
from evolve.engines.messages import WAITING, Done, Exited, Failed, Lacking, Message, Phase, Precompiled, Ready, Role
from evolve.engines.pool import WorkerPool
from evolve.errors import UserError
from evolve.evaluation.requests import (
    Answer,
    PreparationRequest,
    Prepared,
    ProfileRequest,
    ProfileResult,
    TimingRequest,
    TimingResult,
)

TICK_SECONDS = 0.2
JOBS_PER_WORKER, START_ATTEMPTS = 200, 3
DONE = ""  # the phase of a kernel on which no worker is working any more
MOST_FAILED_PROFILES = 3  # number of failures in a row after which no more profiles are tried
HELPERS = 4  # number of compilers that help another compiler
COMPILER_BYTES = 8 * 2**30


class LocalEngine:
    """Engine that evaluates on this machine. `watch` is called with a kernel's id and the phase that it enters.

    At the end of work other than an evaluation, the phase is empty.

    With several `cards` of the device, such as GPUs, each has `workers` evaluators, and the first card represents the
    device: champions are confirmed, kernels profiled and PyTorch timed on it. Up to `preparers` processes compile
    baselines ahead; they start when a kernel lacks a baseline.
    """

    def __init__(
        self,
        device_kind: str,
        workers: int,
        watch: Callable[[str, str], None] | None = None,
        phase_seconds: Mapping[str, float] | None = None,
        compilers: int = 0,
        cards: Sequence[str] = ("",),
        preparers: int = 0,
    ) -> None:
        self._kind, policy = device_kind, policy_of(device_kind)
        self._shared_memory = policy.kernels_are_native_code  # a kernel can write to all of its worker's memory
        self._watch = watch or (lambda _kernel, _phase: None)
        self._phase_seconds = phase_seconds or policy.phase_seconds
        self._preparers = preparers
        self._lacking = LackingBaselines(policy.baselines)
        self._cards = tuple(cards)
        self._infos: dict[str, DeviceInfo] = {}  # each card's device, as the card's first worker measured it
        self._failed_starts = self._failed_profiles_in_a_row = 0
        self._last_profile = ProfileResult(None)
        self._failed_profiles: dict[tuple[str, str], ProfileResult] = {}  # key: kernel and workload
        self._jobs = JobQueue(compiles_ahead=compilers > 0)
        memory = dict.fromkeys(Role, policy.worker_bytes) | {Role.COMPILER: COMPILER_BYTES}
        # whether a verdict has been given
        self._workers_per_card, self._judged = workers, not policy.times_are_gpu_times
        roles = [(Role.EVALUATOR, card) for card in self._cards] + [(Role.COMPILER, "")] * compilers
        self._pool = WorkerPool(device_kind, roles, memory)

    @property
    def info(self) -> DeviceInfo:
        """The device as measured on its first card, once that card's first worker is ready."""
        while self._cards[0] not in self._infos:
            self._step()
        return self._infos[self._cards[0]]

    @property
    def cards(self) -> int:
        return len(self._cards)

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        self._drop_unfinished()
        info = self.info
        self._jobs.begin(jobs)
        verdicts: list[Evaluation] = []
        while True:
            try:
                self._assign_jobs(info)  # workers stay busy while the caller handles the verdicts
                self._share_compilation(info)
            finally:
                yield from verdicts
            if not self._busy:
                self._jobs.take_next()  # there may be more jobs even if all workers are still starting
            if self._jobs.ended and not self._busy:
                return
            verdicts = self._step()

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        """Profile in an evaluator. What has failed is not tried again, because it may take until its deadline."""
        if self._last_profile.lasting or self._failed_profiles_in_a_row >= MOST_FAILED_PROFILES:
            return None
        if failed := self._failed_profiles.get((kernel.id, workload)):
            self._last_profile = failed
            return None
        done = self._run(SideJob(ProfileRequest(kernel.text, op, workload), kernel.id), "profile")
        answer = done.answer if isinstance(done.answer, ProfileResult) else ProfileResult(None, done.fault)
        self._last_profile = answer
        self._failed_profiles_in_a_row = 0 if answer.profile else self._failed_profiles_in_a_row + 1
        if not answer.profile:
            self._failed_profiles[kernel.id, workload] = answer
        return answer.profile

    @property
    def unprofiled(self) -> str:
        return self._last_profile.fault

    def time_pytorch(self, request: TimingRequest) -> TimingResult:
        done = self._run(SideJob(request, request.op), "baseline")
        return done.answer if isinstance(done.answer, TimingResult) else TimingResult(None, done.fault, tainted=True)

    def load(self, op: str) -> None:
        compilers = [worker for worker in self._pool.workers if worker.role is Role.COMPILER]
        for worker in self._pool.workers:
            if worker not in compilers[1 + HELPERS :]:  # these have no part in the first kernel
                worker.channel.send(messages.Expected(op))

    def prepare(self, op: str, workloads: Collection[str], *, at_once: bool = True) -> None:
        if self._preparers:
            self._lacking.compile_later(op, workloads)
            if at_once:
                self._assign_preparations(self.info)

    def close(self) -> None:
        self._pool.close()

    def _run(self, side_job: SideJob, phase: str) -> SideJob:
        """Give the request to an idle evaluator, and wait for an answer or for the end of the worker."""
        self._drop_unfinished()
        info = self.info
        while not (idle := [worker for worker in self._pool.workers if worker.idle and self._is_first(worker)]):
            self._step()
        idle[0].give(side_job, info)
        self._watch(side_job.subject, phase)
        while side_job.answer is None and not side_job.fault:
            self._step()
        self._watch(side_job.subject, DONE)
        return side_job

    def _drop_unfinished(self) -> None:
        """Drop the remaining jobs of an `evaluate` that its caller has abandoned."""
        self._jobs.drop()
        self._lacking.drop()
        for worker in self._judging:
            self._replace(worker)

    @property
    def _busy(self) -> bool:
        return bool(self._jobs.waiting or self._lacking.waiting or self._judging)

    @property
    def _judging(self) -> list[Worker]:
        """The workers that are busy with kernels, or with work that kernels wait for."""
        return [worker for worker in self._pool.workers if worker.current and worker.role is not Role.PREPARER]

    def _assign_jobs(self, info: DeviceInfo) -> None:
        """Give every idle worker the next job of its stage, evaluators first."""
        for worker in list(self._pool.workers):
            if not worker.idle or worker.role is Role.PREPARER:
                continue
            if worker.role is Role.EVALUATOR and (found := self._lacking.take_place(worker.card)):
                place, kernel_id = found
                worker.give(SideJob(self._lacking.request(place), kernel_id, place=place), info)
                continue
            queue = self._jobs.stage(worker.role)
            if not queue:
                continue
            needs_fresh_process = queue[0].job.confirm or queue[0].fault
            if worker.role is Role.EVALUATOR and needs_fresh_process:
                if not self._is_first(worker):
                    continue
                if worker.jobs:
                    if not any(self._is_first(other) and not other.jobs for other in self._pool.workers):
                        self._replace(worker)
                    continue
            state = queue.popleft()
            worker.give(state, info)
            self._watch(state.job.kernel.id, worker.phase)
        self._assign_preparations(info)

    def _share_compilation(self, info: DeviceInfo) -> None:
        """Let idle compilers help with kernels that others have begun to compile."""
        compilers = [worker for worker in self._pool.workers if worker.role is Role.COMPILER and not self._jobs.new]
        idle = [worker for worker in compilers if worker.idle]
        for state in [worker.current for worker in compilers]:
            if idle and isinstance(state, JobState) and not state.shared:
                state.shared = True
                request = replace(state.message(info), helps=True)
                for helper in idle[:HELPERS]:
                    helper.give(SideJob(request, state.subject), info)
                idle = idle[HELPERS:]

    def _assign_preparations(self, info: DeviceInfo) -> None:
        """Keep no more preparers than there is work for, because each holds some of the device's memory.

        No preparer starts before the first verdict, which it would delay.
        """
        if not self._judged and any(isinstance(worker.current, JobState) for worker in self._pool.workers):
            return
        running = [worker for worker in self._pool.workers if worker.role is Role.PREPARER]
        for worker in running:
            if worker.idle and (request := self._lacking.take_compilation()):
                worker.give(SideJob(request, request.op), info)
            elif not worker.current:
                self._pool.remove(worker)
        for _ in range(self._preparers - len(running)):
            if request := self._lacking.take_compilation():
                worker = self._pool.add(Role.PREPARER, info, self._cards[0])
                worker.give(SideJob(request, request.op), info)  # the worker reads the message once it has started
                worker.begin("")

    def _step(self) -> list[Evaluation]:
        """Wait briefly for messages; return the verdicts that follow from them and from missed deadlines."""
        verdicts: list[Evaluation] = []
        for worker, message in self._pool.receive(TICK_SECONDS):
            verdicts += self._handle(worker, message)
        for worker in list(self._pool.workers):
            if fault := worker.overdue(self._phase_seconds):
                verdicts += self._handle_timeout(worker, fault)
        return verdicts

    def _handle(self, worker: Worker, message: Message) -> Iterator[Evaluation]:
        match message:
            case Ready(device=device):
                worker.ready = True
                self._failed_starts = 0
                if device and worker.card not in self._infos:
                    self._measured(worker.card, device)
            case Phase(name=name):
                worker.begin(name)
                if worker.current and worker.role is not Role.PREPARER:
                    self._watch(worker.current.subject, name)
            case Precompiled() | messages.Contends() | Lacking() | Done() if isinstance(worker.current, JobState):
                yield from self._handle_job(worker, worker.current, message)
            case ProfileResult() | TimingResult() | Prepared() if isinstance(worker.current, SideJob):
                side_job, worker.current = worker.current, None
                if not isinstance(message, Prepared):
                    self._release(worker, tainted=isinstance(message, TimingResult) and message.tainted)
                yield from self._end_side_job(side_job, message)
            case Failed() | Exited():
                yield from self._handle_ending(worker, message)

    def _handle_job(
        self, worker: Worker, state: JobState, message: Precompiled | messages.Contends | Lacking | Done
    ) -> Iterator[Evaluation]:
        match message:
            case Precompiled(traits=traits):
                state.traits = traits
                yield from self._handle_compiled(state)
                self._release(worker)
            case messages.Contends():
                state.contends = True
                yield from self._resolve(state, None)
                self._release(worker)
            case Lacking(workloads=workloads):
                if self._preparers:
                    self._lacking.compile_next(state.job.op, workloads)
            case Done(tainted=tainted):
                if worker.role is Role.EVALUATOR:  # a compiler has no card
                    self._judged = True
                    self._start_others(worker.card)
                self._release(worker, tainted=tainted)
                yield from self._handle_evaluated(message, state.job.op, worker.card)

    def _handle_evaluated(self, done: Done, op: str, card: str) -> Iterator[Evaluation]:
        """Yield a verdict, or hold it until its baselines are timed."""
        if not done.lacking:
            yield done.evaluation
            return
        self._watch(done.evaluation.kernel_id, beside_eager(done.evaluation))
        yield from self._lacking.hold(done.evaluation, op, card, done.lacking, ahead=self._preparers > 0)

    def _end_side_job(
        self, side_job: SideJob, answer: Answer | Prepared | None, fault: str = ""
    ) -> Iterator[Evaluation]:
        """Record a side job's answer, or the fault that ended its worker, and yield the verdicts that waited for it."""
        if isinstance(side_job.request, PreparationRequest):
            self._lacking.end_compilation(side_job.request, too_long=isinstance(answer, Prepared) and answer.too_long)
        elif side_job.place:
            yield from self._lacking.end_timing(side_job.place, answer if isinstance(answer, TimingResult) else None)
        elif fault:
            side_job.fault = fault
        elif not isinstance(answer, Prepared):
            side_job.answer = answer

    def _is_first(self, worker: Worker) -> bool:
        return worker.role is Role.EVALUATOR and worker.card == self._cards[0]

    def _measured(self, card: str, device: DeviceInfo) -> None:
        self._infos[card] = device
        check_of_one_kind(self._infos)
        if self._judged:
            self._start_others(card)

    def _start_others(self, card: str) -> None:
        """Start the card's other evaluators, after the first verdict if they would delay it."""
        here = [worker for worker in self._pool.workers if worker.role is Role.EVALUATOR and worker.card == card]
        for _ in range(self._workers_per_card - len(here)):
            self._pool.add(Role.EVALUATOR, self._infos[card], card)

    def _handle_compiled(self, state: JobState) -> Iterator[Evaluation]:
        if log := state.duplicate_by_code():
            yield verdict_on(state, self.info, Outcome.DUPLICATE, log)
            return
        self._watch(state.job.kernel.id, WAITING)
        self._jobs.compiled.append(state)

    def _release(self, worker: Worker, *, tainted: bool = False) -> None:
        worker.current = None
        if tainted or worker.jobs >= JOBS_PER_WORKER:
            self._replace(worker)

    def _handle_ending(self, worker: Worker, message: Failed | Exited) -> Iterator[Evaluation]:
        if worker.role is Role.PREPARER:
            yield from self._end_preparer(worker)
        elif isinstance(message, Failed):
            yield from self._handle_failure(worker, message)
        else:
            yield from self._handle_exit(worker, message.status)

    def _handle_failure(self, worker: Worker, failed: Failed) -> Iterator[Evaluation]:
        """Raise the error, unless it has occurred only once and an emulated kernel may have caused it."""
        state, fault = worker.current, failed.message
        if not (failed.unforeseen and self._shared_memory and isinstance(state, JobState)) or state.fault == fault:
            raise UserError(fault, failed.hint)
        self._replace(worker)
        yield from self._resolve(state, after_failure(state, fault))

    def _handle_exit(self, worker: Worker, status: int) -> Iterator[Evaluation]:
        current, stderr, ending = worker.current, worker.stderr_tail(), describe_exit(status)
        self._failed_starts += not worker.ready
        if not worker.ready and not (killed_from_outside(status) and self._failed_starts < START_ATTEMPTS):
            raise not_started(self._kind, f"its worker ended {ending}{stderr}")
        fault = f"the worker was ended {ending} in {worker.phase}{stderr}"
        verdicts: Iterable[Evaluation] = ()
        if isinstance(current, JobState):
            failure = after_exit(current, worker, status, fault, shared_memory=self._shared_memory)
            verdicts = self._resolve(current, failure)
        elif current:
            verdicts = self._end_side_job(current, None, fault)
        # only now, because this removes the worker's folder with the standard error that was read above
        self._replace(worker)
        yield from verdicts

    def _handle_timeout(self, worker: Worker, fault: str) -> Iterator[Evaluation]:
        current = worker.current
        if worker.role is Role.PREPARER:
            yield from self._end_preparer(worker)
            return
        if not worker.ready:
            raise not_started(self._kind, f"{fault}{worker.stderr_tail()}")
        self._replace(worker)
        if isinstance(current, SideJob):
            yield from self._end_side_job(current, None, fault)
        elif current:
            yield from self._resolve(current, after_timeout(current, worker, fault))

    def _end_preparer(self, worker: Worker) -> Iterator[Evaluation]:
        """Continue without a preparer that has failed: evaluators compile the missing baselines."""
        if not worker.ready:  # for example for lack of memory
            self._preparers = 0
            self._lacking.compile_no_more()
        self._pool.remove(worker)
        if isinstance(worker.current, SideJob):
            yield from self._end_side_job(worker.current, None)

    def _resolve(self, state: JobState, failure: Failure | None) -> Iterator[Evaluation]:
        """Yield the failure as a verdict; if there is none, retry the job."""
        if failure:
            yield verdict_on(state, self.info, failure.outcome, failure.log)
        else:
            self._jobs.new.appendleft(state)

    def _replace(self, worker: Worker) -> None:
        self._pool.replace(worker, self._infos.get(worker.card))
