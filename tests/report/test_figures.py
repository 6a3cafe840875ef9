"""Figures of the README, drawn only from shipped measurements."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from commandline import evolve
from gpu_records import A100, confirmed, everywhere, simple
from shipping import ship

from archive import measured
from archive.measured import MeasuredKernel
from archive.records import DeviceInfo
from evolve.report.figures import BEGIN, END, NONE_YET, TICK_ROOM, LogAxis
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]
H200 = DeviceInfo("cuda", "NVIDIA H200", "sm_90a", 132, 232_448, driver="13000", torch="2.11")


def found(op: str, median_us: float, device: DeviceInfo = H200) -> MeasuredKernel:
    times = everywhere(catalog.load(op), median_us)
    return MeasuredKernel("k0.cu", simple(op), measured.as_shipped(confirmed(simple(op), times, device)))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text(f"# Title\n\n{BEGIN}\nwhat was here\n{END}\n\nmore\n")
    return tmp_path


def shipping(folder: Path, monkeypatch: pytest.MonkeyPatch, *given: MeasuredKernel) -> None:
    kernels = [simple(op) for op in dict.fromkeys(one.kernel.op for one in given)]
    root = folder / "kernels"
    for kernel in kernels or [simple("softmax")]:
        ship(root, monkeypatch, kernel, found=[one for one in given if one.kernel.op == kernel.op])


def test_the_readme_gets_a_row_per_family(checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    shipping(checkout, monkeypatch, found("softmax", 50.0), found("gelu", 20.0))
    assert evolve(capsys, "figures", "--root", checkout)[0] == 0
    readme = (checkout / "README.md").read_text()
    softmax, gelu = (len(catalog.load(op).gpu) for op in ("softmax", "gelu"))
    assert f"| {catalog.family('softmax')} | 1 | {softmax} | {softmax} | 20% | 20% | 2.00x | 2.00x |" in readme
    assert f"| {catalog.family('gelu')} | 1 | {gelu} | {gelu} | 50% | 50% | 5.00x | 5.00x |" in readme
    assert "PyTorch 2.11, a driver for CUDA 13.0" in readme
    assert readme.startswith("# Title\n")
    assert readme.endswith("\n\nmore\n")


def test_the_picture_is_svg_with_every_family(checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    shipping(checkout, monkeypatch, found("softmax", 50.0), found("gelu", 20.0))
    evolve(capsys, "figures", "--root", checkout)
    drawing = ET.parse(checkout / ".github/figures.svg")
    words = {element.text for element in drawing.iter() if element.text}
    assert {catalog.family("softmax"), catalog.family("gelu"), "all", "20%", "50%", "2.00x", "5.00x"} <= words


def test_a_speedup_is_drawn_as_far_from_pytorch_as_its_inverse() -> None:
    axis = LogAxis(0.1, 12.0)
    assert axis(4.0) - axis(1.0) == pytest.approx(axis(1.0) - axis(0.25))
    assert axis(0.01) == axis(0.1)  # speedups beyond the scale are drawn at its end


def test_ticks_of_the_speedups_leave_room_for_their_labels() -> None:
    axis = LogAxis(0.01, 100.0)
    at = [axis(tick) for tick in axis.ticks]
    assert len(at) > 4
    assert min(b - a for a, b in pairwise(at)) >= TICK_ROOM


def test_each_gpu_has_a_table_and_the_first_a_row_per_family(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shipping(checkout, monkeypatch, found("softmax", 50.0), found("softmax", 25.0, A100))
    evolve(capsys, "figures", "--root", checkout)
    readme = (checkout / "README.md").read_text()
    assert "| NVIDIA H200 | ops |" in readme
    assert "| NVIDIA A100 | ops |" in readme
    assert (readme.count("| softmax |"), readme.count("| all |")) == (1, 2)


def test_a_check_says_whether_the_files_are_current(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shipping(checkout, monkeypatch, found("softmax", 50.0))
    code, _, errors = evolve(capsys, "figures", "--check", "--root", checkout)
    assert (code, "README.md and .github/figures.svg" in errors) == (1, True)
    assert "what was here" in (checkout / "README.md").read_text()
    evolve(capsys, "figures", "--root", checkout)
    assert evolve(capsys, "figures", "--check", "--root", checkout)[0] == 0
    shipping(checkout, monkeypatch, found("softmax", 40.0))
    assert evolve(capsys, "figures", "--check", "--root", checkout)[0] == 1


def test_without_measurements_the_readme_says_so_and_has_no_picture(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    shipping(checkout, monkeypatch, found("softmax", 50.0))
    evolve(capsys, "figures", "--root", checkout)
    (checkout / "kernels/softmax/NVIDIA-H200.json").unlink()
    assert evolve(capsys, "figures", "--root", checkout)[0] == 0
    assert NONE_YET in (checkout / "README.md").read_text()
    assert not (checkout / ".github/figures.svg").exists()


def test_times_at_workloads_that_the_op_has_no_longer_are_left_out(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    given = found("softmax", 50.0)
    old = replace(given.evaluation.measurements[0], workload="rows=1 cols=1 float32")
    verdict = replace(given.evaluation, measurements=(old, *given.evaluation.measurements[1:]))
    shipping(checkout, monkeypatch, replace(given, evaluation=verdict))
    evolve(capsys, "figures", "--root", checkout)
    every = len(catalog.load("softmax").gpu)
    row = f"| {catalog.family('softmax')} | 1 | {every - 1} of {every} |"
    assert row in (checkout / "README.md").read_text()


def test_a_readme_without_a_place_for_figures_is_an_error(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "README.md").write_text("# Title\n")
    code, _, errors = evolve(capsys, "figures", "--root", tmp_path)
    assert (code, BEGIN in errors) == (2, True)


@pytest.mark.usefixtures("shipped_measurements")
def test_the_readme_of_this_checkout_is_current(capsys: Capture) -> None:
    assert evolve(capsys, "figures", "--check")[0] == 0
