"""A folder of shipped kernels for tests, in place of the package's own."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from archive import library, measured
from archive.kernel import Kernel
from archive.measured import MeasuredKernel


def ship(folder: Path, monkeypatch: pytest.MonkeyPatch, *kernels: Kernel, found: Sequence[MeasuredKernel] = ()) -> Path:
    """Make the package ship these kernels, in files with the names k0.cu, k1.cu ..., and these measurements."""
    for number, kernel in enumerate(kernels):
        own = folder / kernel.op
        own.mkdir(parents=True, exist_ok=True)
        (own / f"k{number}.cu").write_text(kernel.text)
    for name, op in {(measured.file_name(one.evaluation.device), one.kernel.op) for one in found}:
        own_found = [one for one in found if measured.file_name(one.evaluation.device) == name and one.kernel.op == op]
        (folder / op / name).write_text(measured.text(op, own_found))
    monkeypatch.setattr(library, "folder", lambda: folder)
    return folder
