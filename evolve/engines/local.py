"""Worker processes on this machine: one kernel each at a time, replaced whenever one dies or hangs."""

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from archive.records import DeviceInfo, Evaluation, Outcome
from evolve.engines.engine import Job
from evolve.errors import UserError
from evolve.evaluation.messages import Done, Failed, Phase, Ready, decode, encode_job

START_SECONDS = 300.0
# A phase covers every workload of a kernel; torch.compile as a baseline is by far the slowest.
PHASE_SECONDS = {"compile": 90.0, "check": 30.0, "baseline": 240.0, "time": 60.0}
TICK_SECONDS = 0.2
# Not what a kernel does to its process: somebody, or the system short of memory, ended it. One more try is fair.
KILLED_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
STDERR_CHARACTERS = 1500
FOLDER_PREFIX = "evolve-worker-"
# What a worker may know of its surroundings: enough to find compilers and libraries, no keys.
ENVIRONMENT = (
    "PATH", "HOME", "LANG", "LC_", "LD_LIBRARY_PATH", "CUDA", "NVIDIA", "PYTHON", "VIRTUAL_ENV", "TMP", "TEMP", "TORCH",
    "TRITON", "CC", "CXX", "USER", "LOGNAME", "CUPY",
)  # fmt: skip


class _Worker:
    """One process, its pipes, and the job it has in hand."""

    def __init__(self, device_kind: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self.stderr = (self.folder / "stderr").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "evolve.evaluation.worker", "--device", device_kind, "--parent", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            cwd=self.folder,
            env=_environment(self.folder),
            start_new_session=True,
        )
        self.buffer = b""
        self.info: DeviceInfo | None = None
        self.job: Job | None = None
        self.phase = ""
        self.started = self.phase_started = time.monotonic()

    @property
    def idle(self) -> bool:
        return self.info is not None and self.job is None

    def give(self, job: Job) -> None:
        assert self.process.stdin  # noqa: S101 - it was opened as a pipe
        self.job, self.phase = job, "compile"
        self.started = self.phase_started = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # if it died between two jobs, its end of file says so
            self.process.stdin.write(encode_job(job.kernel.text, job.op))
            self.process.stdin.flush()

    def lines(self) -> Iterator[bytes] | None:
        """The whole lines that have arrived, or None when the worker is gone."""
        assert self.process.stdout  # noqa: S101
        data = os.read(self.process.stdout.fileno(), 65536)
        if not data:
            return None
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        return iter(lines)

    def overdue(self, phase_seconds: Mapping[str, float]) -> str:
        """What took too long, or nothing."""
        if self.idle:
            return ""
        limit = phase_seconds.get(self.phase, START_SECONDS)
        late = time.monotonic() - self.phase_started > limit
        return f"{self.phase or 'starting'} took more than {limit:g} s" if late else ""

    def last_words(self) -> str:
        self.stderr.flush()
        text = (self.folder / "stderr").read_bytes()[-STDERR_CHARACTERS:].decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def kill(self) -> int:
        """End the whole process group; the exit status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.stderr):
            with contextlib.suppress(BrokenPipeError):
                if pipe:
                    pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return status


class LocalEngine:
    """Evaluates on this machine. `watch` is told which phase each kernel is in."""

    def __init__(
        self,
        device_kind: str,
        workers: int,
        watch: Callable[[str, str], None] | None = None,
        phase_seconds: Mapping[str, float] = PHASE_SECONDS,
    ) -> None:
        self._kind = device_kind
        self._phase_seconds = phase_seconds
        self._watch = watch or (lambda _kernel, _phase: None)
        self._info: DeviceInfo | None = None
        _sweep()
        self._again: list[Job] = []
        self._retried: set[str] = set()
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(_Worker(device_kind))

    @property
    def info(self) -> DeviceInfo:
        """Waits for the first worker to be ready."""
        while self._info is None:
            for _ in self._step():
                pass
        return self._info

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        waiting = iter(jobs)
        exhausted = False
        while True:
            for worker in self._workers:
                if worker.idle and (self._again or not exhausted):
                    job = self._again.pop() if self._again else next(waiting, None)
                    exhausted = exhausted or job is None
                    if job:
                        worker.give(job)
                        self._watch(job.kernel.id, worker.phase)
            if exhausted and not self._again and not any(worker.job for worker in self._workers):
                return
            yield from self._step()

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def _step(self) -> Iterator[Evaluation]:
        """Wait a moment for news of the workers."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            ready = [key.data for key, _ in selector.select(TICK_SECONDS)]
        for worker in list(self._workers):
            lines = worker.lines() if worker in ready else iter(())
            for line in lines or ():
                yield from self._heard(worker, line)
            if lines is None:
                yield from self._lost(worker)
            elif fault := worker.overdue(self._phase_seconds):
                yield from self._hanging(worker, fault)

    def _heard(self, worker: _Worker, line: bytes) -> Iterator[Evaluation]:
        match decode(line):
            case Ready(device=device):
                worker.info = device
                self._info = self._info or device
            case Phase(name=name):
                worker.phase, worker.phase_started = name, time.monotonic()
                if worker.job:
                    self._watch(worker.job.kernel.id, name)
            case Done(evaluation=evaluation, leaving=leaving):
                worker.job = None
                if leaving:
                    self._replace(worker)
                yield evaluation
            case Failed(message=message, hint=hint):
                raise UserError(message, hint)

    def _lost(self, worker: _Worker) -> Iterator[Evaluation]:
        words, job, phase = worker.last_words(), worker.job, worker.phase
        status = self._replace(worker)
        how = f"by {signal.Signals(-status).name}" if status < 0 else f"with exit status {status}"
        if job and -status in KILLED_FROM_OUTSIDE and job.kernel.id not in self._retried:
            self._retried.add(job.kernel.id)
            self._again.append(job)
        elif job:
            yield self._verdict(job, worker, Outcome.CRASHED, f"the worker was ended {how} in {phase}{words}")
        elif worker.info is None:
            raise UserError(
                f"the {self._kind} device did not start: its worker ended {how}{words}", "see evolve doctor"
            )

    def _hanging(self, worker: _Worker, fault: str) -> Iterator[Evaluation]:
        job, words = worker.job, worker.last_words()
        self._replace(worker)
        if job is None:
            raise UserError(f"the {self._kind} device did not start: {fault}{words}", "see evolve doctor")
        yield self._verdict(job, worker, Outcome.TIMED_OUT, f"{fault}: an endless loop, or a deadlock")

    def _replace(self, worker: _Worker) -> int:
        status = worker.kill()
        self._workers[self._workers.index(worker)] = _Worker(self._kind)
        return status

    def _verdict(self, job: Job, worker: _Worker, outcome: Outcome, log: str) -> Evaluation:
        return Evaluation(
            kernel_id=job.kernel.id,
            op=job.kernel.op,
            device=worker.info or self.info,
            outcome=outcome,
            log=log,
            seconds=round(time.monotonic() - worker.started, 3),
            created=time.time(),
        )


def _sweep() -> None:
    """Remove the folders of engines that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _environment(folder: Path) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name.startswith(ENVIRONMENT)}
    root = str(Path(__file__).resolve().parents[2])
    return {
        # Compiled baselines outlive the worker, whose own folder does not.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / f"evolve-inductor-{os.getuid()}"),
        **own,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, own.get("PYTHONPATH", "")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(folder),
    }
