"""Seeds: the kernels and verdicts that ship with the package, added to every archive without changing its records.

A digest of the added files is kept in the archive, so that opening the archive again takes only a comparison. Kernels
and verdicts of a later version of the package are added to the existing ones. A shipped verdict is left out if the
archive has its own verdict on the same kernel and device, because the latest verdict counts.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.resources.abc import Traversable
from pathlib import Path

from archive import ArchiveError, library, measured
from archive.kernel import Kernel, Proposal
from archive.measured import MeasuredError, MeasuredKernel
from archive.records import SHIPPED, Evaluation, content_id
from archive.sqlite import IN_MEMORY, SqliteStore, copied_into_memory, copy_to, open_archive
from archive.summaries import EvaluationSummary

OPERATOR = "seed"
OLD_SECONDS = 7 * 24 * 3600.0  # age at which a copy of another version is removed


def proposal(kernel: Kernel, created: float) -> Proposal:
    """Return the proposal of a shipped kernel. Its id does not depend on the time."""
    return Proposal(kernel.op, OPERATOR, SHIPPED, kernel, created=created)


def kernels(op: str) -> list[Kernel]:
    """Return the op's shipped kernels, followed by those with other knobs that were measured."""
    shipped = library.shipped(op)
    return list({one.id: one for one in (*shipped, *(found.kernel for found in measurements(op)))}.values())


def measurements(op: str, root: Traversable | None = None) -> list[MeasuredKernel]:
    """Return the measurements of an op's shipped kernels, by device; `root` is another folder of kernels."""
    # Shipped texts are canonical, so that they need no parsing, which would take most of the time.
    texts = {name: Kernel(text) for name, text in library.texts(op, root=root).items()}
    files = library.texts(op, library.MEASURED, root).items()
    try:
        return [one for name, text in files for one in measured.read(f"{op}/{name}", text, texts)]
    except MeasuredError as error:
        raise ArchiveError(f"the shipped kernels cannot be read: {error}") from error


def opened(path: Path, *, read_only: bool = False) -> SqliteStore:
    """Open an archive and add the shipped kernels and verdicts, unless the archive cannot be written."""
    store = open_archive(path, read_only=read_only)
    if not read_only:
        add(store)
    elif not store.has_seeds(library.digest()):
        with suppress(ArchiveError, sqlite3.OperationalError), closing(open_archive(path)) as writable:
            add(writable)
    return store


def shipped_alone(cache: Path) -> SqliteStore:
    """Return an archive in memory with only the shipped kernels and verdicts.

    A copy is kept in the folder `cache`, because filling an archive takes most of a second. The name of the copy is a
    hash of all that it depends on.
    """
    digest = library.digest()
    code = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    copy = cache / f"{content_id([digest, hashlib.sha256(code).hexdigest()])}.db"
    with suppress(sqlite3.Error, OSError, ArchiveError):
        if copy.exists() and (found := copied_into_memory(copy)).has_seeds(digest):
            return found
    store = open_archive(IN_MEMORY)
    add(store)
    with suppress(sqlite3.Error, OSError):  # without a copy, the next process fills its archive again
        copy_to(store, copy)
        for old in cache.glob("*.db"):
            if old.stat().st_mtime < time.time() - OLD_SECONDS:
                old.unlink()
    return store


def add(store: SqliteStore) -> int:
    """Add the shipped kernels and verdicts to an archive that lacks them, and return the number of new records."""
    digest = library.digest()
    if store.has_seeds(digest):
        return 0
    new = store.append(*_records(store, time.time()))
    store.note_seeds(digest, time.time())
    return new


def _records(store: SqliteStore, now: float) -> Iterator[Proposal | Evaluation]:
    found = {op: measurements(op) for op in library.op_names()}
    measured_ids = [one.kernel.id for of_op in found.values() for one in of_op]
    theirs = store.find(EvaluationSummary, kernels=measured_ids, shipped=False) if measured_ids else []
    judged = {(one.kernel_id, one.device) for one in theirs}
    for op, of_op in found.items():
        yield from (proposal(Kernel(text), now) for text in library.texts(op).values())
        for one in of_op:
            yield proposal(one.kernel, now)
            own = (one.kernel.id, one.evaluation.device.key) in judged
            yield from (record for record in one.records() if not (own and isinstance(record, Evaluation)))
