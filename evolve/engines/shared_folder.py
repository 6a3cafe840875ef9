"""A folder in which several machines work on one set of kernels: archives with the kernels, claims, and verdicts.

Nothing in it is locked or written twice, because locks of SQLite and of files are unreliable on shared disks. A claim
is a file that only one machine can create. It is a lease: its holder renews the time of the file. A verdict is a file
that is written in one step, and only once. All operations are small shell scripts, so a folder on another machine is
used in the same way through ssh.

    *.db                    archives with the kernels to evaluate; they are copied, never opened here
    claims/KERNEL-DEVICE.N  the Nth claim on a kernel; the others have expired
    verdicts/KERNEL-DEVICE  the verdict on it, as a line of JSON
"""

import contextlib
import hashlib
import os
import random
import secrets
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from archive import ArchiveError
from archive.claims import LEASE_SECONDS, renewed
from archive.records import Evaluation
from archive.soundness import UnsoundError, check_foreign
from archive.sqlite import gathered, open_archive, take
from archive.store import Record, Store
from evolve.engines.messages import Done, decode, encode
from evolve.errors import UserError

LOOK_SECONDS = 1.0  # time for which a listing of the folder is used again
COMMAND_SECONDS = 300.0
EXISTS = 17  # exit status of a script if the file that it should create exists
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
CONNECTION_LOST = 255  # exit status of ssh itself, for example if its server accepts no more connections for now
# seconds before each further attempt: at the first contact, the host may be wrong, and later it may only be busy
FIRST_WAITS, LATER_WAITS = (1.0,), (1.0, 3.0, 10.0, 30.0)

# GNU's find and touch are used; `touch` uses the clock of the machine that holds the disk, so clocks need not agree.
LIST = 'cd "$1" && mkdir -p claims verdicts && touch ".now-$2" && find . -maxdepth 2 -type f -printf "%T@ %s %P\\n"'
READ = 'cat "$1/$2"'
# A file that this process has created already, in an attempt whose connection was lost, is a success.
CREATE = f'cd "$1" && set -C && {{ echo "$3" > "$2"; }} 2> /dev/null || {{ [ -e "$2" ] || exit 1; \
[ "$(cat "$2")" = "$3" ] || exit {EXISTS}; }}'
COMMIT = f'cd "$1" && cat > ".$3" && {{ ln ".$3" "$2" 2> /dev/null; made=$?; rm -f ".$3"; }} && [ $made = 0 ] || {{ \
[ -e "$2" ] && exit {EXISTS}; exit 1; }}'
TOUCH = 'cd "$1" && shift && touch -c -- "$@"'
REMOVE = 'cd "$1" && shift && rm -f -- "$@"'


@dataclass(frozen=True)
class Listing:
    """The files of the folder with their times and sizes, and the time on the machine that holds the disk."""

    files: dict[str, tuple[float, int]]
    now: float

    def claims(self) -> dict[str, tuple[int, float]]:
        """Return the number of the last claim and its age in seconds, for each claimed pair of kernel and device."""
        numbers = defaultdict[str, dict[int, float]](dict)
        for name, (changed, _) in self.files.items():
            folder, _, file = name.partition("/")
            subject, _, number = file.rpartition(".")
            if folder == "claims" and number.isdigit():
                numbers[subject][int(number)] = self.now - changed
        return {subject: max(ages.items()) for subject, ages in numbers.items()}


