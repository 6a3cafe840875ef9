"""Standings of archives that are made for one test."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

from archive.records import DeviceInfo, Evaluation
from archive.sqlite import SqliteStore, open_archive
from archive.store import Record
from evolve.report import standing as standings
from evolve.report.standing import Standing


def archive_of(*records: Record) -> SqliteStore:
    """Return a new archive with these records."""
    store = open_archive(Path(mkdtemp()) / "archive.db")
    store.append(*records)
    return store


def standing(
    op: str,
    device: DeviceInfo,
    kernels: Iterable[Record],
    proposals: Iterable[Record],
    evaluations: Iterable[Evaluation],
) -> Standing:
    return standings.standing(archive_of(*kernels, *proposals, *evaluations), op, device)
