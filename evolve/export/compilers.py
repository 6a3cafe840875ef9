"""Processes that compile kernels for a package: NVRTC gains little from threads.

Nothing waits without a limit: a process that does not answer in time is killed, as is one that ends, and the package
lacks only the cubin on which it worked. Each process has a pipe of its own, because a process that is killed while it
writes to a shared one leaves half a message there, for whose end all others would wait.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any

from evolve.export.template import cubins
from evolve.export.template.calls import MissingError
from evolve.export.template.nvrtc import CompileError, nvrtc

MOST_COMPILED_HERE = 16  # kernels
LIMIT_S = 300.0  # for one kernel; most take less than a second
PR_SET_PDEATHSIG = 1
ENDED = "a process that compiled kernels was ended, perhaps for lack of memory"
Image = Callable[[str, str], bytes]  # the cubin of a text for an architecture
Watch = Callable[[int, int], None]  # called with the number of kernels compiled since the last call, and the total
Text = tuple[str, str]  # a text and the architecture for which to compile it
Jobs = SimpleQueue[tuple[Text, "Future[bytes]"]]


@contextmanager
def compilers(wanted: Iterable[Text], watch: Watch, limit_s: float = LIMIT_S) -> Iterator[Image]:
    """Compile these texts for their architectures in separate processes.

    Yield a function that waits for the cubin of a text and returns it. Cubins in the cache on disk are not compiled
    again. If there are only a few texts, they are compiled in this process, because starting others would take as long.
    """
    new = [one for one in dict.fromkeys(wanted) if cubins.remembered(*one) is None]
    try:
        if len(new) > MOST_COMPILED_HERE:
            nvrtc()
    except MissingError:
        new = []
    if len(new) <= MOST_COMPILED_HERE:
        yield cubins.compiled
        return
    made: dict[Text, Future[bytes]] = {one: Future() for one in new}
    watch(0, len(new))
    jobs: Jobs = SimpleQueue()
    for job in made.items():
        job[1].add_done_callback(lambda _: watch(1, len(new)))
        jobs.put(job)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([cubins.__name__])
    # macOS lacks `sched_getaffinity`
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    ended = Event()
    for _ in range(min(cores or 1, len(new))):
        Thread(target=_work, args=(context, jobs, ended, limit_s), daemon=True).start()
    try:
        yield _Made(made, jobs, limit_s).image
    finally:
        ended.set()


@dataclass(frozen=True)
class _Made:
    """The cubins that are being compiled, and the texts for which no process has begun."""

    futures: Mapping[Text, "Future[bytes]"]
    jobs: Jobs
    limit_s: float
    stopped: Event = field(default_factory=Event)

    def image(self, text: str, arch: str) -> bytes:
        """Return a cubin as soon as it is there. Raise a CompileError if the processes no longer compile."""
        future = self.futures.get((text, arch))
        if future is None:
            return cubins.compiled(text, arch)
        while not future.done() and not self.stopped.is_set():
            waiting = self.jobs.qsize()
            # A kernel is compiled, or a process ended, within one limit; another one passes while a process starts.
            if not wait([future], 2 * self.limit_s).done and self.jobs.qsize() == waiting:
                self.stopped.set()
        if not future.done():
            raise CompileError(f"the processes that compile kernels have not answered for {2 * self.limit_s:g} s")
        return future.result()


@dataclass
class _Compiler:
    """A process that compiles one text after the other."""

    process: ForkServerProcess
    connection: "Connection[Any, Any]"

    @classmethod
    def started(cls, context: ForkServerContext) -> "_Compiler":
        ours, theirs = context.Pipe()
        process = context.Process(target=_compile, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        return cls(process, ours)

    def cubin(self, text: Text, limit_s: float) -> bytes:
        """Return the cubin of a text. Raise a CompileError if the process refuses it, ends or does not answer."""
        try:
            self.connection.send(text)
            if not self.connection.poll(limit_s):
                self.end()
                raise CompileError(f"compiling a kernel took more than {limit_s:g} s")
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            self.end()
            raise CompileError(ENDED) from error
        if isinstance(answer, Exception):
            raise answer
        cubin: bytes = answer
        return cubin

    def end(self) -> None:
        self.process.kill()
        self.connection.close()

    @property
    def is_there(self) -> bool:
        return not self.connection.closed


def _work(context: ForkServerContext, jobs: Jobs, ended: Event, limit_s: float) -> None:
    """Let a process compile texts until none is left, and start another one if it ends."""
    compiler: _Compiler | None = None
    while not ended.is_set():
        try:
            text, future = jobs.get_nowait()
        except Empty:
            break
        try:
            if compiler is None or not compiler.is_there:
                compiler = _Compiler.started(context)
            future.set_result(compiler.cubin(text, limit_s))
        except (EOFError, OSError):  # the fork server ended
            future.set_exception(CompileError(ENDED))
        except Exception as error:  # noqa: BLE001 - whatever it is, the export waits for it
            future.set_exception(error)
    if compiler is not None and compiler.is_there:
        compiler.end()


def _compile(connection: "Connection[Any, Any]") -> None:
    """Compile what arrives until the export ends."""
    _end_with_the_export()
    while True:
        try:
            text = connection.recv()
        except EOFError:
            return
        try:
            connection.send(cubins.compiled(*text))
        except Exception as error:  # noqa: BLE001 - the export raises it
            connection.send(error)


def _end_with_the_export() -> None:
    """Leave Ctrl-C to the export's process, and end this process if the export is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
