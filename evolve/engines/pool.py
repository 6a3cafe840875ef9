"""Worker pool: starts, feeds and restarts the processes that compile and evaluate kernels."""

import contextlib
import itertools
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archive.records import DeviceInfo, Traits
from evolve.engines.engine import Job
from evolve.engines.messages import (
    Assignment,
    Exited,
    Failed,
    Fork,
    Forked,
    Kill,
    Message,
    ProfileRequest,
    ProfileResult,
    Role,
    TimingRequest,
    TimingResult,
    decode,
    encode,
)
from evolve.errors import UserError
from evolve.evaluation.caches import evolve_cache_dir

START_SECONDS, EXIT_SECONDS = 300.0, 20.0
STDERR_CHARACTERS = 1500
RECEIVED_AT_ONCE, PARTS_AT_ONCE = 2**16, 64
# What a worker may know of its surroundings: enough to find compilers and libraries, no keys.
NAMES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CC", "CXX", "XDG_CACHE_HOME",
)  # fmt: skip
BEGINNINGS = ("LC_", "PYTHON", "CUDA", "CUPY", "NVIDIA", "TORCH", "TRITON")
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


@dataclass(eq=False)
class JobState:
    """A job on its way through the stages."""

    job: Job
    shapes_seed: int
    started: float
    retried: bool = False
    held_up: bool = False  # it has missed the deadline of a run once, after runs that did not
    fault: str = ""  # over which it lost a worker whose memory some kernel may have spoilt
    traits: Traits | None = None  # once it is compiled

    @property
    def subject(self) -> str:
        """By which whoever watches knows it."""
        return self.job.kernel.id

    def message(self, device: DeviceInfo) -> Message:
        job = self.job
        return Assignment(job.kernel.text, job.op, job.bars, job.confirm, self.shapes_seed, device)


@dataclass(eq=False)
class SideJob:
    """Something else that an evaluator is asked, and what came of it. It is tried once."""

    asked: ProfileRequest | TimingRequest
    subject: str
    answer: ProfileResult | TimingResult | None = None
    fault: str = ""  # of the worker's, that has died or hung over it

    def message(self, _device: DeviceInfo) -> Message:
        return self.asked


class Channel:
    """One end of a socket, for messages: nothing that the other end does, or fails to do, makes us wait."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.end.setblocking(False)
        self.hung_up_at: float | None = None
        self.unsent = b""
        self._half_a_line = b""

    def send(self, message: Message) -> None:
        self.unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self.unsent:
                self.unsent = self.unsent[self.end.send(self.unsent) :]
        except BlockingIOError:
            return
        except OSError:  # gone; its end of file, or the fork_server, says so
            self.unsent = b""

    def received(self) -> list[bytes]:
        """The whole lines that have arrived."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            for _ in range(PARTS_AT_ONCE):  # somebody who never stops must not keep us either
                try:
                    part = self.end.recv(RECEIVED_AT_ONCE)
                except ConnectionError:
                    part = b""
                if not part:
                    self.hung_up_at = time.monotonic()
                    break
                data += part
        *lines, self._half_a_line = (self._half_a_line + data).split(b"\n")
        return lines


class Worker:
    """One forked process, and what it has in hand."""

    def __init__(self, number: int, role: Role, folder: Path, line: Channel) -> None:
        self.number, self.role, self.folder, self.line = number, role, folder, line
        self.pid = 0
        self.status: int | None = None
        self.ready = False
        self.task: JobState | SideJob | None = None
        self.jobs = 0
        self.has_run = False  # what it has in hand, at least once
        self.begin("")

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None and self.line.hung_up_at is None

    def begin(self, phase: str) -> None:
        self.phase, self.phase_started = phase, time.monotonic()
        self.has_run |= phase == "check"

    def give(self, task: JobState | SideJob, device: DeviceInfo) -> None:
        self.task = task
        self.jobs += 1
        self.has_run = False
        self.begin("compile")
        with contextlib.suppress(OSError):  # what earlier kernels printed
            os.truncate(self.folder / "stderr", 0)
        self.line.send(task.message(device))

    def overdue(self, phase_seconds: Mapping[str, float]) -> str:
        """What took too long, or nothing."""
        if self.idle:
            return ""
        doing = {"compile": "compiling", "profile": "profiling", "": "starting"}.get(self.phase, self.phase)
        since, limit = self.phase_started, phase_seconds.get(self.phase, START_SECONDS)
        if self.line.hung_up_at is not None:
            doing, since, limit = "ending", self.line.hung_up_at, EXIT_SECONDS
        return f"{doing} took more than {limit:g} s" if time.monotonic() - since > limit else ""

    def last_words(self) -> str:
        return last_words(self.folder / "stderr")