class Folder:
    """A folder on this machine, or `HOST:FOLDER` on a machine that ssh reaches."""

    def __init__(self, location: str) -> None:
        host, _, path = location.partition(":")
        self.host = host if is_remote(location) else ""
        self.location, self._path = location, path if self.host else location
        if self.host and path.startswith("//"):
            example = path.removeprefix("//").replace("/", ":", 1)
            raise UserError(f"{location} is an address, not a folder", f"write HOST:FOLDER, such as {example}")
        self._token = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._was_reached = False
        if not self.host and not Path(location).is_dir():
            raise UserError(f"there is no folder {location}", "make it, and put an archive with kernels into it")

    def list(self) -> Listing:
        files = {}
        for line in self._run(LIST, self._token).decode(errors="replace").splitlines():
            changed, size, name = line.split(" ", 2)
            files[name] = float(changed), int(size)
        return Listing(files, files[f".now-{self._token}"][0])

    def read(self, name: str) -> bytes:
        return self._run(READ, name)

    def create(self, name: str) -> bool:
        """Create a file that names this process; return False if another process has created it."""
        return self._run_or_exists(CREATE, name, self._token, stdin=b"")

    def commit(self, name: str, content: bytes) -> bool:
        """Write a whole file at once; return False if it exists."""
        return self._run_or_exists(COMMIT, name, self._token, stdin=content)

    def touch(self, names: Collection[str]) -> None:
        if names:
            self._run(TOUCH, *names)

    def remove(self, names: Collection[str]) -> None:
        if names:
            self._run(REMOVE, *names)

    def leave(self) -> None:
        self.remove([f".now-{self._token}"])

    def _run_or_exists(self, script: str, *arguments: str, stdin: bytes) -> bool:
        done = self._done(script, arguments, stdin)
        if done.returncode not in (0, EXISTS):
            self._fail(done)
        return done.returncode == 0

    def _run(self, script: str, *arguments: str) -> bytes:
        done = self._done(script, arguments, b"")
        if done.returncode != 0:
            self._fail(done)
        return done.stdout

    def _done(self, script: str, arguments: Collection[str], stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
        command = ["sh", "-c", script, "sh", self._path, *arguments]
        if not self.host:
            return self._finished(command, stdin)
        command = [*SSH, "--", self.host, shlex.join(command)]
        for seconds in LATER_WAITS if self._was_reached else FIRST_WAITS:
            done = self._finished(command, stdin)
            if done.returncode != CONNECTION_LOST:
                self._was_reached = True
                return done
            time.sleep(random.uniform(1, 2) * seconds)  # many workers may have been refused at the same time
        return self._finished(command, stdin)

    def _finished(self, command: Sequence[str], stdin: bytes) -> "subprocess.CompletedProcess[bytes]":
        try:
            return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=COMMAND_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(
                f"{self.location} cannot be used: {error}", "check the folder, and ssh to its host"
            ) from error

    def _fail(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {done.returncode}"]
        hint = (
            f"`ssh {self.host}` must work without a password" if self.host else "check the folder and your permissions"
        )
        raise UserError(f"{self.location} cannot be used: {lines[-1]}", hint)


class FolderClaims:
    """This process's claims on kernels in a folder.

    `store` is the process's own archive, to which verdicts of other machines are added.
    """

    def __init__(self, folder: Folder, store: Store, lease_seconds: float = LEASE_SECONDS) -> None:
        self._folder, self._store, self._lease_seconds = folder, store, lease_seconds
        self._held: dict[str, str] = {}  # names of claims; key: kernel and device
        self._lock = threading.Lock()  # protects `_held`, whose claims a thread renews
        self._looked, self._listing = 0.0, Listing({}, 0.0)
        self._taken: set[tuple[str, float, int]] = set()  # archives and verdicts that have been added to the store
        self.committed = 0

    def refresh(self) -> int:
        """Add the folder's new records to the store; return their number."""
        listing, before = self._listed(0.0), len(self._taken)
        for name, (changed, size) in listing.files.items():
            if (name, changed, size) in self._taken:
                continue
            if name.endswith(".db") and "/" not in name:
                if not self._take_archive(name):
                    continue  # the file is being written: the next attempt may succeed
            elif name.startswith("verdicts/"):
                self._take_verdict(name)
            else:
                continue
            self._taken.add((name, changed, size))
        return len(self._taken) - before

    def take(self, kernel_id: str, device: str, seen: str = "") -> bool:  # noqa: ARG002 - there is one verdict
        subject = _subject(kernel_id, device)
        listing = self._listed(0.0)
        if f"verdicts/{subject}" in listing.files:
            self._take_verdict(f"verdicts/{subject}")
            return False
        number, age = listing.claims().get(subject, (0, float("inf")))
        if age < self._lease_seconds:
            return False
        name = f"claims/{subject}.{number + 1}"
        if not self._folder.create(name):
            return False
        with self._lock:
            self._held[subject] = name
        return True

    def give_back(self, kernel_id: str, device: str) -> None:
        """Write the store's verdict, if there is one, to the folder, and end the claim."""
        subject = _subject(kernel_id, device)
        found = [one for one in self._store.find(Evaluation, kernels=[kernel_id]) if one.device.key == device]
        if found:
            self.committed += self._folder.commit(f"verdicts/{subject}", encode(Done(found[-1])))
        with self._lock:
            name = self._held.pop(subject, "")
        # A claim with a verdict stays: other machines may see the verdict only later, because disks on a network are
        # cached.
        self._folder.remove([name] if name and not found else [])

    def of_others(self, kernels: Collection[str], device: str) -> frozenset[str]:
        listing = self._listed(LOOK_SECONDS)
        claims = listing.claims()

        def is_held(subject: str) -> bool:
            _, age = claims.get(subject, (0, float("inf")))
            return (
                age < self._lease_seconds and subject not in self._held and f"verdicts/{subject}" not in listing.files
            )

        return frozenset(kernel_id for kernel_id in kernels if is_held(_subject(kernel_id, device)))

    def renew(self) -> None:
        with self._lock:
            names = list(self._held.values())
        self._folder.touch(names)

    def end(self) -> None:
        with self._lock:
            names = list(self._held.values())
            self._held.clear()
        self._folder.remove(names)
        self._folder.leave()

    def _listed(self, most_age: float) -> Listing:
        if time.monotonic() - self._looked >= most_age:
            self._listing = self._folder.list()
            self._looked = time.monotonic()
        return self._listing

    def _take_archive(self, name: str) -> bool:
        try:
            take(self._store, records_of(self._folder, name))
        except ArchiveError:
            return False
        return True

    def _take_verdict(self, name: str) -> None:
        take(self._store, [_verdict(self._folder, name)])


@contextlib.contextmanager
def claims_in(folder: Folder, store: Store) -> Iterator[FolderClaims]:
    """Yield the claims of this process on kernels in a folder. A thread renews them until the end."""
    claims = FolderClaims(folder, store)
    with renewed(claims, UserError):
        yield claims


def gathered_in(folder: Folder) -> list[Record]:
    """Return all records of a folder's archives, and its verdicts. Raises ArchiveError if one of them is not valid."""
    records: list[Record] = []
    names = sorted(folder.list().files)
    folder.leave()
    for name in names:
        if name.endswith(".db") and "/" not in name:
            records += records_of(folder, name)
    return [*records, *(_verdict(folder, name) for name in names if name.startswith("verdicts/"))]


def records_of(folder: Folder, name: str) -> list[Record]:
    """Return the records of an archive in the folder, from a copy. Raises ArchiveError if it cannot be read."""
    with tempfile.TemporaryDirectory(prefix="evolve-copy-") as here:
        copy = Path(here) / "copy.db"
        copy.write_bytes(folder.read(name))
        with closing(open_archive(copy, read_only=True)) as source:
            return gathered(source)


def is_remote(location: str) -> bool:
    """Return whether a folder is given as HOST:FOLDER."""
    host, colon, folder = location.partition(":")
    return bool(host and colon and folder) and "/" not in host


def _subject(kernel_id: str, device: str) -> str:
    return f"{kernel_id}-{hashlib.sha256(device.encode()).hexdigest()[:8]}"


def _verdict(folder: Folder, name: str) -> Evaluation:
    """Return a verdict. Raises ArchiveError if it is damaged or holds impossible records."""
    try:
        message = decode(folder.read(name))
        if isinstance(message, Done):
            check_foreign(message.evaluation, time.time())
            return message.evaluation
    except (ValueError, TypeError, KeyError, AttributeError, UnsoundError) as error:
        raise ArchiveError(f"{folder.location}/{name} is not a verdict: {error}") from error
    raise ArchiveError(f"{folder.location}/{name} is not a verdict")
