"""Export of champions that ship with the package: marked as measured elsewhere until this machine has measured them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import evolve
from gpu_records import A100, H200, confirmed, everywhere, simple
from shipping import ship

from archive import measured, seeds
from archive.measured import MeasuredKernel
from archive.records import Evaluation
from archive.sqlite import SqliteStore
from evolve.export.template import manifest
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]

KERNEL = simple("softmax")
SOFTMAX = catalog.load("softmax")
WON = replace(confirmed(KERNEL, everywhere(SOFTMAX, 50.0)), created=10.0)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on a machine without a GPU; the package ships a champion of softmax, and a kernel of gelu."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVOLVE_ARCHIVE", raising=False)
    monkeypatch.setattr(catalog, "names", lambda: ("gelu", "softmax"))
    found = [MeasuredKernel("k0.cu", KERNEL, measured.as_shipped(WON))]
    ship(tmp_path / "kernels", monkeypatch, KERNEL, simple("gelu"), found=found)
    return tmp_path


def archive(*records: Evaluation) -> SqliteStore:
    store = seeds.opened(Path("own.db"))
    store.append(*records)
    return store


def rows(folder: Path, op: str = "softmax") -> set[tuple[str, bool]]:
    entry = manifest.read(folder / "primitives")[op]
    return {(measured.device, measured.elsewhere) for kernel in entry.kernels for measured in kernel.measured}


def test_every_op_is_exported_on_a_fresh_machine(fresh: Path, capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "export", "--all")
    assert code == 0
    assert "NVIDIA H200*" in output
    assert "measured elsewhere" in output
    assert rows(fresh / "primitives") == {("NVIDIA H200", True)}
    assert manifest.read(fresh / "primitives/primitives")["gelu"].kernels == ()


@pytest.mark.usefixtures("fresh")
def test_the_report_marks_times_from_other_machines(capsys: Capture) -> None:
    report = json.loads(evolve(capsys, "export", "softmax", "--json")[1])
    (op,) = report["ops"]
    assert {win["elsewhere"] for kernel in op["kernels"] for win in kernel["wins"]} == {True}


def test_champions_confirmed_on_this_machine_replace_shipped_ones(fresh: Path, capsys: Capture) -> None:
    path = archive(replace(WON, created=20.0)).path
    assert evolve(capsys, "export", "softmax", "--archive", path)[0] == 0
    assert rows(fresh / "primitives") == {("NVIDIA H200", False)}


def test_shipped_champions_of_another_gpu_stay_beside_those_confirmed_on_this_one(fresh: Path, capsys: Capture) -> None:
    path = archive(replace(WON, device=A100, created=20.0)).path
    assert evolve(capsys, "export", "softmax", "--archive", path)[0] == 0
    assert rows(fresh / "primitives") == {("NVIDIA H200", True), ("NVIDIA A100", False)}


@pytest.mark.usefixtures("fresh")
def test_a_champion_that_loses_here_is_not_exported(capsys: Capture) -> None:
    path = archive(replace(confirmed(KERNEL, everywhere(SOFTMAX, 150.0), H200), created=20.0)).path
    code, _, errors = evolve(capsys, "export", "softmax", "--archive", path)
    assert (code, "no kernel was faster" in errors) == (2, True)


@pytest.mark.usefixtures("fresh")
def test_all_and_names_of_ops_exclude_each_other(capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "export", "softmax", "--all")
    assert (code, "leave out --all" in errors) == (2, True)
