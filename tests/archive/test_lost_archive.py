"""An archive whose file disappears while it is in use: nothing is lost, and the error says where the records are."""

import shutil
from pathlib import Path

import pytest
from records import failed, kernel

from archive import ArchiveError
from archive.claims import claims_on
from archive.kernel import Kernel
from archive.records import Evaluation
from archive.sqlite import open_archive
from evolve.wiring import archive_hint

ONE, OTHER, THIRD = kernel(1), kernel(2), kernel(3)


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "replaced"])
def test_the_copy_contains_all_records_and_those_that_were_being_added(tmp_path: Path, *, replaced: bool) -> None:
    path = tmp_path / "archive.db"
    store = open_archive(path)
    store.append(ONE, failed(ONE.id))
    for part in tmp_path.glob("archive.db*"):
        part.unlink()
    if replaced:
        open_archive(path).close()
    with pytest.raises(ArchiveError, match="was deleted or replaced while it was in use") as caught:
        store.append(OTHER)
    with pytest.raises(ArchiveError):  # another record, such as the end of the run
        store.append(THIRD)
    (copy,) = tmp_path.glob("archive-rescued-*.db")
    assert str(copy) in str(caught.value)
    assert f"evolve merge {copy}" in archive_hint(caught.value, "")
    saved = open_archive(copy)
    assert {one.id for one in saved.find(Kernel)} == {ONE.id, OTHER.id, THIRD.id}
    assert len(saved.find(Evaluation)) == 1


def test_an_archive_whose_folder_is_gone_is_saved_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    elsewhere.mkdir()
    store = open_archive(folder / "archive.db")
    store.append(ONE)
    monkeypatch.chdir(elsewhere)
    for part in folder.iterdir():
        part.unlink()
    folder.rmdir()
    with pytest.raises(ArchiveError, match=str(elsewhere)):
        store.append(OTHER)
    assert len(open_archive(next(elsewhere.iterdir())).find(Kernel)) == 2


def test_reading_an_archive_whose_folder_is_gone_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_archive(tmp_path / "folder" / "archive.db")
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(tmp_path / "folder")
    with pytest.raises(ArchiveError, match="was deleted or replaced"):
        store.find(Kernel)


def test_claims_on_an_archive_that_is_gone_do_not_create_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "archive.db"
    with pytest.raises(ArchiveError, match="there is no archive"), claims_on(path):
        pass
    assert not path.exists()


def test_an_archive_that_another_process_writes_is_not_mistaken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "archive.db"
    store, other = open_archive(path), open_archive(path)
    for number in range(20):
        assert (store if number % 2 else other).append(kernel(number)) == 1
