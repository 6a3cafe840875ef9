"""Fork servers for tests, forked from a process that has imported PyTorch once for all of them.

Every engine starts a fork server, which spends over two seconds of CPU on importing PyTorch and compiling the runtime
of the emulator. Here one process does this for all engines of a test run, and each fork server is a fork of it. It
becomes a child of the tests' process, as the engine expects. Workers and tests compile no kernel that another process
of the run has compiled (`shared_objects.py`). Tests of the start itself use the fixture `cold_fork_servers`.
"""

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, NoReturn

import pytest

from evolve.engines import fork_server, pool

WARM = "emulated"  # the device whose modules are loaded
# Environment variables that take effect after the fork. Ray sets the third one for all later tests of the process, and
# Inductor the last two.
AFTER_FORK = ("TMPDIR", "PYTHONPATH", "PYTHONBREAKPOINT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
PLAIN_ASSEMBLER = "EVOLVE_TESTS_PLAIN_ASSEMBLER"  # set for fork servers whose machine code is not used
WITHOUT_CUPY = "EVOLVE_TESTS_WITHOUT_CUPY"  # set for fork servers that do not find CuPy
PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES, PID_BYTES = 2**18, 16
COLD = pool.started
changes: dict[str, str] = {}  # `PLAIN_ASSEMBLER` or `WITHOUT_CUPY` while the function of that name is in use


class ForkedProcess:
    """A fork server that is a child of this process, with the methods of `subprocess.Popen` that an engine uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        deadline = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while self.returncode is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(["fork server"], timeout or 0.0)
            else:
                time.sleep(0.005)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class WarmProcess:
    """The process that has imported PyTorch, and the environment in which it runs."""

    def __init__(self, environment: dict[str, str], objects: str) -> None:
        self.environment = environment
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(other.fileno()), objects],
                env=environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def serves(self, environment: dict[str, str]) -> bool:
        """Return whether a new fork server would load the same modules from the same places."""
        return _shared(environment) == _shared(self.environment)

    def fork(self, arguments: Sequence[str], control: int, output: int, folder: Path) -> ForkedProcess:
        """Fork a fork server, and adopt it: a subreaper becomes the parent of orphans among its descendants."""
        environment = {**pool.environment(folder), **changes}
        request = json.dumps([list(arguments), environment, str(folder), os.getpid()]).encode()
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._control, [request], [control, output])
            if not (pid := self._control.recv(PID_BYTES)):
                raise RuntimeError("the process that forks fork servers for tests has ended")
            return ForkedProcess(int(pid))
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0)

    def close(self) -> None:
        self._control.close()
        self._process.wait()


@pytest.fixture(scope="session", autouse=True)
def warm_fork_servers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Let the engines of this process use fork servers that are forked. The first engine starts the warm process."""
    if sys.platform != "linux":
        yield
        return
    import shared_objects

    objects = shared_objects.of_the_run(pytestconfig)
    made: list[WarmProcess] = []
    paths = pool.environment(Path(tempfile.gettempdir()))["PYTHONPATH"]  # before any test adds to it

    def started(
        arguments: Sequence[str], control: socket.socket, output: BinaryIO, folder: Path
    ) -> "subprocess.Popen[bytes] | ForkedProcess":
        environment = pool.environment(folder)
        if made and changes and not made[0].serves(environment):
            made.pop().close()  # a fork server that is started cold would ignore the changes
        if not made:
            shared = {**environment, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": paths}
            made.append(WarmProcess(shared, objects.address))
        if not made[0].serves(environment):
            return COLD(arguments, control, output, folder)
        return made[0].fork(arguments, control.fileno(), output.fileno(), folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "started", started)
        shared_objects.share(objects, patch.setattr)
        yield
    for process in made:
        process.close()


@pytest.fixture
def cold_fork_servers() -> Iterator[None]:
    """Start fork servers as users' engines do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "started", COLD)
        yield


def plain_assembler() -> AbstractContextManager[None]:
    """Start workers that do not optimise machine code (`shared_objects.assemble_plainly`)."""
    return _changed(PLAIN_ASSEMBLER)


def without_cupy() -> AbstractContextManager[None]:
    """Start workers of the emulated device as on a machine without CuPy, where NVRTC does not compile kernels, too."""
    return _changed(WITHOUT_CUPY)


@contextmanager
def _changed(name: str) -> Iterator[None]:
    changes[name] = "1"
    try:
        yield
    finally:
        del changes[name]


def _shared(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in AFTER_FORK}


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# The code below runs in the warm process.


def serve(control: socket.socket, objects: str) -> None:
    """Load the modules of every fork server, then fork one for each request until the tests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control.set_inheritable(False)
    for module in fork_server.PRELOADED:
        import_module(module)
    from evolve.devices import choose

    choose.preload(WARM)
    sys.path.append(str(Path(__file__).parent))
    import shared_objects

    sys.path.pop()  # workers look for modules where users' workers do
    shared = shared_objects.opened(objects)
    shared_objects.share(shared)
    shared_objects.check_ops_once(shared)
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
        if not request:
            return
        if (between := os.fork()) == 0:
            if os.fork() == 0:
                _become_fork_server(control, *json.loads(request), *descriptors)
            os._exit(0)  # so that the fork server is an orphan
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _become_fork_server(
    tests: socket.socket, arguments: list[str], environment: dict[str, str], folder: str, parent: int, control: int,
    output: int,
) -> NoReturn:  # fmt: skip
    """Run a fork server in this process as if it had been started with these arguments, and never return."""
    try:
        while os.getppid() != parent:
            time.sleep(0.001)
        os.setsid()
        os.chdir(folder)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        tests.send(str(os.getpid()).encode())
        tests.close()
        if environment.pop(PLAIN_ASSEMBLER, ""):
            sys.modules["shared_objects"].assemble_plainly()
        if environment.pop(WITHOUT_CUPY, ""):
            import_module(f"evolve.devices.{WARM}").find_spec = lambda _name: None  # type: ignore[attr-defined]
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        _customise(environment["PYTHONPATH"])
        arguments[arguments.index("--control") + 1] = str(control)
        sys.argv = ["fork_server", *arguments]
        fork_server.main()
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the engine reads the printed error
        traceback.print_exc()
    finally:
        os._exit(1)


def _customise(paths: str) -> None:
    """Add folders to the search path of modules, and run the code there that Python would have run at its start."""
    for folder in [path for path in paths.split(os.pathsep) if path and path not in sys.path]:
        sys.path.append(folder)
        if (Path(folder) / "sitecustomize.py").is_file():
            runpy.run_path(str(Path(folder) / "sitecustomize.py"))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
