"""Recovery of a damaged archive: every record that can still be read is copied into a new one."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from archive import ArchiveError, queries, schema
from archive.kernel import Kernel, Proposal
from archive.records import Evaluation, Leg, Merged, Profile, Standard
from archive.rows import DamagedError, Row
from archive.runs import AskedQuestion, Run
from archive.sqlite import open_archive
from archive.store import Record

KINDS: tuple[type[Record], ...] = (
    Run, Leg, Kernel, Proposal, AskedQuestion, Evaluation, Profile, Standard, Merged,
)  # fmt: skip
# All other tables are derived from these tables.
TABLES = (
    "runs", "legs", "kernels", "proposals", "texts", "questions", "devices", "evaluations", "measurements", "profiles",
    "standards", "merged",
)  # fmt: skip
LAST_ROW = 2**62
MAGIC, HEADER_BYTES = b"SQLite format 3\0", 100
MOST_BYTES = 2**36  # a larger size in the header is damage, and not the size of a truncated archive


@dataclass(frozen=True)
class Recovered:
    """The number of copied records of each kind, and the lost parts."""

    copied: dict[str, int]  # key: name of the kind
    refused: int  # number of records that are not valid
    gaps: tuple[str, ...]  # tables of which some part could not be read


def recover(damaged: Path, into: Path) -> Recovered:
    """Copy the readable records of a damaged archive, which is not changed, into a new archive."""
    if not damaged.is_file():
        raise ArchiveError(f"there is no archive at {damaged}")
    if into.exists():
        raise ArchiveError(f"{into} exists already")
    with closing(sqlite3.connect(":memory:")) as scratch, TemporaryDirectory() as folder:
        gaps = _copy_tables(_padded_copy(damaged, Path(folder)), damaged, scratch)
        records, refused = _valid_records(scratch)
    if not records:
        raise ArchiveError(f"no record can be read from {damaged}")
    with closing(open_archive(into)) as store:
        store.append(*records)
    names = [type(record).__name__ for record in records]
    return Recovered({kind.__name__: names.count(kind.__name__) for kind in KINDS}, refused, gaps)


def _padded_copy(damaged: Path, folder: Path) -> Path:
    """Copy an archive and its journal into a folder; a file that was cut short is extended by empty pages.

    SQLite refuses to read a file that is shorter than its header says.
    """
    copy = folder / "archive.db"
    shutil.copyfile(damaged, copy)
    journal = damaged.with_name(f"{damaged.name}-wal")
    if journal.is_file():
        shutil.copyfile(journal, folder / "archive.db-wal")
    with copy.open("r+b") as file:
        header = file.read(HEADER_BYTES)
        if header.startswith(MAGIC) and len(header) == HEADER_BYTES:
            size, pages = int.from_bytes(header[16:18]), int.from_bytes(header[28:32])
            whole = (65536 if size == 1 else size) * pages  # 1 stands for 65536, which does not fit in two bytes
            if copy.stat().st_size < whole <= MOST_BYTES:
                file.truncate(whole)
    return copy


def _copy_tables(copy: Path, damaged: Path, scratch: sqlite3.Connection) -> tuple[str, ...]:
    """Copy the readable rows into tables of the same version, migrate these tables, and name the gaps."""
    gaps = []
    with closing(sqlite3.connect(copy)) as source:
        source.text_factory = lambda text: text.decode(errors="replace")  # a changed text no longer matches its id
        try:
            version = source.execute("PRAGMA user_version").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise ArchiveError(f"nothing can be read from {damaged}: {error}") from error
        if not 0 < version <= len(schema.MIGRATIONS):
            raise ArchiveError(f"{damaged} is not an archive, or was written by a newer version of evolve")
        for statement in (part for step in schema.MIGRATIONS[:version] for part in step if isinstance(part, str)):
            scratch.execute(statement)
        scratch.execute(f"PRAGMA user_version = {version}")
        for table in TABLES:
            columns = [row[1] for row in scratch.execute(f"PRAGMA table_info({table})")]
            for row in _readable_rows(source, table, columns) if columns else ():
                if row is None:
                    gaps.append(table)
                else:
                    marks = ", ".join("?" * len(row))
                    scratch.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row)  # noqa: S608
    scratch.commit()
    schema.migrate(scratch, damaged)
    return tuple(dict.fromkeys(gaps))


def _readable_rows(source: sqlite3.Connection, table: str, columns: list[str]) -> Iterator[Row | None]:
    """Yield the rows of a table in order, and None where some cannot be read."""
    query = f"SELECT rowid, {', '.join(columns)} FROM {table} NOT INDEXED WHERE rowid >= ? ORDER BY rowid"  # noqa: S608
    start, step = 1, 1
    while start < LAST_ROW:
        try:
            for rowid, *row in source.execute(query, [start]):
                start, step = rowid + 1, 1
                yield tuple(row)
        except sqlite3.DatabaseError:
            if step == 1:
                yield None
            start, step = start + step, 2 * step  # a damaged page holds consecutive rows
        else:
            return


def _valid_records(scratch: sqlite3.Connection) -> tuple[list[Record], int]:
    """Return the records that are valid by themselves, and the number of those that are not."""
    records: list[Record] = []
    refused = 0
    for kind in KINDS:
        try:
            found = queries.find(scratch, kind, "", {})
        except DamagedError:
            found, lost = _one_by_one(scratch, kind)
            refused += lost
        complete = [one for one in found if not _is_incomplete(one)]
        refused += len(found) - len(complete)
        records += complete
    return records, refused


def _one_by_one(scratch: sqlite3.Connection, kind: type[Record]) -> tuple[list[Record], int]:
    source, found, refused = queries.SOURCES[kind], list[Record](), 0
    for row in scratch.execute(f"{source.select} {source.order}").fetchall():
        try:
            found += source.read(scratch, [row])
        except DamagedError:
            refused += 1
    return found, refused


def _is_incomplete(record: Record) -> bool:
    """Return whether a verdict has lost its times. Its kernel then counts as not evaluated."""
    return isinstance(record, Evaluation) and record.passed and not record.measurements
