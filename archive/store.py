"""Archive store: one SQLite file, append-only, readable while a run writes; and the steps of its schema."""

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

from archive import rows
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.proposals import AskedQuestion, Leg, Proposal, Run
from archive.records import Evaluation, Merged, Profile, Standard
from archive.rows import DamagedError, Record
from archive.soundness import UnsoundError, check_foreign

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE kernels (id TEXT PRIMARY KEY, op TEXT NOT NULL, text TEXT NOT NULL)",
        """CREATE TABLE proposals (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, operator TEXT NOT NULL, proposer TEXT NOT NULL,
            kernel_id TEXT NOT NULL, parents TEXT NOT NULL, run TEXT NOT NULL, reply TEXT NOT NULL,
            failure TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
            seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE devices (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, arch TEXT NOT NULL, sms INTEGER NOT NULL,
            shared_bytes INTEGER NOT NULL, l2_bytes INTEGER NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL,
            copy_gb_s REAL NOT NULL, tflops TEXT NOT NULL)""",
        """CREATE TABLE evaluations (
            id TEXT PRIMARY KEY, kernel_id TEXT NOT NULL, op TEXT NOT NULL, device_id TEXT NOT NULL,
            outcome TEXT NOT NULL, log TEXT NOT NULL, skipped TEXT NOT NULL, deterministic INTEGER,
            resources TEXT NOT NULL, seed INTEGER NOT NULL, seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE measurements (
            evaluation_id TEXT NOT NULL, workload TEXT NOT NULL, median_us REAL NOT NULL, low_us REAL NOT NULL,
            high_us REAL NOT NULL, samples INTEGER NOT NULL, eager_us REAL NOT NULL, compile_us REAL, floor_us REAL,
            PRIMARY KEY (evaluation_id, workload))""",
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, device TEXT NOT NULL, proposer TEXT NOT NULL,
            seed INTEGER NOT NULL, created REAL NOT NULL)""",
        "CREATE INDEX proposals_by_kernel ON proposals (kernel_id)",
        "CREATE INDEX evaluations_by_op ON evaluations (op)",
    ),
    (
        "ALTER TABLE measurements ADD COLUMN autotune_us REAL",
        "ALTER TABLE measurements ADD COLUMN graph_us REAL",
        # What was checked, under which conditions, and how it was confirmed, as JSON.
        "ALTER TABLE evaluations ADD COLUMN checks TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE evaluations ADD COLUMN conditions TEXT",
        "ALTER TABLE evaluations ADD COLUMN confirmed TEXT",
    ),
    (
        "ALTER TABLE proposals ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN usd REAL NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN call TEXT NOT NULL DEFAULT ''",
        # The messages of a question as JSON: pairs of a role and the id of a text, because most texts come again.
        """CREATE TABLE questions (
            proposal_id TEXT PRIMARY KEY, op TEXT NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
            parameters TEXT NOT NULL, messages TEXT NOT NULL)""",
        "CREATE TABLE texts (id TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "ALTER TABLE runs ADD COLUMN strategy TEXT NOT NULL DEFAULT 'evolve'",
        "ALTER TABLE runs ADD COLUMN budget TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE runs ADD COLUMN campaign TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN words TEXT NOT NULL DEFAULT '[]'",
        "CREATE TABLE legs (id TEXT PRIMARY KEY, run TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL)",
        "ALTER TABLE evaluations ADD COLUMN traits TEXT",
        """CREATE TABLE profiles (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, profile TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    (
        """CREATE TABLE standards (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, standard TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    ("CREATE TABLE merged (evaluation_id TEXT PRIMARY KEY, op TEXT NOT NULL)",),
)


APPLICATION_ID = 0x45564F4C  # "EVOL": tells our files from other people's SQLite files
BUSY_SECONDS = 30
DAMAGE = ("no such table", "no such column", "could not decode", "malformed", "not a database")  # in SQLite's words
R = TypeVar("R", Kernel, Proposal, AskedQuestion, Evaluation, Merged, Profile, Standard, Run, Leg)


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
            Kernel: rows.kernels,
            Proposal: rows.proposals,
            Evaluation: partial(rows.evaluations, known=self._known),
            Run: rows.runs,
            Leg: rows.legs,
            AskedQuestion: rows.asked,
            Profile: rows.profiles,
            Standard: rows.standards,
            Merged: rows.merged,
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
    proposed: list[Record] = [*source.find(Run), *source.find(Leg), *source.find(Proposal), *source.find(AskedQuestion)]
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
