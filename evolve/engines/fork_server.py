"""Fork server: the process from which workers are forked. It imports PyTorch once and never uses a GPU.

When its engine ends, it kills every worker and all processes that workers have started, and ends too.
"""

import argparse
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evolve.engines.messages import Fork, Message

# Modules that all workers need, and modules that PyTorch and NumPy import only on first use.
PRELOADED = ("evolve.engines.worker", "numpy.random", "numpy.ma")
TORCH_COMPILER = "torch._dynamo"  # imported after the first workers have started, because that takes seconds
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_SECONDS = 1.0
REQUEST_BYTES, CHANNELS_AT_ONCE = 2**16, 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Forks the workers of an engine; not for use by hand.")
    parser.add_argument("--device", required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--project", type=Path, required=True)
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C
    # only during the imports: later, processes started by workers would continue to run
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=arguments.control)
    control.set_inheritable(False)
    with _importing():
        for module in PRELOADED:
            import_module(module)
        from evolve.devices import choose
        from reference_ops import catalog

        choose.preload(arguments.device)
        catalog.use_cached_listing()  # the sandbox may keep workers from reading it
    _prctl(PR_SET_PDEATHSIG, 0)
    _ForkServer(arguments.device, arguments.parent, arguments.project, control).serve()


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    """Suspend garbage collection while modules are imported, which makes hardly any garbage.

    Afterwards it skips the imported objects: otherwise it would copy every page of them in each worker.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


class _ForkServer:
    """Connection to the engine, with the running workers by number."""

    def __init__(self, device_kind: str, engine_pid: int, project: Path, control: socket.socket) -> None:
        self._kind, self._engine_pid, self._project, self._control = device_kind, engine_pid, project, control
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._partial_line, self._channels = b"", list[int]()
        # The exit of a child writes to this pipe, so that waiting ends.
        self._wakeup_reader, self._wakeup_writer = os.pipe()
        os.set_blocking(self._wakeup_reader, False)
        os.set_blocking(self._wakeup_writer, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Handle requests until the engine closes the connection or ends, then end all workers."""
        from evolve.devices.choose import COMPILE, policy_of

        connected = True
        compiler_missing = COMPILE in policy_of(self._kind).baselines
        while connected and os.getppid() == self._engine_pid:
            readable = self._wait(self._control)
            self._reap()
            if readable:
                connected = self._handle_requests()
            elif compiler_missing and self._pids:
                with _importing():
                    import_module(TORCH_COMPILER)
                compiler_missing = False
        for number in self._pids:
            self._kill_worker(number)
        while self._pids:  # a GPU's driver needs a second to release the memory of a worker
            self._wait()
            self._reap()

    def _wait(self, *control: socket.socket) -> bool:
        """Wait for a request, a child's exit or one second; return whether there is a request."""
        ends = [end.fileno() for end in control]
        ready, _, _ = select.select([*ends, self._wakeup_reader], [], [], TICK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup_reader, 4096)
        return any(end in ready for end in ends)

    def _handle_requests(self) -> bool:
        """Handle requests; return False if the engine has closed the connection. Each `Fork` comes with a channel."""
        from evolve.engines.messages import Fork, Kill, decode

        try:
            data, channels, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, CHANNELS_AT_ONCE)
        except OSError:
            return False
        for channel in channels:
            os.set_inheritable(channel, False)
        self._channels += channels
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            match decode(line):
                case Fork() as fork:
                    self._fork(fork, self._channels.pop(0))
                case Kill(number=number):
                    self._kill_worker(number)
        return bool(data)

    def _fork(self, fork: "Fork", channel: int) -> None:
        from evolve.engines.messages import Failed, Forked

        try:
            pid = os.fork()
        except OSError as error:
            self._send(Failed(f"no worker can be started: {error.strerror}", "end other processes, or free memory"))
            os.close(channel)
            return
        if pid == 0:
            self._run_worker(fork, channel)
        self._pids[fork.number] = pid
        os.close(channel)
        self._send(Forked(fork.number, pid))

    def _run_worker(self, fork: "Fork", channel: int) -> None:
        """Run a worker in this forked process. Close everything that belongs to the fork server, and never return."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            os.setsid()
            self._control.close()
            for end in (self._wakeup_reader, self._wakeup_writer, *self._channels):
                os.close(end)
            _redirect_output(Path(fork.folder))
            from evolve.engines.worker import serve

            serve(self._kind, fork, socket.socket(fileno=channel), self._project)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the engine reads the printed error; this function must not return
            traceback.print_exc()
        finally:
            os._exit(1)

    def _kill_worker(self, number: int) -> None:
        if pid := self._pids.get(number):
            _kill(pid)

    def _reap(self) -> None:
        """Report workers that have ended, and kill all processes they left running, in their process groups or not."""
        from evolve.engines.messages import Exited

        numbers = {pid: number for number, pid in self._pids.items()}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in numbers:
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
                    del self._pids[numbers[pid]]
                    self._send(Exited(numbers[pid], os.waitstatus_to_exitcode(status)))
        for pid in _children().difference(self._pids.values()):
            _kill(pid)

    def _send(self, message: "Message") -> None:
        from evolve.engines.messages import encode

        with contextlib.suppress(OSError):  # `serve` notices that the engine has ended
            self._control.sendall(encode(message))


def _redirect_output(folder: Path) -> None:
    """Direct the worker's output, temporary files and libraries' caches to its own folder, and write no bytecode."""
    os.chdir(folder)
    stderr = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stderr, 1), (stderr, 2)):
        os.dup2(source, target)
    os.close(stderr)
    os.close(null)
    os.environ.update(TMPDIR=str(folder), CUDA_CACHE_PATH=str(folder / "cuda"), CUPY_CACHE_DIR=str(folder / "cupy"))
    os.environ["PYTHONDONTWRITEBYTECODE"], sys.dont_write_bytecode = "1", True
    tempfile.tempdir = None  # drop the cached name of the fork server's folder


def _children() -> set[int]:
    """Return the pids of all children, including orphaned descendants."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return set()


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # a worker that was just forked does not lead a group yet
        with contextlib.suppress(OSError):
            kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
