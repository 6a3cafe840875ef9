"""The engine's ends of its nursery and of the workers that were forked there."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from archive.records import DeviceInfo, Traits
from evolve.engines.engine import Job
from evolve.engines.messages import Assignment, Count, Fork, Gauge, Gauged, Kill, Message, Profiled, Role, encode
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
class Task:
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
class Errand:
    """Something else that an evaluator is asked, and what came of it. It is tried once."""

    asked: Count | Gauge
    subject: str
    answer: Profiled | Gauged | None = None
    fault: str = ""  # of the worker's, that has died or hung over it

    def message(self, _device: DeviceInfo) -> Message:
        return self.asked


class Line:
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
        except OSError:  # gone; its end of file, or the nursery, says so
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

    def __init__(self, number: int, role: Role, folder: Path, line: Line) -> None:
        self.number, self.role, self.folder, self.line = number, role, folder, line
        self.pid = 0
        self.status: int | None = None
        self.ready = False
        self.task: Task | Errand | None = None
        self.jobs = 0
        self.has_run = False  # what it has in hand, at least once
        self.begin("")

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None and self.line.hung_up_at is None

    def begin(self, phase: str) -> None:
        self.phase, self.phase_started = phase, time.monotonic()
        self.has_run |= phase == "check"

    def give(self, task: Task | Errand, device: DeviceInfo) -> None:
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


class Nursery:
    """The process that forks workers, started afresh with an environment that holds no keys."""

    def __init__(self, device_kind: str, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        self.line = Line(ours)
        self.served = False
        self._stderr = folder / "nursery-stderr"
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

    def fork(self, fork: Fork) -> Line:
        """Ask for a worker; the engine's end of its channel."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._ask(fork, theirs.fileno())
        return Line(ours)

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
