"""What ships with the package was measured on GPUs. Archives of tests hold the shipped kernels without it.

Otherwise what tests count and rank would change with every release. Tests about shipped measurements write their own
(`shipping.py`), or use the fixture `shipped_measurements`.
"""

from collections.abc import Iterator
from importlib.resources.abc import Traversable

import pytest

from archive import library, seeds
from archive.measured import MeasuredKernel

FOLDER, READ = library.folder, seeds.measurements


def measured_elsewhere(op: str, root: Traversable | None = None) -> list[MeasuredKernel]:
    """Return what was measured of an op's kernels, unless these are the package's own."""
    return READ(op, root) if root or library.folder is not FOLDER else []


@pytest.fixture(scope="session", autouse=True)
def no_shipped_measurements() -> Iterator[None]:
    """Leave the package's own measurements out of every archive that this process opens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "measurements", measured_elsewhere)
        yield


@pytest.fixture
def shipped_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the package's own measurements into archives, as for users."""
    monkeypatch.setattr(seeds, "measurements", READ)
