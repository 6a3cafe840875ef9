"""The process that workers are forked from: it has imported PyTorch once, and touches neither a GPU nor a kernel.

It ends when its engine does, and ends every worker then, with whatever those have started.
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
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evolve.engines.messages import Fork, Message

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_SECONDS = 1.0
REQUEST_BYTES, CHANNELS_AT_ONCE = 2**16, 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Forks the workers of an engine; not for use by hand.")
    parser.add_argument("--device", required=True)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--project", type=Path, required=True)
    requested = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's business
    _ask_system(PR_SET_PDEATHSIG, signal.SIGKILL)  # only while importing: it would spare what the workers started
    _ask_system(PR_SET_CHILD_SUBREAPER, 1)
    control = socket.socket(fileno=requested.control)
    control.set_inheritable(False)
    from evolve import wiring

    wiring.preload(requested.device)
    gc.freeze()  # or collecting garbage in a worker would copy every page
    _ask_system(PR_SET_PDEATHSIG, 0)
    _ForkServer(requested.device, requested.parent, requested.project, control).serve()


class _ForkServer:
    """The line to the engine, and the living workers by number."""

    def __init__(self, device_kind: str, engine_pid: int, project: Path, control: socket.socket) -> None:
        self._kind, self._engine_pid, self._project, self._control = device_kind, engine_pid, project, control
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._half_a_line, self._channels = b"", list[int]()
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)

    def serve(self) -> None:
        listening = True
        while listening and os.getppid() == self._engine_pid:
            ready = self._wait(self._control)
            self._bury()
            if ready:
                listening = self._listen()
        for number in self._pids:
            self._end(number)
        while self._pids:  # a GPU's driver takes a second to let go of a worker
            self._wait()
            self._bury()

    def _wait(self, *control: socket.socket) -> bool:
        """Until the engine says something, a child dies or a second has passed; whether the engine did."""
        ends = [end.fileno() for end in control]
        ready, _, _ = select.select([*ends, self._wake], [], [], TICK_SECONDS)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        return any(end in ready for end in ends)

    def _listen(self) -> bool:
        """Do what was asked; False once the engine has hung up. Each request to fork brings one channel along."""
        from evolve.engines.messages import Fork, Kill, decode

        try:
            data, channels, _, _ = socket.recv_fds(self._control, REQUEST_BYTES, CHANNELS_AT_ONCE)
        except OSError:
            return False
        for channel in channels:
            os.set_inheritable(channel, False)
        self._channels += channels
        *lines, self._half_a_line = (self._half_a_line + data).split(b"\n")
        for line in lines:
            match decode(line):
                case Fork() as fork:
                    self._fork(fork, self._channels.pop(0))
                case Kill(number=number):
                    self._end(number)
        return bool(data)

    def _fork(self, fork: "Fork", channel: int) -> None:
        from evolve.engines.messages import Failed, Forked

        try:
            pid = os.fork()
        except OSError as error:
            self._say(Failed(f"no worker can be started: {error.strerror}", "end other processes, or free memory"))
            os.close(channel)
            return
        if pid == 0:
            self._live(fork, channel)
        self._pids[fork.number] = pid
        os.close(channel)
        self._say(Forked(fork.number, pid))

    def _live(self, fork: "Fork", channel: int) -> None:
        """The life of a worker: nothing of the fork_server's may be within its reach, and it never returns."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _ask_system(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._pid:
                os._exit(1)
            os.setsid()
            self._control.close()
            for end in (self._wake, self._woken, *self._channels):
                os.close(end)
            _settle(Path(fork.folder))
            from evolve.engines.worker import serve

            serve(self._kind, fork, socket.socket(fileno=channel), self._project)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - said where the engine finds it; nothing may return to the fork_server
            traceback.print_exc()
        finally:
            os._exit(1)

    def _end(self, number: int) -> None:
        if pid := self._pids.get(number):
            _kill(pid)

    def _bury(self) -> None:
        """Report the dead, and end what they left running: their process groups, and what escaped from these."""
        from evolve.engines.messages import Exited

        numbers = {pid: number for number, pid in self._pids.items()}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = found
                if pid in numbers:
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
                    del self._pids[numbers[pid]]
                    self._say(Exited(numbers[pid], os.waitstatus_to_exitcode(status)))
        for pid in _children().difference(self._pids.values()):
            _kill(pid)

    def _say(self, message: "Message") -> None:
        from evolve.engines.messages import encode

        with contextlib.suppress(OSError):  # an engine that is gone is noticed by itself
            self._control.sendall(encode(message))


def _settle(folder: Path) -> None:
    """Everything that a library may want to write goes to the worker's own folder."""
    os.chdir(folder)
    stderr = os.open("stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (stderr, 1), (stderr, 2)):
        os.dup2(source, target)
    os.close(stderr)
    os.close(nothing)
    os.environ.update(TMPDIR=str(folder), CUDA_CACHE_PATH=str(folder / "cuda"), CUPY_CACHE_DIR=str(folder / "cupy"))
    tempfile.tempdir = None  # what was found before


def _children() -> set[int]:
    """Orphans among our descendants become our children."""
    try:
        return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return set()


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):  # a worker that was just born leads no group yet
        with contextlib.suppress(OSError):
            end(pid, signal.SIGKILL)


def _ask_system(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
