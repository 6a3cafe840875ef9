"""Ctrl-C and SIGTERM as one exception, raised once, so that what is being put in order stays in order."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENOUGH = 3  # signals after which nothing is put in order any more; the archive is whole at any moment
TORCH, RETRY_SECONDS = "torch/__init__.py", 0.05


class Stopped(BaseException):
    """The user, or the system, wants this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


_received: list[int] = []


def check() -> None:
    """Raise a stop again that was lost: Python swallows what is raised inside the callbacks of weak references."""
    if _received:
        signal.setitimer(signal.ITIMER_REAL, 0)  # one that waits for its moment must not come on top
        raise Stopped(_received[0])


@contextlib.contextmanager
def raising_stopped() -> Iterator[None]:
    """The first signal raises Stopped in the main thread, the second is passed over, the third ends the process."""
    _received.clear()
    tell_unraisable = sys.unraisablehook

    def tell(unraisable: "sys.UnraisableHookArgs") -> None:
        if unraisable.exc_type is not Stopped:  # nobody needs to read of it: `check` raises it again
            tell_unraisable(unraisable)

    before = {number: signal.signal(number, _stop) for number in SIGNALS}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = tell
    try:
        yield
    except BaseException as error:
        if not _received:
            raise
        before |= dict.fromkeys(SIGNALS, signal.SIG_IGN)  # the interpreter's own end must not be interrupted either
        # Not only Stopped comes of a stop: a module interrupted while it loads makes an ImportError of it, say.
        raise Stopped(_received[0]) from error
    finally:
        if _received:
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = tell_unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    _received.append(number)
    if len(_received) >= ENOUGH:
        os._exit(128 + number)
    if len(_received) == 1:
        _raise(number, frame)


def _raise(_number: int, frame: FrameType | None) -> None:
    """Now, or in a moment."""
    if _loads_torch(frame):
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
    else:
        check()


def _loads_torch(frame: FrameType | None) -> bool:
    """What is raised in there may pass through PyTorch's C++, which ends the process over it."""
    while frame and not (frame.f_code.co_name == "<module>" and frame.f_code.co_filename.endswith(TORCH)):
        frame = frame.f_back
    return frame is not None
