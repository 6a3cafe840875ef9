"""Shipping: an archive's confirmed champions become texts and times in a folder, from which every archive starts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import evolve
from records import CPU, GPU, checked, confirmed, failed, kernel, passed, proposal
from shipping import ship as ship_folder

from archive import library, seeds
from archive.kernel import Kernel
from archive.records import Evaluation, Merged
from archive.sqlite import SqliteStore, open_archive
from evolve.export.ship import ship

Capture = pytest.CaptureFixture[str]

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"
PLAIN, FAST = kernel(1), replace(kernel(2), text=kernel(2).text.replace("number 2", "One warp per row, in registers"))
TUNED = FAST.with_knobs({"N": 3})
OTHER_GPU = replace(GPU, name="Another GPU")


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    store = open_archive(tmp_path / "a.db")
    store.append(
        proposal(PLAIN, operator="seed"), proposal(FAST, PLAIN.id, operator="improve"), proposal(TUNED, FAST.id)
    )
    return store


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return ship_folder(tmp_path / "kernels", monkeypatch, PLAIN)


def verdict(of: Kernel, created: float = 1.0, **times: float) -> Evaluation:
    return checked(confirmed(of.id, GPU, created, **times))


def texts(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "softmax").iterdir())


def test_champions_are_written_with_their_texts_and_times(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(PLAIN, **{W: 9.0, V: 40.0}), verdict(FAST, **{W: 20.0, V: 30.0}))
    (champions,) = ship(store, "softmax", folder)
    assert {one.kernel.id for one in champions.kernels} == champions.new == {PLAIN.id, FAST.id}
    assert texts(folder) == ["Some-GPU.json", "k0.cu", "warp_row_registers.cu"]
    assert library.texts("softmax")["warp_row_registers.cu"] == FAST.text


def test_shipped_champions_are_in_the_next_archive(store: SqliteStore, folder: Path, tmp_path: Path) -> None:
    store.append(verdict(FAST, **{W: 20.0, V: 30.0}))
    ship(store, "softmax", folder)
    (found,) = seeds.opened(tmp_path / "new.db").find(Evaluation)
    assert (found.kernel_id, found.device, found.shipped) == (FAST.id, GPU, True)
    assert [m.median_us for m in found.measurements] == [20.0, 30.0]
    (measured,) = seeds.measurements("softmax")
    assert measured.origin is not None
    assert (measured.origin.operator, measured.origin.parents) == ("improve", (PLAIN.id,))


def test_settings_of_one_kernel_share_a_text(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(FAST, **{W: 20.0, V: 30.0}), verdict(TUNED, **{W: 25.0, V: 10.0}))
    ship(store, "softmax", folder)
    assert texts(folder) == ["Some-GPU.json", "k0.cu", "warp_row_registers.cu"]
    assert {one.kernel.id for one in seeds.measurements("softmax")} == {FAST.id, TUNED.id}


def test_kernels_that_win_nowhere_do_not_ship(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(PLAIN, **{W: 90.0}), verdict(FAST, **{W: 20.0}))
    (champions,) = ship(store, "softmax", folder)
    assert [one.kernel.id for one in champions.kernels] == [FAST.id]


def test_unconfirmed_failed_emulated_and_merged_verdicts_do_not_ship(store: SqliteStore, folder: Path) -> None:
    merged = verdict(TUNED, **{W: 1.0})
    store.append(passed(PLAIN.id, GPU, **{W: 1.0}), failed(FAST.id), merged, Merged(merged.id, "softmax"))
    store.append(confirmed(FAST.id, CPU, **{W: 1.0}))
    (champions,) = ship(store, "softmax", folder)
    assert champions.kernels == ()
    (trusted,) = ship(store, "softmax", folder, trust_merged=True)
    assert [one.kernel.id for one in trusted.kernels] == [TUNED.id]


def test_no_text_of_measurements_is_written_for_an_op_without_champions(store: SqliteStore, folder: Path) -> None:
    store.append(passed(FAST.id, GPU, W=1.0))
    ship(store, "softmax", folder)
    assert texts(folder) == ["k0.cu"]


def test_each_gpu_has_a_text_of_its_own(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(FAST, **{W: 20.0}), replace(verdict(PLAIN, **{W: 20.0}), device=OTHER_GPU))
    assert [one.device for one in ship(store, "softmax", folder)] == ["Another GPU", "Some GPU"]
    assert [one.device for one in ship(store, "softmax", folder, part="another")] == ["Another GPU"]
    assert {"Another-GPU.json", "Some-GPU.json"} <= set(texts(folder))


def test_shipping_again_changes_nothing(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(FAST, **{W: 20.0, V: 30.0}))
    ship(store, "softmax", folder)
    before = {path.name: path.read_text() for path in (folder / "softmax").iterdir()}
    (again,) = ship(store, "softmax", folder)
    assert again.new == frozenset()
    assert {path.name: path.read_text() for path in (folder / "softmax").iterdir()} == before


def test_champions_of_other_archives_stay_unless_they_are_beaten(
    store: SqliteStore, folder: Path, tmp_path: Path
) -> None:
    store.append(verdict(FAST, **{W: 20.0, V: 30.0}))
    ship(store, "softmax", folder)
    other = open_archive(tmp_path / "b.db")
    other.append(proposal(PLAIN), verdict(PLAIN, **{W: 9.0}))
    (both,) = ship(other, "softmax", folder)
    assert {one.kernel.id for one in both.kernels} == {PLAIN.id, FAST.id}
    other.append(verdict(PLAIN, 2.0, **{W: 9.0, V: 9.0}))
    (alone,) = ship(other, "softmax", folder)
    assert ([one.kernel.id for one in alone.kernels], set(alone.dropped)) == ([PLAIN.id], {FAST.id})
    assert "warp_row_registers.cu" in texts(folder)


def test_a_shipped_kernel_that_fails_now_is_dropped(store: SqliteStore, folder: Path) -> None:
    store.append(verdict(FAST, **{W: 20.0}), verdict(PLAIN, **{W: 60.0}))
    ship(store, "softmax", folder)
    store.append(failed(FAST.id, created=5.0))
    (champions,) = ship(store, "softmax", folder)
    assert ([one.kernel.id for one in champions.kernels], set(champions.dropped)) == ([PLAIN.id], {FAST.id})


def test_the_command_writes_into_a_folder_and_prints_the_champions(
    store: SqliteStore, folder: Path, capsys: Capture
) -> None:
    store.append(verdict(FAST, **{W: 20.0, V: 30.0}))
    code, output, _ = evolve(capsys, "ship", "softmax", "--into", folder, "--archive", store.path)
    assert code == 0
    assert "softmax  Some GPU" in output
    code, output, _ = evolve(capsys, "ship", "--into", folder, "--archive", store.path, "--json")
    (found,) = json.loads(output)
    assert (found["op"], found["kernels"], found["new"]) == ("softmax", 1, [])


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["softmax"], 1, "no confirmed champion"),
        (["sofmax"], 2, "no op `sofmax`"),
        (["--into", "nowhere"], 2, "nowhere is not a folder"),
    ],
)
def test_an_impossible_request_to_ship_is_explained(
    arguments: list[str], code: int, why: str, store: SqliteStore, folder: Path, capsys: Capture
) -> None:
    into = [] if "--into" in arguments else ["--into", folder]
    found, _, errors = evolve(capsys, "ship", *arguments, *into, "--archive", store.path)
    assert (found, why in errors) == (code, True)


def test_outside_of_a_checkout_the_folder_must_be_named(store: SqliteStore, folder: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "ship", "softmax", "--archive", store.path)
    assert (code, "--into" in errors) == (2, True)
