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
from pathlib import Path
from typing import BinaryIO

from archive.records import DeviceInfo
from evolve.engines.assigned import EXIT_SECONDS, Worker, tail_of
from evolve.engines.messages import (
    Channel,
    Exited,
    Failed,
    Fork,
    Forked,
    Kill,
    Message,
    Role,
    decode,
    encode,
)
from evolve.errors import UserError
from reference_ops.listing import user_cache_dir

FOLDER_PREFIX = "evolve-engine-"
CUBIN_SECONDS = 600.0  # age after which compiled kernels are removed
# Environment variables that a worker inherits: those that help find compilers and libraries, but none that hold keys.
NAMES = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CC", "CXX", "XDG_CACHE_HOME",
)  # fmt: skip
BEGINNINGS = ("LC_", "PYTHON", "CUDA", "CUPY", "NVIDIA", "TORCH", "TRITON")
SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL")


class WorkerPool:
    """Pool that keeps one worker running for each of the given roles, on the given card of the device."""

    def __init__(
        self, device_kind: str, roles: Sequence[tuple[Role, str]], memory_bytes: Mapping[Role, int | None]
    ) -> None:
        remove_leftover_folders()
        self._memory_bytes = memory_bytes
        self.workers: list[Worker] = []
        self._kind = device_kind
        self._ending: dict[int, Worker] = {}  # replaced workers whose processes still run
        self._numbers = itertools.count()
        self._fork_server: ForkServer | None = None
        self.folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        try:
            self._cubins = self.folder / "cubins"
            self._cubins.mkdir()
            self._fork_server = ForkServer(device_kind, self.folder)
            for role, card in roles:
                self.workers.append(self._start_worker(role, None, card))
        except BaseException:
            self.close()
            raise

    def add(self, role: Role, device: DeviceInfo | None, card: str) -> "Worker":
        """Start one more worker."""
        worker = self._start_worker(role, device, card)
        self.workers.append(worker)
        return worker

    def receive(self, seconds: float) -> Iterator[tuple["Worker", Message]]:
        """Yield the messages that arrive within `seconds`. `Exited` comes after all other messages from its worker."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.fork_server.channel.end, selectors.EVENT_READ)
            for worker in self.workers:
                events = selectors.EVENT_WRITE * bool(worker.channel.unsent)
                events |= selectors.EVENT_READ * (worker.channel.closed_at is None)
                if events:
                    selector.register(worker.channel.end, events, worker)
            ready = {key.data for key, _ in selector.select(seconds)}
        for worker in ready.intersection(self.workers):
            worker.channel.flush()
            yield from self._receive_from(worker)
        if None in ready:
            yield from self._receive_from_fork_server()

    def replace(self, worker: "Worker", device: DeviceInfo | None) -> None:
        """Start a new worker without waiting for the old one to end, which may take a while."""
        self.workers[self.workers.index(worker)] = self._start_worker(worker.role, device, worker.card)
        self._retire(worker)

    def remove(self, worker: "Worker") -> None:
        """End a worker without a replacement."""
        self.workers.remove(worker)
        self._retire(worker)

    def _retire(self, worker: "Worker") -> None:
        if worker.status is None:
            self._ending[worker.number] = worker
            self.fork_server.kill(worker.number)
        else:
            shutil.rmtree(worker.folder, ignore_errors=True)
        worker.channel.end.close()
        self._remove_old_cubins()

    def close(self) -> None:
        """End all processes and remove all files. Safe to call at any time and more than once."""
        if fork_server := self._fork_server:
            if fork_server.close() != 0:
                self._kill_orphans()
            self._fork_server = None
        for worker in self.workers:
            worker.channel.end.close()
        self.workers = []
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def fork_server(self) -> "ForkServer":
        if self._fork_server is None:
            raise RuntimeError("the engine was closed")
        return self._fork_server

    def _start_worker(self, role: Role, device: DeviceInfo | None, card: str) -> "Worker":
        number = next(self._numbers)
        folder = self.folder / f"worker-{number}"
        folder.mkdir()
        fork = Fork(number, role, str(folder), str(self._cubins), self._memory_bytes[role], device, card)
        return Worker(number, role, card, folder, self.fork_server.fork(fork))

    def _receive_from(self, worker: "Worker") -> Iterator[tuple["Worker", Message]]:
        for line in worker.channel.receive():
            try:
                message = decode(line)
            except (ValueError, TypeError, KeyError, AttributeError):  # a kernel has overwritten the worker's memory
                self.fork_server.kill(worker.number)
                return
            yield worker, message
            if worker not in self.workers:
                return

    def _receive_from_fork_server(self) -> Iterator[tuple["Worker", Message]]:
        fork_server = self.fork_server
        for line in fork_server.channel.receive():
            fork_server.has_replied = True
            match decode(line):
                case Forked(number=number, pid=pid):
                    for worker in (*self.workers, *self._ending.values()):
                        worker.pid = pid if worker.number == number else worker.pid
                case Exited(number=number) as exited:
                    yield from self._exited(number, exited)
                case Failed(message=message, hint=hint):
                    raise UserError(message, hint)
        if fork_server.channel.closed_at is not None:
            yield from self._restart_fork_server(fork_server)

    def _exited(self, number: int, exited: Exited) -> Iterator[tuple["Worker", Message]]:
        if ended := self._ending.pop(number, None):
            shutil.rmtree(ended.folder, ignore_errors=True)
        for worker in [worker for worker in self.workers if worker.number == number]:
            worker.status = exited.status
            yield from self._receive_from(worker)
            if worker in self.workers:
                yield worker, exited

    def _restart_fork_server(self, fork_server: "ForkServer") -> Iterator[tuple["Worker", Message]]:
        """Start a new fork server after the old one was killed together with every worker."""
        stderr, status = fork_server.stderr_tail(), fork_server.close()
        self._kill_orphans()
        if not fork_server.has_replied and -status not in (signal.SIGKILL, signal.SIGTERM):
            raise UserError(
                f"the {self._kind} device did not start: exit status {status}{stderr}",
                "run `evolve doctor` to check this machine",
            )
        for ended in self._ending.values():
            shutil.rmtree(ended.folder, ignore_errors=True)
        self._ending = {}
        self._fork_server = ForkServer(self._kind, self.folder)
        for worker in list(self.workers):
            worker.status = -signal.SIGKILL
            yield worker, Exited(worker.number, worker.status)

    def _kill_orphans(self) -> None:
        """Kill the workers' process groups: processes started by workers outlive a fork server that was killed."""
        for worker in (*self.workers, *self._ending.values()):
            with contextlib.suppress(OSError):
                if worker.pid:
                    os.killpg(worker.pid, signal.SIGKILL)

    def _remove_old_cubins(self) -> None:
        for file in self._cubins.iterdir():
            with contextlib.suppress(OSError):
                if file.stat().st_mtime < time.time() - CUBIN_SECONDS:
                    file.unlink()


