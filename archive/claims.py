"""Claims of processes on kernels, so that processes that share an archive do not repeat work.

A claim is a lease on one kernel on one device. It ends when it is released, when its process dies, or when it is not
renewed in time. Claims are not records: merging and recovering an archive leaves them out.
"""

import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from archive import ArchiveError

BUSY_SECONDS = 30
LEASE_SECONDS = 90.0  # time without renewal after which a claim ends, also on another machine
RENEWAL_SECONDS = 20.0


class Claims(Protocol):
    """The claims of one process on an archive that others may use as well."""

    def take(self, kernel_id: str, device: str, seen: str = "") -> bool:
        """Claim a kernel unless another process has a claim on it, or a verdict newer than `seen` is in the archive.

        `device` is a DeviceInfo's key; `seen` is the id of the latest evaluation that the caller knows.
        """

    def give_back(self, kernel_id: str, device: str) -> None:
        """End this process's claim on a kernel."""

    def of_others(self, kernels: Collection[str], device: str) -> frozenset[str]:
        """Return those of these kernels on which other processes are working."""


class _Claim(NamedTuple):
    kernel_id: str
    holder: str  # random name of the object that holds the claim
    host: str
    pid: int
    born: str  # time at which the process began, because process ids are reused
    expires: float

    def holds(self, host: str, now: float) -> bool:
        """Return whether the lease is valid and the process may be alive, which is known only on its own host."""
        return self.expires > now and (self.host != host or _born(self.pid) in (self.born, UNKNOWN))


UNKNOWN, DEAD = "", "dead"


class SqliteClaims:
    """Claims in the archive's file. Use `claims_on`, which renews and ends them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._holder, self._host, self._pid = secrets.token_hex(8), _host(), os.getpid()

    def take(self, kernel_id: str, device: str, seen: str = "") -> bool:
        with self._writing() as connection:
            found = connection.execute(
                "SELECT id FROM evaluation_summaries WHERE kernel_id = ? AND device = ? AND in_force = 1",
                (kernel_id, device),
            ).fetchone()
            if (found[0] if found else "") != seen or self._living([kernel_id], device):
                return False
            connection.execute(
                "INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, ?, ?)",
                (kernel_id, device, self._holder, self._host, self._pid, _born(self._pid), time.time() + LEASE_SECONDS),
            )
            return True

    def give_back(self, kernel_id: str, device: str) -> None:
        with self._writing() as connection:
            own = (kernel_id, device, self._holder)
            connection.execute("DELETE FROM claims WHERE kernel_id = ? AND device = ? AND holder = ?", own)

    def of_others(self, kernels: Collection[str], device: str) -> frozenset[str]:
        with self._lock:
            return self._living(kernels, device)

    def renew(self) -> None:
        with self._writing() as connection:
            later = time.time() + LEASE_SECONDS
            connection.execute("UPDATE claims SET expires = ? WHERE holder = ?", (later, self._holder))

    def end(self) -> None:
        """End all claims, and remove those of processes that ended long ago."""
        with self._writing() as connection:
            connection.execute("DELETE FROM claims WHERE holder = ? OR expires < ?", (self._holder, time.time()))

    def _living(self, kernels: Collection[str], device: str) -> frozenset[str]:
        now, wanted = time.time(), set(kernels)
        found = self._connection.execute(
            "SELECT kernel_id, holder, host, pid, born, expires FROM claims WHERE device = ? AND holder <> ?",
            (device, self._holder),
        )
        return frozenset(
            claim.kernel_id
            for claim in map(_Claim._make, found)
            if claim.kernel_id in wanted and claim.holds(self._host, now)
        )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the archive's write lock, so that no other process claims or appends at the same time."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


@contextmanager
def claims_on(path: Path) -> Iterator[SqliteClaims]:
    """Yield the claims of this process on an archive of the current version. A thread renews them until the end."""
    if not path.exists():  # SQLite would create an empty archive
        raise ArchiveError(f"there is no archive at {path} any more: it was deleted or moved while it was in use")
    with closing(sqlite3.connect(path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")  # claims may be lost in a power failure
        claims = SqliteClaims(connection)
        with renewed(claims, sqlite3.Error):
            yield claims


class Leases(Protocol):
    """Claims that expire unless they are renewed."""

    def renew(self) -> None: ...
    def end(self) -> None: ...


@contextmanager
def renewed(leases: Leases, failure: type[Exception]) -> Iterator[None]:
    """Renew leases from a thread, and end them afterwards.

    A `failure`, such as a full disk or a lost connection, is ignored: the next renewal may succeed, and leases that
    cannot be ended expire.
    """
    over = threading.Event()

    def renew() -> None:
        while not over.wait(RENEWAL_SECONDS):
            with suppress(failure):
                leases.renew()

    thread = threading.Thread(target=renew, name="renew claims", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(failure):
            leases.end()


def _host() -> str:
    """Return a name for this machine and its process ids, which containers on one machine do not share."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _born(pid: int) -> str:
    """Return the time at which a process began, in the kernel's ticks; DEAD if it has ended, UNKNOWN if unreadable."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return UNKNOWN if _exists(pid) else DEAD
    except OSError:
        return UNKNOWN
    return DEAD if state in "ZX" else fields[18]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
