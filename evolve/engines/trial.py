"""Trial of a user's file: it is first loaded in a separate process, because loading it runs arbitrary code.

The code may end its process, crash it or never return. The trial reports each of these to the user in one line.
"""

import contextlib
import faulthandler
import functools
import os
import re
import resource
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from archive.store import uncollected
from evolve.errors import UserError
from reference_ops import catalog
from reference_ops.op import Op

LIMIT_VARIABLE, LIMIT_SECONDS = "EVOLVE_LOAD_SECONDS", 60.0
GRACE_SECONDS, TICK_SECONDS = 5.0, 0.02
LOADED, RAISED, THREAD = b"\0loaded", b"\0raised ", b"\0thread "
OVERDUE = b"Timeout ("  # as faulthandler writes it
REPORT_BYTES = 2**16
FRAME = re.compile(r'File "([^"]+)", line (\d+)')  # as faulthandler writes it, innermost first
MAIN = 'move it below `if __name__ == "__main__":`'


@dataclass(frozen=True)
class _Ending:
    """The end of a trial: the exit status, negative for a signal, and the process's earlier output."""

    status: int
    report: bytes

    @property
    def loaded(self) -> bool:
        return self.status == 0 and self.report.endswith(LOADED)


def nothing() -> None:
    """Do nothing while a file is tried."""


def load(locator: str, meanwhile: Callable[[], object] = nothing) -> Op:
    """Load an op. Raise a UserError if its file ends, crashes or blocks the process that loads it.

    Output of a file goes to standard error, because standard output may be JSON. The file gets no input from the
    terminal. `meanwhile` is called while the other process loads the file.
    """
    if not catalog.is_path(locator):
        return catalog.load(locator)
    if hasattr(os, "fork"):
        path = catalog.locate(locator)
        _try(catalog.lasting(locator), path, path.stat().st_mtime_ns, meanwhile)
    with contextlib.redirect_stdout(sys.stderr), _no_input():
        return catalog.load(locator)


@contextlib.contextmanager
def _no_input() -> Iterator[None]:
    before = sys.stdin
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before


@functools.lru_cache(maxsize=512)
def _try(locator: str, path: Path, _changed: int, meanwhile: Callable[[], object]) -> None:
    """Load a file in a forked process, once per version of the file."""
    with uncollected():
        import_module("torch")  # imported here, so that each forked process need not import it
    seconds = _limit()
    ending = _in_child(lambda report: _load(locator, seconds, report), seconds, meanwhile)
    if ending.loaded:
        return
    where = f"{path}{_line(ending.report.decode(errors='replace'), path)}"
    if THREAD in ending.report:
        name = ending.report.rpartition(THREAD)[2].decode(errors="replace")
        raise UserError(f"{where} starts a thread that keeps running ({name})", f"make it a daemon, or {MAIN}")
    raised = ending.report.rpartition(RAISED)[2].decode(errors="replace") if RAISED in ending.report else ""
    if raised:
        raise UserError(f"{where} raises {raised} while it is loaded", f"catch it, or {MAIN}")
    if OVERDUE in ending.report or ending.status == -signal.SIGALRM:
        longer = f"{LIMIT_VARIABLE}={4 * seconds:g} waits longer"
        raise UserError(
            f"{where} is not loaded after {seconds:g} s", f"if it waits or computes there, {MAIN}; {longer}"
        )
    if ending.status < 0:
        name = signal.Signals(-ending.status).name
        memory = ", perhaps for lack of memory" if -ending.status == signal.SIGKILL else ""
        hint = f"`python {path}` may show why; if the op does not need it, {MAIN}"
        raise UserError(f"{where} crashes the process that loads it ({name}{memory})", hint)
    raise UserError(
        f"{where} ends the process that loads it with exit status {ending.status}", f"remove that, or {MAIN}"
    )


def _limit() -> float:
    given = os.environ.get(LIMIT_VARIABLE, "")
    with contextlib.suppress(ValueError):
        if not given or 0 < float(given) < float("inf"):
            return float(given or LIMIT_SECONDS)
    raise UserError(
        f"{LIMIT_VARIABLE} must be a number of seconds, got {given}", f"set it to {LIMIT_SECONDS:g}, or unset it"
    )


def _line(report: str, path: Path) -> str:
    """Return the innermost line that was running in the user's file, or else in any file other than this module."""
    found = FRAME.findall(report)
    own = [line for file, line in found if file == str(path)]
    others = [f"{file}, line {line}," for file, line in found if not file.startswith("<") and file != __file__]
    return f", line {own[0]}," if own else f" ({others[0][:-1]})" if others else ""


def _in_child(work: Callable[[int], NoReturn], seconds: float, meanwhile: Callable[[], object]) -> _Ending:
    """Run `work` in a forked process, which gets a descriptor to report to, and return how it ended."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with warnings.catch_warnings():
        # ignores a warning about forking a process with threads: the child uses none of them
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work(writer)
        finally:
            os._exit(1)
    os.close(writer)
    status, report, deadline = None, b"", time.monotonic() + seconds + GRACE_SECONDS
    try:
        meanwhile()
        while status is None:
            select.select([reader], [], [], TICK_SECONDS)
            report += _read(reader)
            ended, result = os.waitpid(child, os.WNOHANG)
            status = os.waitstatus_to_exitcode(result) if ended else None
            if status is None and time.monotonic() > deadline:
                return _Ending(-signal.SIGALRM, report)
        return _Ending(status, report + _read(reader))
    finally:
        os.close(reader)
        _end(child, ended=status is not None)


def _read(reader: int) -> bytes:
    """Return the text that has arrived. At the end of the file, wait a moment for the process to end."""
    try:
        data = os.read(reader, REPORT_BYTES)
    except BlockingIOError:
        return b""
    if not data:
        time.sleep(TICK_SECONDS / 4)
    return data


def _end(child: int, *, ended: bool) -> None:
    """Kill the child's processes, and the child if it still runs."""
    for kill in (os.killpg, os.kill) if not ended else (os.killpg,):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)


def _load(locator: str, seconds: float, report: int) -> NoReturn:
    """Load the op in this process, which does nothing else, report the result, and exit."""
    import torch

    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    sys.stdin, sys.stdout, sys.stderr = (open(null, mode, closefd=False) for mode in ("r", "w", "w"))  # noqa: SIM115
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
    torch.set_num_threads(1)  # the parent's threads do not exist in this process
    leave = os._exit
    os._exit = functools.partial(_leave, report, leave)
    faulthandler.enable(report, all_threads=False)
    faulthandler.dump_traceback_later(seconds, file=report, exit=True)
    try:
        catalog.load(locator)
    except (Exception, SystemExit):  # noqa: BLE001, S110 - the caller loads the file too, and reports it
        pass
    except BaseException as error:  # noqa: BLE001
        os.write(report, RAISED + type(error).__name__.encode())
        leave(1)
    lasting = [one for one in threading.enumerate() if one is not threading.current_thread() and not one.daemon]
    os.write(report, THREAD + lasting[0].name.encode() if lasting else LOADED)
    leave(0)


def _leave(report: int, leave: Callable[[int], NoReturn], status: int = 0) -> NoReturn:
    """Report which line calls os._exit, and exit."""
    caller = sys._getframe(1)  # noqa: SLF001 - there is no public name
    os.write(report, f'File "{caller.f_code.co_filename}", line {caller.f_lineno}\n'.encode())
    leave(status)
