"""Turns of the worker processes that share a device: several may check at once, but one that times has it alone.

The turns are locks on files, so a worker that is killed gives its turn back.
"""

import contextlib
import fcntl
from collections.abc import Callable
from pathlib import Path

TOGETHER = ("compile", "run", "check")  # the phases of an evaluation in which others may use the device too


class Turns:
    """One worker's turns. `settle` waits for the device to be idle, `wait` is called before waiting for others."""

    def __init__(self, folder: Path, settle: Callable[[], object], wait: Callable[[], object]) -> None:
        self._device, self._queue = (folder / "device.lock").open("w"), (folder / "queue.lock").open("w")
        self._settle, self._wait = settle, wait
        self._held: bool | None = None  # whether this worker has the device alone; None if it has no turn
        self.always_alone = False  # in every phase, as for a workload that needs most of the memory

    def take(self, phase: str) -> None:
        """Take the turn that a phase needs. In a shared turn, let others that wait go first."""
        alone = self.always_alone or phase not in TOGETHER
        if self._held is alone and (alone or not self._others_wait()):
            return
        self.leave()
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        if not _locked(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._wait()
            fcntl.flock(self._queue, fcntl.LOCK_EX)
        try:
            if not _locked(self._device, kind | fcntl.LOCK_NB):
                self._wait()
                fcntl.flock(self._device, kind)
        finally:
            fcntl.flock(self._queue, fcntl.LOCK_UN)
        self._held = alone

    def leave(self) -> None:
        """Give the turn back, if there is one, when the device has finished this worker's work."""
        if self._held is None:
            return
        with contextlib.suppress(RuntimeError):  # the device has failed, which the evaluation reports
            self._settle()
        fcntl.flock(self._device, fcntl.LOCK_UN)
        self._held = None

    def _others_wait(self) -> bool:
        if not _locked(self._queue, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return True
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False


def _locked(file: object, kind: int) -> bool:
    try:
        fcntl.flock(file, kind)  # type: ignore[arg-type]
    except BlockingIOError:
        return False
    return True
