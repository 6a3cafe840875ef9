"""Running processes, read from /proc."""

import contextlib
import time
from pathlib import Path


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> set[int]:
    """Return the processes that any of the process's threads has started."""
    found = set[int]()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found.update(map(int, (thread / "children").read_text().split()))
    return found


def descendants(pid: int) -> set[int]:
    found = children(pid)
    return found.union(*map(descendants, found))


def all_gone(pids: set[int], seconds: float = 30.0) -> bool:
    """Wait until none of the processes is alive; return whether this happened in time."""
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))
