"""`evolve work`: the kernels of a folder are evaluated, and `evolve merge` adds the verdicts to an archive."""

import shutil
from pathlib import Path

import pytest
from bad_kernels import NO_CODE, twice_kernel
from command import TWICE
from commandline import evolve

from archive.records import Evaluation, Merged
from archive.sqlite import open_archive

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, capsys: Capture) -> Path:
    """Return a folder with an archive of two kernels."""
    made = tmp_path / "folder"
    made.mkdir()
    for name, kernel in (("right", twice_kernel()), ("wrong", NO_CODE)):
        (tmp_path / f"{name}.cu").write_text(kernel.text)
        code, _, errors = evolve(capsys, "tell", tmp_path / f"{name}.cu", TWICE, "--archive", tmp_path / "told.db")
        assert code == 0, errors
    shutil.copy(tmp_path / "told.db", made / "told.db")
    return made


@pytest.mark.usefixtures("shared_engine")
def test_every_kernel_of_a_folder_is_evaluated_once_and_merged(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    code, output, errors = evolve(capsys, "work", folder, TWICE, "--device", "emulated")
    assert code == 0, errors
    assert "2 verdicts by this worker" in output
    code, output, _ = evolve(capsys, "work", folder, TWICE, "--device", "emulated")
    assert code == 0
    assert "0 verdicts by this worker" in output
    for _ in range(2):
        code, output, errors = evolve(capsys, "merge", folder, "--archive", tmp_path / "told.db")
        assert code == 0, errors
    store = open_archive(tmp_path / "told.db")
    found = {each.kernel_id: each.passed for each in store.find(Evaluation)}
    assert found == {twice_kernel().id: True, NO_CODE.id: False}
    assert len(store.find(Merged)) == 2


def test_a_folder_that_is_missing_is_named(tmp_path: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "work", tmp_path / "none")
    assert code == 2
    assert "there is no folder" in errors
