"""Signal handling: Ctrl-C and SIGTERM raise a single exception, once, so that clean-up is not interrupted."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_SIGNALS = 3  # the third signal ends the process at once; the archive is consistent at any moment
TORCH, RETRY_SECONDS = "torch/__init__.py", 0.05


class Stopped(BaseException):
    """Raised when a signal asks the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


_received: list[int] = []


@contextlib.contextmanager
def raising_stopped() -> Iterator[None]:
    """Raise Stopped in the main thread at the first signal, ignore the second, end the process at the third."""
    _received.clear()
    report_unraisable = sys.unraisablehook

    def report(unraisable: "sys.UnraisableHookArgs") -> None:
        if unraisable.exc_type is not Stopped:  # `check` raises Stopped again
            report_unraisable(unraisable)

    before = {number: signal.signal(number, _handle) for number in SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = report
    try:
        with as_stopped():
            yield
    finally:
        if _received:
            # the interpreter's shutdown must not be interrupted either
            before |= dict.fromkeys(SIGNALS, signal.SIG_IGN)
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def as_stopped() -> Iterator[None]:
    """Raise Stopped in place of any other error if a signal has arrived.

    A signal can surface as another error: as an ImportError from an interrupted import, or as Ray's error about a
    message that it could not pack.
    """
    try:
        yield
    except BaseException as error:
        if not _received or isinstance(error, Stopped):
            raise
        raise Stopped(_received[0]) from error


def check() -> None:
    """Raise Stopped if a signal has arrived: Python suppresses exceptions raised in weak reference callbacks."""
    if _received:
        signal.setitimer(signal.ITIMER_REAL, 0)  # cancel a postponed Stopped
        raise Stopped(_received[0])


def _handle(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) >= MOST_SIGNALS:
        os._exit(128 + number)
    if len(_received) == 1:
        _raise(number, frame)


def _raise(_number: int, frame: FrameType | None) -> None:
    """Raise Stopped now, or try again shortly if PyTorch is being imported."""
    if _loads_torch(frame):
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    else:
        check()


def _loads_torch(frame: FrameType | None) -> bool:
    """Return whether PyTorch is being imported.

    An exception raised during the import may pass through C++ code, which would abort.
    """
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_code.co_filename.endswith(TORCH)):
        frame = frame.f_back
    return frame is not None
