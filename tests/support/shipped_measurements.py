"""Shipped kernels in archives of tests, without their measurements on GPUs.

Shipped measurements would change counts and ranks in tests with every release. Tests about shipped measurements write
their own (`shipping.py`), or use the fixture `shipped_measurements`. Hundreds of tests make an archive, so the kernels
are read only once.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path

import pytest

from archive import library, seeds
from archive.kernel import Kernel
from archive.measured import MeasuredKernel
from archive.rows import rows
from archive.sqlite import IN_MEMORY, SqliteStore

FOLDER, READ, DIGEST, ADD = library.folder, seeds.measurements, library.digest, seeds.add
ALONE = seeds.shipped_alone
DIGEST_ONCE: Callable[[], str] = cache(DIGEST)


def measured_elsewhere(op: str, root: Traversable | None = None) -> list[MeasuredKernel]:
    """Return the measurements of an op's kernels, unless these are the package's own."""
    return READ(op, root) if root or library.folder is not FOLDER else []


def digest() -> str:
    return DIGEST_ONCE() if library.folder is FOLDER else DIGEST()


def filled_each_time(_cache: Path) -> SqliteStore:
    """Return an archive of what ships. The user's copies have the measurements, and must not be replaced."""
    return seeds.opened(IN_MEMORY)


@cache
def seed_rows() -> dict[str, list[tuple[object, ...]]]:
    """Return the rows of the shipped kernels by table, those of the proposals first."""
    found = defaultdict[str, list[tuple[object, ...]]](list)
    now = time.time()
    for op in library.op_names():
        for text in library.texts(op).values():
            for table, row in rows(seeds.proposal(Kernel(text), now)):
                found[table].append(row)
    return found


def add(store: SqliteStore) -> int:
    """Add the shipped kernels to an archive that lacks them, and return the number of new records."""
    if library.folder is not FOLDER or seeds.measurements is READ:
        return ADD(store)
    if store.has_seeds(digest()):
        return 0
    with store.connection:
        new = [
            store.connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({marks(made[0])})", made).rowcount
            for table, made in seed_rows().items()
        ]
    store.note_seeds(digest(), time.time())
    return new[0]


def marks(row: tuple[object, ...]) -> str:
    return ", ".join("?" * len(row))


@pytest.fixture(scope="session", autouse=True)
def no_shipped_measurements() -> Iterator[None]:
    """Leave the package's own measurements out of every archive that this process opens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "measurements", measured_elsewhere)
        patch.setattr(seeds, "add", add)
        patch.setattr(library, "digest", digest)
        patch.setattr(seeds, "shipped_alone", filled_each_time)
        yield


@pytest.fixture
def shipped_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package's own measurements into archives, as for users."""
    monkeypatch.setattr(seeds, "measurements", READ)
