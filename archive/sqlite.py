"""SQLite store: an archive in one file, append-only, readable while a run writes."""

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from archive import ArchiveError, contenders, queries, rows, schema
from archive.kernel import Kernel, Proposal
from archive.plan import PlanError
from archive.records import Evaluation, Leg, Merged, Profile, Standard
from archive.rows import DamagedError
from archive.runs import AskedQuestion, Run
from archive.schema import SchemaError
from archive.soundness import UnsoundError, check_foreign
from archive.store import Filters, R, Record, Store
from archive.summaries import EvaluationSummary, KernelSummary, ProposalSummary

IN_MEMORY = Path(":memory:")
BUSY_SECONDS = 30
BRIEFLY_SECONDS = 0.1  # time for which writing derived data, which can be computed again, waits for other writers
LOST, SAVED = "the archive {path} was deleted or replaced while it was in use", "all its records are saved in "
File = tuple[int, int]
# phrases in SQLite's messages
DAMAGE = ("no such table", "no such column", "could not decode", "malformed", "not a database")
IN_FORCE = """UPDATE evaluation_summaries SET in_force = (number = (
    SELECT number FROM evaluation_summaries WHERE kernel_id = ? AND device = ?
    ORDER BY created DESC, number DESC LIMIT 1
)) WHERE kernel_id = ? AND device = ?"""
# The newest rows of an op. Rows are never changed or removed, so equal states imply equal records.
STATE = """SELECT (SELECT max(rowid) FROM proposals WHERE op = ?1),
    (SELECT max((SELECT max(number) FROM evaluation_summaries WHERE op = ?1 AND device = d.kind || ' ' || d.name))
     FROM devices d),
    (SELECT max(rowid) FROM runs WHERE op = ?1),
    (SELECT max(l.rowid) FROM runs r JOIN legs l ON l.run = r.id WHERE r.op = ?1)"""
T = TypeVar("T")


