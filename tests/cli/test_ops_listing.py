"""`evolve ops` lists PyTorch's share of the speed of light, and `--measure` measures it, here with a fake engine."""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import bad_kernels
import pytest
from command import TWICE
from commandline import evolve
from fake_engine import FakeEngine, use_as_gpu
from records import GPU, measurement

from archive.records import DeviceInfo, Evaluation, Outcome, Standard
from archive.sqlite import open_archive
from evolve.evaluation.requests import TimingRequest, TimingResult
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]
FLOAT, HALF = "n=1048576 float32", "n=1048576 bfloat16"
H200 = replace(GPU, name="NVIDIA H200", torch="2.11", driver="580")
Answer = Callable[[TimingRequest], TimingResult | None]


def timing(answer: Answer = lambda _request: None) -> FakeEngine:
    """Return an engine on which PyTorch reaches half the speed of light, unless `answer` gives another result."""

    def times(request: TimingRequest) -> TimingResult:
        compile_us = None if request.eager_alone else 20.0
        name = Path(request.op).stem
        standard = Standard(name, request.workload, H200, 40.0, compile_us, None, 10.0, time.time())
        return answer(request) or TimingResult(standard)

    return FakeEngine(info=H200, times=times)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "archive.db"
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


Use = Callable[[FakeEngine], FakeEngine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Use:
    return partial(use_as_gpu, monkeypatch=monkeypatch)


def standards(archive: Path) -> list[Standard]:
    return open_archive(archive).find(Standard)


def known(archive: Path, *, op: str = "twice", best_us: float = 20.0, device: DeviceInfo = H200) -> None:
    """Archive a time of PyTorch for each workload, where the speed of light is 10 us."""
    store = open_archive(archive)
    keys = [workload.key for workload in catalog.load(TWICE if op == "twice" else op).gpu]
    store.append(*(Standard(op, key, device, best_us, None, None, 10.0, 5.0) for key in keys))
    store.close()


def listed(capsys: Capture, *arguments: object) -> str:
    code, output, errors = evolve(capsys, "ops", *arguments)
    assert code == 0, errors
    return output


def facts(capsys: Capture, *arguments: object) -> dict[str, Any]:
    (found,) = json.loads(listed(capsys, *arguments, "--json"))
    assert isinstance(found, dict)
    return found


def test_the_whole_catalog_is_listed_by_family_without_an_archive(archive: Path, capsys: Capture) -> None:
    lines = listed(capsys).splitlines()
    for name in ("softmax", "  softmax_backward", "gelu"):
        assert any(line.startswith(f"{name} ") for line in lines)
    assert any(line.startswith("softmax, ") and "ops" in line for line in lines)
    assert "evolve ops --measure" in lines[-1]
    assert not archive.exists()


@pytest.mark.parametrize("columns", [80, 120])
def test_every_line_fits_and_no_figure_is_cut(
    archive: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    for name in ("softmax", "conv2d_channels_last_backward_weight"):
        known(archive, op=name)
    monkeypatch.setenv("COLUMNS", str(columns))
    for order in ("name", "headroom"):
        lines = listed(capsys, "--by", order).splitlines()
        assert max(map(len, lines)) <= columns
        assert not [line for line in lines if "…" in line.replace("  …_backward", "")]


def test_the_list_shows_pytorchs_share_of_the_speed_of_light_and_the_possible_speedup(
    archive: Path, capsys: Capture
) -> None:
    store = open_archive(archive)
    store.append(
        Standard("twice", FLOAT, H200, 40.0, 20.0, None, 10.0), Standard("twice", HALF, H200, 80.0, None, None, 10.0)
    )
    store.close()
    output = listed(capsys, TWICE)
    assert "speed of light on NVIDIA H200" in output
    (row,) = [line for line in output.splitlines() if line.startswith("twice ")]
    assert row.split() == ["twice", "fp32", "bf16", "2", "0", "25%", "12%", "-", "4.00x"]


def test_times_from_evaluations_and_champions_count_too(archive: Path, capsys: Capture) -> None:
    kernel = bad_kernels.twice_kernel()
    store = open_archive(archive)
    timed = (measurement(FLOAT, 12.5, eager_us=50.0),)
    store.append(kernel, Evaluation(kernel.id, "twice", H200, Outcome.PASSED, "", timed, created=1.0))
    store.close()
    (row,) = [line for line in listed(capsys, TWICE).splitlines() if line.startswith("twice ")]
    assert row.split()[-4:] == ["~20%", "20%", "~80%", "1.25x"]
    first, second = facts(capsys, TWICE)["standing"]
    assert (first["champion"], first["champion_us"], first["measured"]) == (kernel.id, 12.5, "beside a kernel")
    assert (second["workload"], second["eager_us"], second["champion"]) == (HALF, None, None)


def test_ops_can_be_sorted_by_the_possible_speedup(archive: Path, capsys: Capture) -> None:
    for op, best_us in (("gelu", 20.0), ("softmax", 80.0)):
        known(archive, op=op, best_us=best_us)
    names = [line.split()[0] for line in listed(capsys, "--by", "headroom").splitlines()[1:] if line]
    assert names[:2] == ["softmax", "gelu"]
    code, _, errors = evolve(capsys, "ops", "--by", "size")
    assert (code, "choose name or headroom" in errors) == (2, True)


def test_without_times_the_ops_are_sorted_by_family(archive: Path, capsys: Capture) -> None:
    assert "nothing has been measured yet" in listed(capsys, "--by", "headroom")
    assert "nothing has been measured yet" not in listed(capsys)


def test_the_list_can_be_limited_to_a_family(archive: Path, capsys: Capture) -> None:
    found = json.loads(listed(capsys, "--family", "softmax", "--json"))
    assert {one["family"] for one in found} == {"softmax"}
    code, _, errors = evolve(capsys, "ops", "--family", "softmaxes")
    assert code == 2
    assert "normalization" in errors


def test_figures_are_for_the_named_device_or_the_latest_gpu(archive: Path, capsys: Capture) -> None:
    known(archive, best_us=20.0)
    known(archive, best_us=100.0, device=replace(H200, name="Old GPU"))
    assert facts(capsys, TWICE, "--device", "old")["pytorch_share_of_light"] == pytest.approx(0.1)
    assert facts(capsys, TWICE, "--device", "H200")["pytorch_share_of_light"] == pytest.approx(0.5)
    code, _, errors = evolve(capsys, "ops", TWICE, "--device", "B200")
    assert code == 2
    assert "choose one of: NVIDIA H200, Old GPU" in errors


def test_measured_workloads_are_archived_one_by_one_and_then_listed(archive: Path, capsys: Capture, on: Use) -> None:
    kept: list[int] = []

    def look(_request: TimingRequest) -> None:
        kept.append(len(standards(archive)))

    engine = on(timing(look))
    code, output, errors = evolve(capsys, "ops", "--measure", TWICE)
    assert code == 0
    assert engine.timed == [TimingRequest(TWICE, FLOAT), TimingRequest(TWICE, HALF)]
    assert kept == [0, 1]
    assert [one.workload for one in standards(archive)] == [FLOAT, HALF]
    assert "twice: PyTorch at 50% of the speed of light, worst 50% (2 workloads" in errors
    assert any(line.startswith("twice ") and "50%" in line for line in output.splitlines())
    assert engine.closed


def test_only_missing_times_are_measured_unless_again_is_given(archive: Path, capsys: Capture, on: Use) -> None:
    store = open_archive(archive)
    store.append(
        Standard("twice", FLOAT, H200, 20.0, created=0.5),
        Standard("twice", HALF, replace(H200, torch="2.10"), 20.0, created=0.5),
    )
    store.close()
    engine = on(timing())
    listed(capsys, "--measure", TWICE)
    assert engine.timed == [TimingRequest(TWICE, HALF)]
    _, _, errors = evolve(capsys, "ops", "--measure", TWICE)
    assert engine.timed == [TimingRequest(TWICE, HALF)]
    assert "1 op measured earlier" in errors
    listed(capsys, "--measure", "--again", TWICE)
    assert engine.timed[1:] == [TimingRequest(TWICE, FLOAT, again=True), TimingRequest(TWICE, HALF, again=True)]


def test_a_workload_that_does_not_fit_is_named_and_others_are_measured(archive: Path, capsys: Capture, on: Use) -> None:
    too_large = TimingResult(None, "does not fit into memory")
    on(timing(lambda request: too_large if request.workload == FLOAT else None))
    code, output, errors = evolve(capsys, "ops", "--measure", TWICE, "--json")
    assert code == 0
    assert f"    {FLOAT}: does not fit" in errors
    first, second = json.loads(output)[0]["standing"]
    assert first["fault"] == too_large.fault
    assert (second["fault"], second["pytorch_share_of_light"]) == (None, 0.5)


def test_only_eager_is_timed_after_torch_compile_has_lost_a_worker(archive: Path, capsys: Capture, on: Use) -> None:
    hung = TimingResult(None, "baseline took more than 300 s", tainted=True)
    engine = on(timing(lambda request: None if request.eager_alone else hung))
    code, _, errors = evolve(capsys, "ops", "--measure", TWICE)
    assert code == 0
    assert [(one.eager_us, one.compile_us) for one in standards(archive)] == [(40.0, None)] * 2
    assert f"{FLOAT}: eager alone; torch.compile: baseline took more than 300 s" in errors
    assert [request.eager_alone for request in engine.timed] == [False, True, False, True]


def test_after_two_lost_workers_the_other_workloads_are_timed_only_with_eager(
    archive: Path, capsys: Capture, on: Use
) -> None:
    hung = TimingResult(None, "baseline took more than 300 s", tainted=True)
    engine = on(timing(lambda request: None if request.eager_alone else hung))
    _, _, errors = evolve(capsys, "ops", "--measure", "softmax", "gelu")
    tried = [request.workload for request in engine.timed if not request.eager_alone and request.op == "softmax"]
    assert len(tried) == 2
    assert errors.count("eager alone") == len({(request.op, request.workload) for request in engine.timed})


def test_a_stopped_measurement_keeps_its_results(archive: Path, capsys: Capture, on: Use) -> None:
    def stop(request: TimingRequest) -> None:
        if request.workload == HALF:
            signal.raise_signal(signal.SIGINT)

    engine = on(timing(stop))
    code, _, _ = evolve(capsys, "ops", "--measure", TWICE)
    assert code == 130
    assert [one.workload for one in standards(archive)] == [FLOAT]
    assert engine.closed


def test_measuring_needs_a_gpu(archive: Path, capsys: Capture) -> None:
    code, _, errors = evolve(capsys, "ops", "--measure", TWICE, "--device", "emulated")
    assert code == 2
    assert "no speed of light" in errors
    assert "evolve merge FILE" in errors
    assert not archive.exists()


@pytest.mark.parametrize("typed", [["--measure", "--check"], ["--again"]])
def test_options_that_cannot_be_combined_are_rejected(archive: Path, capsys: Capture, typed: list[str]) -> None:
    code, _, _ = evolve(capsys, "ops", TWICE, *typed)
    assert code == 2


@pytest.mark.gpu
def test_measuring_a_gpu_twice_times_it_once(archive: Path, capsys: Capture) -> None:
    evolve(capsys, "ops", "--measure", TWICE)
    found = facts(capsys, TWICE)
    assert 0.1 < found["pytorch_share_of_light"] < 1.2
    _, _, errors = evolve(capsys, "ops", "--measure", TWICE)
    assert "1 op measured earlier" in errors