class ForkServer:
    """The process that forks workers, started afresh with an environment that holds no keys."""

    def __init__(self, device_kind: str, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.line = Channel(ours)
        self.served = False
        self._stderr = folder / "fork_server-stderr"
        with theirs, self._stderr.open("wb") as stderr:
            arguments = ["--device", device_kind, "--control", str(theirs.fileno()), "--parent", str(os.getpid())]
            arguments += ["--project", str(_project() or folder)]
            self._process = subprocess.Popen(
                # -P: what lies in the user's working folder must not be imported in place of a library
                [sys.executable, "-P", "-m", "evolve.engines.fork_server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                env=_environment(folder),
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, fork: Fork) -> Channel:
        """Ask for a worker; the engine's end of its channel."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._ask(fork, theirs.fileno())
        return Channel(ours)

    def kill(self, number: int) -> None:
        self._ask(Kill(number))

    def _ask(self, request: Fork | Kill, *channels: int) -> None:
        self.line.end.settimeout(EXIT_SECONDS)
        with contextlib.suppress(OSError):  # gone, or stopped: its end of file or the deadline of its start says so
            socket.send_fds(self.line.end, [encode(request)], channels)
        self.line.end.setblocking(False)

    def last_words(self) -> str:
        return last_words(self._stderr)

    def close(self) -> int:
        """It ends once it has ended its workers; its exit status."""
        self.line.end.close()
        try:
            return self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def last_words(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            stream.seek(max(0, file.stat().st_size - STDERR_CHARACTERS))
            text = stream.read().decode(errors="replace").strip()
    except OSError:
        return ""
    return f"\n{text}" if text else ""


def _project() -> Path | None:
    """Where the user works; somebody may have removed that folder."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _environment(folder: Path) -> dict[str, str]:
    own = {
        name: value
        for name, value in os.environ.items()
        if name in NAMES or (name.startswith(BEGINNINGS) and not any(word in name for word in SECRET))
    }
    root = str(Path(__file__).resolve().parents[2])
    inductor = own.get("TORCHINDUCTOR_CACHE_DIR") or str(evolve_cache_dir() / "inductor")
    return {
        **own,
        # Compiled baselines outlive the worker, whose own folder does not.
        "TORCHINDUCTOR_CACHE_DIR": inductor,
        "TRITON_CACHE_DIR": str(Path(inductor) / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, own.get("PYTHONPATH", "")])),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",  # its threads would start with NumPy, and a process with threads forks badly
        "TMPDIR": str(folder),
    }


FOLDER_PREFIX = "evolve-engine-"
CUBIN_SECONDS = 600.0  # after which nobody will load any more what was compiled