@dataclass(frozen=True)
class SqliteStore:
    """An archive file; make one with `open_archive`."""

    connection: sqlite3.Connection
    path: Path
    # the file at the path when it was opened; None for an archive in memory and for one that is only read
    file: File | None = None
    rescued: list[Path] = field(default_factory=list, repr=False, compare=False)  # paths of copies, at most one

    def append(self, *records: Record) -> int:
        try:
            new = self._append(records)
        except sqlite3.OperationalError as error:
            if not self._lost:
                raise
            raise self._rescue(records) from error
        if self._lost:  # SQLite continues to write to a file that was deleted
            raise self._rescue(records)
        return new

    @property
    def _lost(self) -> bool:
        return self.file is not None and _file(self.path) != self.file

    def _append(self, records: Sequence[Record]) -> int:
        with self.connection:
            replaced = set[tuple[str, str]]()  # ops and devices with a new verdict on a contender
            new = sum(self._keep(record, replaced) for record in records)
            for op, device in replaced:
                contenders.gather(self.connection, op, device)
            return new

    def find(self, kind: type[R], op: str = "", **filters: Unpack[Filters]) -> list[R]:
        with self._naming_damage():
            return queries.find(self.connection, kind, op, filters)

    def count(self, kind: type[R], by: str, op: str = "", **filters: Unpack[Filters]) -> dict[str, int]:
        with self._naming_damage():
            return queries.count(self.connection, kind, by, op, filters)

    def derived(self, what: str, op: str, make: Callable[[], object], read: Callable[[Any], T]) -> T:
        with self._naming_damage():
            state = json.dumps(self.connection.execute(STATE, [op]).fetchone())
            query = "SELECT json FROM derived WHERE what = ? AND op = ? AND state = ?"
            kept = self.connection.execute(query, (what, op, state)).fetchone()
        with suppress(ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            if kept:
                return read(json.loads(kept[0]))
        # computed from these records or newer ones; if newer, the state differs and the value is computed again
        made = json.dumps(make())
        self._keep_derived(what, op, state, made)
        return read(json.loads(made))

    def _keep_derived(self, *row: str) -> None:
        """Store derived values for later commands, unless the file cannot be written at the moment."""
        existing = f"file:{quote(str(self.path.absolute()))}?mode=rw"
        with suppress(sqlite3.Error), closing(sqlite3.connect(existing, BRIEFLY_SECONDS, uri=True)) as file, file:
            file.execute("INSERT OR REPLACE INTO derived VALUES (?, ?, ?, ?)", row)

    def ops(self, kind: type[R]) -> list[str]:
        with self._naming_damage():
            return queries.ops(self.connection, kind)

    def has_seeds(self, digest: str) -> bool:
        """Return whether the kernels and verdicts of the package with this digest have been added."""
        with self._naming_damage():
            return bool(self.connection.execute("SELECT 1 FROM seeded WHERE digest = ?", [digest]).fetchone())

    def note_seeds(self, digest: str, added: float) -> None:
        with self.connection:
            self.connection.execute("INSERT OR IGNORE INTO seeded VALUES (?, ?)", (digest, added))

    def close(self) -> None:
        self.connection.close()

    def _rescue(self, records: Sequence[Record]) -> ArchiveError:
        """Copy the archive, which is no longer at its path, to a folder with enough space, and add these records."""
        for folder in (self.path.parent, Path.cwd(), Path(tempfile.gettempdir())):
            copy = self.rescued[0] if self.rescued else folder / f"{self.path.stem}-rescued-{os.getpid()}.db"
            with suppress(sqlite3.Error, OSError, ArchiveError):
                if not self.rescued:
                    with closing(sqlite3.connect(copy)) as target:
                        self.connection.backup(target)
                with closing(open_archive(copy)) as saved:
                    saved.append(*records)
                self.rescued[:] = [copy]
                break
        where = f"{SAVED}{self.rescued[0]}" if self.rescued else "its records could not be saved"
        return ArchiveError(f"{LOST.format(path=self.path)}; {where}")

    def _keep(self, record: Record, replaced: set[tuple[str, str]]) -> int:
        """Insert the rows of a record, and return 1 if it was new.

        The op and the device are added to `replaced` if the contenders must be found again.
        """
        new = 0
        for index, (table, row) in enumerate(rows.rows(record)):
            marks = ", ".join("?" * len(row))
            cursor = self.connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608
            new += cursor.rowcount if index == 0 else 0
        if new and isinstance(record, Evaluation):
            self.connection.execute(IN_FORCE, (record.kernel_id, record.device.key) * 2)
            of = record.op, record.device.key
            if of not in replaced and contenders.follow(self.connection, record.id, of, record.kernel_id):
                replaced.add(of)
        return new

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        try:
            yield
        except DamagedError as error:
            raise ArchiveError(f"the archive {self.path} is damaged: {error}") from error
        except sqlite3.DatabaseError as error:
            if self._lost:
                raise self._rescue(()) from error
            if not any(words in str(error).lower() for words in DAMAGE):
                raise
            raise ArchiveError(f"the archive {self.path} is damaged: {error}") from error


def open_archive(path: Path, *, read_only: bool = False) -> SqliteStore:
    """Open an archive, or create it. An older archive is migrated first, even if it is opened read-only."""
    try:
        if read_only:
            return SqliteStore(_reader(path), path)
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
        if schema.version_of(connection, path) < len(schema.MIGRATIONS):
            schema.migrate(connection, path)
        connection.execute("PRAGMA journal_mode = WAL")
        # A killed process loses nothing. If the whole machine fails, the last records may be missing. Waiting for
        # the disk after each record would limit a run to a hundred evaluations per second.
        connection.execute("PRAGMA synchronous = NORMAL")
    except SchemaError as error:
        raise ArchiveError(str(error)) from error
    except (sqlite3.Error, OSError) as error:
        raise ArchiveError(f"cannot open the archive {path}: {error}") from error
    return SqliteStore(connection, path, _file(path))


def copied_into_memory(path: Path) -> SqliteStore:
    """Return an archive in memory with the contents of a file that `copy_to` has written."""
    store = open_archive(IN_MEMORY)
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as source:
        source.backup(store.connection)
    return store


def copy_to(store: SqliteStore, path: Path) -> None:
    """Write an archive to a file, which appears at once and complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")
    try:
        with closing(sqlite3.connect(part)) as copy:
            store.connection.backup(copy)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _file(path: Path) -> File | None:
    """Return values that identify the file at a path."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def gathered(source: SqliteStore, into: Store | None = None) -> list[Record]:
    """Return the records of an archive, to be merged into another. Raises ArchiveError if one is not valid.

    Verdicts that ship with the package are left out, because every archive has those of its own package. Kernels,
    proposals and verdicts that `into` has are not read, because they would not be added.
    """
    proposals = source.find(Proposal, **_lacking(into, source, ProposalSummary))
    proposed: list[Record] = [*source.find(Run), *source.find(Leg), *proposals, *source.find(AskedQuestion)]
    evaluations = source.find(Evaluation, **_lacking(into, source, EvaluationSummary, shipped=False))
    found: list[Record] = [*evaluations, *source.find(Profile), *source.find(Standard)]
    records: list[Record] = [*source.find(Kernel, **_lacking(into, source, KernelSummary)), *proposed, *found]
    now = time.time()
    for record in records:
        try:
            check_foreign(record, now)
        except (UnsoundError, PlanError) as error:
            what = f"{type(record).__name__.lower()} {record.id[:40]}"
            raise ArchiveError(f"the archive {source.path} cannot be merged: {what}: {error}") from error
    return records


def _lacking(into: Store | None, source: SqliteStore, summary: Any, **filters: Unpack[Filters]) -> Filters:
    """Return the filters for records that `into` lacks, given the kind of their summaries."""
    if into is None:
        return filters
    ids = {one.id for one in source.find(summary, **filters)}
    return {"ids": ids - {one.id for one in into.find(summary, ids=ids)}}


def take(into: Store, records: Sequence[Record]) -> int:
    """Add another archive's records, all or none, mark new evaluations as merged, and return the number of new ones."""
    evaluations = [record for record in records if isinstance(record, Evaluation)]
    known = {found.id for found in into.find(EvaluationSummary, ids=[one.id for one in evaluations])}
    foreign = [evaluation for evaluation in evaluations if evaluation.id not in known]
    return into.append(*records, *(Merged(evaluation.id, evaluation.op) for evaluation in foreign)) - len(foreign)


def merge(into: Store, source: SqliteStore) -> int:
    """Add every record of one archive to another, and return the number of new ones."""
    return take(into, gathered(source, into))


def _reader(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise ArchiveError(f"there is no archive at {path}")
    # On a read-only file system SQLite cannot create its shared-memory file, and no process can write.
    immutable = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro{immutable}", uri=True, timeout=BUSY_SECONDS
    )
    if schema.version_of(connection, path) < len(schema.MIGRATIONS):
        connection.close()
        open_archive(path).close()
        return _reader(path)
    return connection
