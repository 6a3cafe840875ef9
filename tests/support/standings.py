"""Standings and views of archives that are made for one test."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

from archive.records import DeviceInfo, Evaluation
from archive.rows import Record
from archive.store import SqliteStore, open_archive
from evolve.report import standing as standings
from evolve.report.standing import Standing
from evolve.selection.view import OpView


def archive_of(*records: Record) -> SqliteStore:
    """An archive that holds these records, in a folder of its own."""
    store = open_archive(Path(mkdtemp()) / "archive.db")
    store.append(*records)
    return store


def view(op: str, device: DeviceInfo, *records: Record) -> OpView:
    return OpView(archive_of(*records), op, device)


def standing(
    op: str,
    device: DeviceInfo,
    kernels: Iterable[Record],
    proposals: Iterable[Record],
    evaluations: Iterable[Evaluation],
) -> Standing:
    return standings.standing(archive_of(*kernels, *proposals, *evaluations), op, device)
