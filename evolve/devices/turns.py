"""Turns of the worker processes that share a device.

Several may check at the same time, but a process that times uses the device alone. The turns are locks on files, so the
turn of a killed worker is released. All runs on a machine use the same files for one card, so that two runs on one GPU
do not time at once. Work that takes seconds without using the device holds no turn, because every other worker would
have to wait for it.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

# This is not the environment's folder for temporary files, which differs between workers.
EVERYWHERE = Path("/tmp")  # noqa: S108 - the files hold nothing, and are opened without following links
FOR_ALL = 0o777
FILES = ("device.lock", "queue.lock")
# Phases of an evaluation in which other processes may use the device too, and phases that do not use it. The
# sanitizer's processes take turns of their own.
TOGETHER = ("run", "check")
ELSEWHERE = ("compile", "prepare", "sanitize")
FOLDER = "EVOLVE_TURNS"  # the environment variable with the folder of the locks for such processes


class Turns:
    """One worker's turns.

    `settle` waits until the device is idle; `wait` is called before waiting for other processes.
    """

    def __init__(self, folder: Path, settle: Callable[[], object], wait: Callable[[], object]) -> None:
        self._device, self._queue = (_opened(folder / file) for file in FILES)
        self._settle, self._wait = settle, wait
        self._held: bool | None = None  # whether this worker has the device alone; None if it has no turn
        self.always_alone = False  # use the device alone in every phase, because a workload needs most of the memory

    def take(self, phase: str) -> None:
        """Take the turn that a phase needs, if any. Before a shared turn, let waiting processes go first."""
        if phase == "sanitize" or (phase in ELSEWHERE and not self.always_alone):
            self.leave()
            return
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
        """Release the turn, if there is one, when the device has finished this worker's work."""
        if self._held is None:
            return
        with contextlib.suppress(RuntimeError):  # the device has failed, which the evaluation reports
            self._settle()
        fcntl.flock(self._device, fcntl.LOCK_UN)
        self._held = None

    def sleep(self, seconds: float) -> None:
        """Release the turn and wait for other processes. No deadline limits this wait."""
        self.leave()
        self._wait()
        time.sleep(seconds)

    def _others_wait(self) -> bool:
        if not _locked(self._queue, fcntl.LOCK_SH | fcntl.LOCK_NB):
            return True
        fcntl.flock(self._queue, fcntl.LOCK_UN)
        return False


@contextlib.contextmanager
def shared(folder: str) -> Iterator[None]:
    """Hold a shared turn in the body, with the locks in this folder; without a folder that can be read, hold none."""
    turns: Turns | None = None
    with contextlib.suppress(OSError):
        turns = Turns(Path(folder), lambda: None, lambda: None) if folder else None
    if turns:
        turns.take(TOGETHER[0])
    try:
        yield
    finally:
        if turns:
            turns.leave()


def folder_of_card(card: str, own: Path) -> Path:
    """Return the folder of a card's turns, the same in all processes of this machine; `own` if it cannot be used.

    `card` names the card in all processes; it is empty for a device of which each process has its own.
    """
    folder = EVERYWHERE / f"evolve-{card}"
    try:
        if card:
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                folder.chmod(FOR_ALL)
            for file in FILES:
                os.close(_opened(folder / file))
            return folder
    except OSError:  # for example, the folder of another user without permissions for others
        pass
    own.mkdir(exist_ok=True)
    return own


def _opened(file: Path) -> int:
    """Open a file for locks, which another user's process may have created."""
    try:
        return os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        descriptor = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # another user has created the file in the meantime
            os.fchmod(descriptor, 0o666)
        return descriptor


def _locked(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind)
    except BlockingIOError:
        return False
    return True
