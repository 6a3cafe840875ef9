"""The archive on disk: one SQLite file in WAL mode, append-only, readable while a run writes.

Every record has a content id, so appending is idempotent and merging two archives is a set union.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from archive import reading, rows
from archive.kernel import Kernel
from archive.migrations import MIGRATIONS
from archive.plan import PlanError
from archive.proposals import Asked, Leg, Proposal, Run
from archive.reading import DamagedError
from archive.records import Evaluation, Merged, Profile, Standard
from archive.rows import Record
from archive.soundness import UnsoundError, check_foreign

APPLICATION_ID = 0x45564F4C  # "EVOL": tells our files from other people's SQLite files
BUSY_SECONDS = 30
DAMAGE = ("no such table", "no such column", "could not decode", "malformed", "not a database")  # in SQLite's words
R = TypeVar("R", Kernel, Proposal, Asked, Evaluation, Merged, Profile, Standard, Run, Leg)


class ArchiveError(Exception):
    """The file is no archive of ours, cannot be opened, or holds what no archive can."""


class Store(Protocol):
    """What everyone else may ask of an archive."""

    def append(self, *records: Record) -> int:
        """Keep the records, all or none of them; the number that were new."""

    def find(self, kind: type[R], op: str = "") -> list[R]:
        """Every record of a kind, of one op or of all, oldest first."""


@dataclass(frozen=True)
class SqliteStore:
    """An archive file; make one with `open_archive`."""

    connection: sqlite3.Connection
    path: Path
    _known: dict[str, Evaluation] = field(default_factory=dict, repr=False, compare=False)  # read before, by id

    def append(self, *records: Record) -> int:
        new = 0
        with self.connection:
            for record in records:
                for index, (table, row) in enumerate(rows.rows(record)):
                    marks = ", ".join("?" * len(row))
                    cursor = self.connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608
                    new += cursor.rowcount if index == 0 else 0
        return new

    def find(self, kind: type[R], op: str = "") -> list[R]:
        readers: dict[type, Callable[[sqlite3.Connection, str], list[Any]]] = {
            Kernel: reading.kernels,
            Proposal: reading.proposals,
            Evaluation: partial(reading.evaluations, known=self._known),
            Run: reading.runs,
            Leg: reading.legs,
            Asked: reading.asked,
            Profile: reading.profiles,
            Standard: reading.standards,
            Merged: reading.merged,
        }
        try:
            return readers[kind](self.connection, op)
        except DamagedError as error:
            raise ArchiveError(f"the archive {self.path} is damaged: {error}") from error
        except sqlite3.DatabaseError as error:
            if not any(words in str(error).lower() for words in DAMAGE):
                raise
            raise ArchiveError(f"the archive {self.path} is damaged: {error}") from error

    def close(self) -> None:
        self.connection.close()


def open_archive(path: Path, *, read_only: bool = False) -> SqliteStore:
    """Open an archive, or make it. An older one is brought up to date, also when it is only read afterwards."""
    try:
        if read_only:
            return SqliteStore(_reader(path), path)
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS)
        if _version(connection, path) < len(MIGRATIONS):
            _migrate(connection)
        connection.execute("PRAGMA journal_mode = WAL")
    except (sqlite3.Error, OSError) as error:
        raise ArchiveError(f"cannot open the archive {path}: {error}") from error
    return SqliteStore(connection, path)


def gathered(source: SqliteStore) -> list[Record]:
    """Everything an archive knows, for another that shall take it in: all of it is sound, or it is an ArchiveError."""
    proposed: list[Record] = [*source.find(Run), *source.find(Leg), *source.find(Proposal), *source.find(Asked)]
    found: list[Record] = [*source.find(Evaluation), *source.find(Profile), *source.find(Standard)]
    records: list[Record] = [*source.find(Kernel), *proposed, *found]
    now = time.time()
    for record in records:
        try:
            check_foreign(record, now)
        except (UnsoundError, PlanError) as error:
            what = f"{type(record).__name__.lower()} {record.id[:40]}"
            raise ArchiveError(f"the archive {source.path} cannot be merged: {what}: {error}") from error
    return records


def take(into: Store, records: Sequence[Record]) -> int:
    """Keep what another archive knows, all or nothing; the number that were new. New verdicts are marked as merged."""
    known = {evaluation.id for evaluation in into.find(Evaluation)}
    foreign = [record for record in records if isinstance(record, Evaluation) and record.id not in known]
    return into.append(*records, *(Merged(evaluation.id, evaluation.op) for evaluation in foreign)) - len(foreign)


def merge(into: Store, source: SqliteStore) -> int:
    """Add everything one archive knows to another; the number of records that were new."""
    return take(into, gathered(source))


def _reader(path: Path) -> sqlite3.Connection:
    if not path.exists():
        raise ArchiveError(f"there is no archive at {path}")
    # On a read-only file system nobody writes, and SQLite could not make its shared-memory file there.
    immutable = "" if os.access(path.parent, os.W_OK) else "&immutable=1"
    connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?mode=ro{immutable}", uri=True, timeout=BUSY_SECONDS
    )
    if _version(connection, path) < len(MIGRATIONS):
        connection.close()
        open_archive(path).close()
        return _reader(path)
    return connection


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables and owner != APPLICATION_ID:
        raise ArchiveError(f"{path} is a database, but not an archive of kernels")
    if version > len(MIGRATIONS):
        raise ArchiveError(
            f"{path} was written by a newer version of evolve (schema {version}); update evolve to read it"
        )
    return version


def _migrate(connection: sqlite3.Connection) -> None:
    """Every step in one transaction: an archive is never seen half-way between two versions."""
    connection.isolation_level = None
    connection.execute("BEGIN IMMEDIATE")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for step in MIGRATIONS[version:]:
        for statement in step:
            connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    connection.execute("COMMIT")
    connection.isolation_level = "DEFERRED"
