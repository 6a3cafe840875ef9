"""Ctrl-C and SIGTERM as one exception, raised once, so that what is being put in order stays in order."""

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENOUGH = 3  # signals after which nothing is put in order any more; the archive is whole at any moment


class Stopped(BaseException):
    """The user, or the system, wants this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@contextlib.contextmanager
def raising_stopped() -> Iterator[None]:
    """The first signal raises Stopped in the main thread, the second is passed over, the third ends the process."""
    seen = 0

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal seen
        seen += 1
        if seen >= ENOUGH:
            os._exit(128 + number)
        if seen == 1:
            raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    except Stopped:
        before = dict.fromkeys(SIGNALS, signal.SIG_IGN)  # the interpreter's own end must not be interrupted either
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