class WorkerPool:
    """One worker per role that was asked for, all the time."""

    def __init__(self, device_kind: str, roles: Sequence[Role], memory_bytes: Mapping[Role, int | None]) -> None:
        sweep()
        self._memory_bytes = memory_bytes
        self.workers: list[Worker] = []
        self._kind = device_kind
        self._dying: dict[int, Worker] = {}
        self._numbers = itertools.count()
        self._fork_server: ForkServer | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        try:
            self._cubins = self.folder / "cubins"
            self._cubins.mkdir()
            self._fork_server = ForkServer(device_kind, self.folder)
            for role in roles:
                self.workers.append(self._forked(role, None))
        except BaseException:
            self.close()
            raise

    def replace(self, worker: Worker, device: DeviceInfo | None) -> None:
        """A new worker at once; the old one is ended, which may take its time."""
        self.workers[self.workers.index(worker)] = self._forked(worker.role, device)
        if worker.status is None:
            self._dying[worker.number] = worker
            self._living_fork_server.kill(worker.number)
        else:
            shutil.rmtree(worker.folder, ignore_errors=True)
        worker.line.end.close()
        self._remove_old_cubins()

    def news(self, seconds: float) -> Iterator[tuple[Worker, Message]]:
        """What workers say within a moment. That one has exited comes last of what there is to hear of it."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._living_fork_server.line.end, selectors.EVENT_READ)
            for worker in self.workers:
                wanted = selectors.EVENT_WRITE * bool(worker.line.unsent)
                wanted |= selectors.EVENT_READ * (worker.line.hung_up_at is None)
                if wanted:
                    selector.register(worker.line.end, wanted, worker)
            ready = {key.data for key, _ in selector.select(seconds)}
        for worker in ready.intersection(self.workers):
            worker.line.flush()
            yield from self._said(worker)
        if None in ready:
            yield from self._news_of_fork_server()

    def close(self) -> None:
        """Neither a process nor a file is left behind; safe at any moment, and twice."""
        if fork_server := self._fork_server:
            if fork_server.close() != 0:
                self._kill_orphans()
            self._fork_server = None
        for worker in self.workers:
            worker.line.end.close()
        self.workers = []
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _living_fork_server(self) -> ForkServer:
        if self._fork_server is None:
            raise RuntimeError("the engine was closed")
        return self._fork_server

    def _forked(self, role: Role, device: DeviceInfo | None) -> Worker:
        number = next(self._numbers)
        folder = self.folder / f"worker-{number}"
        folder.mkdir()
        fork = Fork(number, role, str(folder), str(self._cubins), self._memory_bytes[role], device)
        line = self._living_fork_server.fork(fork)
        return Worker(number, role, folder, line)

    def _said(self, worker: Worker) -> Iterator[tuple[Worker, Message]]:
        for line in worker.line.received():
            try:
                message = decode(line)
            except (ValueError, TypeError, KeyError, AttributeError):  # whoever wrote that is no longer itself
                self._living_fork_server.kill(worker.number)
                return
            yield worker, message
            if worker not in self.workers:
                return

    def _news_of_fork_server(self) -> Iterator[tuple[Worker, Message]]:
        fork_server = self._living_fork_server
        for line in fork_server.line.received():
            fork_server.served = True
            match decode(line):
                case Forked(number=number, pid=pid):
                    for worker in (*self.workers, *self._dying.values()):
                        worker.pid = pid if worker.number == number else worker.pid
                case Exited(number=number) as exited:
                    yield from self._exited(number, exited)
                case Failed(message=message, hint=hint):
                    raise UserError(message, hint)
        if fork_server.line.hung_up_at is not None:
            yield from self._without_fork_server(fork_server)

    def _exited(self, number: int, exited: Exited) -> Iterator[tuple[Worker, Message]]:
        if dead := self._dying.pop(number, None):
            shutil.rmtree(dead.folder, ignore_errors=True)
        for worker in [worker for worker in self.workers if worker.number == number]:
            worker.status = exited.status
            yield from self._said(worker)
            if worker in self.workers:
                yield worker, exited

    def _without_fork_server(self, fork_server: ForkServer) -> Iterator[tuple[Worker, Message]]:
        """Somebody ended the fork_server, and with it every worker."""
        words, status = fork_server.last_words(), fork_server.close()
        self._kill_orphans()
        if not fork_server.served and -status not in (signal.SIGKILL, signal.SIGTERM):
            raise UserError(f"the {self._kind} device did not start: exit status {status}{words}", "see evolve doctor")
        for dead in self._dying.values():
            shutil.rmtree(dead.folder, ignore_errors=True)
        self._dying = {}
        self._fork_server = ForkServer(self._kind, self.folder)
        for worker in list(self.workers):
            worker.status = -signal.SIGKILL
            yield worker, Exited(worker.number, worker.status)

    def _kill_orphans(self) -> None:
        """Workers die with a fork_server that was killed, what they started does not."""
        for worker in (*self.workers, *self._dying.values()):
            with contextlib.suppress(OSError):
                if worker.pid:
                    os.killpg(worker.pid, signal.SIGKILL)

    def _remove_old_cubins(self) -> None:
        for file in self._cubins.iterdir():
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - CUBIN_SECONDS:
                    file.unlink()


def sweep() -> None:
    """Remove the folders of engines that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