class ForkServer:
    """The process that forks workers. Its environment holds no keys."""

    def __init__(self, device_kind: str, folder: Path) -> None:
        own_end, server_end = socket.socketpair()
        self.channel = Channel(own_end)
        self.has_replied = False
        self._stderr = folder / "fork_server-stderr"
        with server_end, self._stderr.open("wb") as stderr:
            arguments = ["--device", device_kind, "--control", str(server_end.fileno()), "--parent", str(os.getpid())]
            arguments += ["--project", str(_working_folder() or folder)]
            self._process = started(arguments, server_end, stderr, folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, fork: Fork) -> Channel:
        """Request a worker and return the engine's end of its channel."""
        own_end, worker_end = socket.socketpair()
        with worker_end:
            self._send(fork, worker_end.fileno())
        return Channel(own_end)

    def kill(self, number: int) -> None:
        self._send(Kill(number))

    def _send(self, request: Fork | Kill, *file_descriptors: int) -> None:
        self.channel.end.settimeout(EXIT_SECONDS)
        # the fork server has ended or hangs, which the end of the file or a worker's start deadline will show
        with contextlib.suppress(OSError):
            socket.send_fds(self.channel.end, [encode(request)], file_descriptors)
        self.channel.end.setblocking(False)

    def stderr_tail(self) -> str:
        return tail_of(self._stderr)

    def close(self) -> int:
        """Wait until the fork server has ended its workers and itself; return its exit status.

        Kill it if it still imports.
        """
        starting = not self.has_replied and self.channel.closed_at is None
        self.channel.end.close()
        try:
            return self._process.wait(0.0 if starting else EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def started(
    arguments: Sequence[str], control: socket.socket, output: BinaryIO, folder: Path
) -> "subprocess.Popen[bytes]":
    """Start a fork server with its end of the connection to the engine."""
    return subprocess.Popen(
        # with -P, files in the user's working folder are not imported in place of libraries
        [sys.executable, "-P", "-m", "evolve.engines.fork_server", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=[control.fileno()],
        env=environment(folder),
        cwd=folder,
        start_new_session=True,
    )


def remove_leftover_folders() -> None:
    """Remove the folders of engines that were killed before they could close."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*-*"):
        pid = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _working_folder() -> Path | None:
    """Return the user's working folder, or None if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        return None


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a fork server and its workers, which holds no keys."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name in NAMES or (name.startswith(BEGINNINGS) and not any(word in name for word in SECRET))
    }
    root = str(Path(__file__).resolve().parents[2])
    inductor = inherited.get("TORCHINDUCTOR_CACHE_DIR") or str(user_cache_dir() / "inductor")
    return {
        **inherited,
        # Compiled baselines must outlive the worker's folder.
        "TORCHINDUCTOR_CACHE_DIR": inductor,
        "TRITON_CACHE_DIR": str(Path(inductor) / "triton"),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, inherited.get("PYTHONPATH", "")])),
        "OPENBLAS_NUM_THREADS": "1",  # keeps NumPy from starting threads: a process with threads cannot fork safely
        "TMPDIR": str(folder),
    }
