"""`evolve verify`: champions are checked and timed again, with a fake engine in place of a GPU."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import BEST, CHILD, COLS, ROWS, WRONG, evolve
from fake_engine import FakeEngine, use_as_gpu
from gpu_records import A100, H200, everywhere, exported, simple
from gpu_records import confirmed as gpu_confirmed
from records import CPU, GPU, confirmed, failed, proposal
from shipping import ship

from archive import measured
from archive.kernel import Kernel
from archive.measured import MeasuredKernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.runs import Run
from archive.sqlite import open_archive
from evolve.devices import choose
from evolve.engines.engine import Job
from reference_ops import catalog

Capture = pytest.CaptureFixture[str]
Verify = Callable[..., tuple[int, Any]]
OTHER_GPU = replace(GPU, name="Another GPU")
THEN = {ROWS: 20.0, COLS: 30.0}


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of a package that ships nothing, with a champion of softmax on a GPU."""
    ship(tmp_path / "kernels", monkeypatch, WRONG)
    monkeypatch.setenv("COLUMNS", "140")
    path = tmp_path / "archive.db"
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    open_archive(path).append(proposal(BEST, operator="seed"), confirmed(BEST.id, GPU, **THEN))
    return path


def giving(
    medians: dict[str, dict[str, float]], info: DeviceInfo = GPU, failing: dict[str, Outcome] | None = None
) -> FakeEngine:
    """Return an engine that measures these medians of each kernel, or gives it an outcome."""

    def judge(job: Job) -> Evaluation:
        now, outcomes = time.time(), failing or {}
        if job.kernel.id in outcomes:
            return replace(failed(job.kernel.id, outcomes[job.kernel.id], now), device=info)
        return replace(confirmed(job.kernel.id, info, now, **medians[job.kernel.id]), op=job.kernel.op)

    return FakeEngine(judge, info)


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Verify:
    def run(engine: FakeEngine, *arguments: object) -> tuple[int, Any]:
        use_as_gpu(engine, monkeypatch)
        if engine.info.kind == CPU.kind:
            monkeypatch.setattr(choose, "device_kind", lambda _requested="": CPU.kind)
        code, output, errors = evolve(capsys, "verify", *arguments, "--json")
        return code, json.loads(output) if output else errors

    return run


def results(found: Any) -> dict[str, str]:
    return {row["workload"] or row["kernel"]: row["result"] for row in found["rows"]}


@pytest.mark.usefixtures("archive")
def test_a_champion_that_wins_again_is_kept(verify: Verify, capsys: Capture) -> None:
    engine = giving({BEST.id: {ROWS: 20.5, COLS: 29.0}})
    code, found = verify(engine, "softmax")
    assert (code, results(found), found["regressions"]) == (0, {ROWS: "wins", COLS: "wins"}, 0)
    assert [kernel.id for kernel in engine.confirmed] == [BEST.id]
    row = found["rows"][0]
    assert (row["before"]["median_us"], row["now"]["median_us"], row["before"]["device"]) == (20.0, 20.5, "Some GPU")


def test_new_verdicts_are_archived(archive: Path, verify: Verify) -> None:
    verify(giving({BEST.id: {ROWS: 25.0, COLS: 29.0}}), "softmax")
    (champion,) = {one.id for one in open_archive(archive).find(Evaluation) if one.created > 2}
    assert champion


@pytest.mark.usefixtures("archive")
def test_a_champion_that_has_become_slower_is_a_regression(verify: Verify) -> None:
    code, found = verify(giving({BEST.id: {ROWS: 30.0, COLS: 29.0}}), "softmax")
    assert (code, results(found)) == (1, {ROWS: "slower", COLS: "wins"})


@pytest.mark.usefixtures("archive")
def test_a_champion_that_no_longer_beats_pytorch_is_a_regression(verify: Verify) -> None:
    engine = giving({BEST.id: THEN})
    judge = engine.judge

    def beside_a_faster_pytorch(job: Job) -> Evaluation:
        verdict = judge(job)
        assert verdict.confirmed
        duels = tuple(replace(one, speedup=0.9, low=0.8, high=1.0) for one in verdict.confirmed.duels)
        return replace(verdict, confirmed=replace(verdict.confirmed, duels=duels))

    engine.judge = beside_a_faster_pytorch
    code, found = verify(engine, "softmax")
    assert (code, set(results(found).values())) == (1, {"no longer wins"})


@pytest.mark.usefixtures("archive")
def test_a_wrong_result_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use_as_gpu(giving({}, failing={BEST.id: Outcome.WRONG}), monkeypatch)
    code, output, _ = evolve(capsys, "verify", "softmax")
    assert code == 1
    assert f"softmax {BEST.id[:8]}: wrong: it is wrong" in output
    assert "2 workloads on Some GPU: 2 failed" in output


@pytest.mark.usefixtures("archive")
def test_the_table_shows_old_and_new_times(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use_as_gpu(giving({BEST.id: {ROWS: 30.0, COLS: 29.0}}), monkeypatch)
    code, output, _ = evolve(capsys, "verify", "softmax")
    (row,) = [line.split() for line in output.splitlines() if ROWS in line]
    assert (code, row[-6:]) == (1, ["20.0", "30.0", "5.00x", "3.33x", "33%", "slower"])
    assert "2 workloads on Some GPU: 1 won by a kernel and 1 slower than before" in output


@pytest.mark.usefixtures("archive")
def test_on_another_gpu_a_lost_champion_is_left_to_pytorch_without_a_regression(verify: Verify) -> None:
    engine = giving({BEST.id: {ROWS: 120.0, COLS: 29.0}}, OTHER_GPU)
    code, found = verify(engine, "softmax")
    assert (code, results(found)) == (0, {ROWS: "PyTorch", COLS: "wins"})
    assert found["rows"][0]["before"]["device"] == "Some GPU"


@pytest.mark.usefixtures("archive")
def test_a_gpu_that_cannot_run_a_kernel_is_not_a_regression(verify: Verify) -> None:
    code, found = verify(giving({}, OTHER_GPU, {BEST.id: Outcome.UNSUPPORTED}), "softmax")
    assert (code, set(results(found).values())) == (0, {"refused"})


@pytest.mark.usefixtures("archive")
def test_a_workload_that_is_not_reached_in_time_is_named_and_no_regression(verify: Verify) -> None:
    engine = giving({BEST.id: THEN})
    code, found = verify(engine, "softmax", "--minutes", "1e-9")
    assert (code, set(results(found).values()), engine.jobs) == (0, {"not reached"}, [])


@pytest.mark.usefixtures("archive")
def test_a_device_without_gpu_times_checks_and_says_that_it_cannot_time(
    verify: Verify, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    code, found = verify(giving({BEST.id: {"rows=2 cols=3 float32": 9.0}}, CPU), "softmax")
    assert (code, found["timed"], results(found)) == (0, False, {BEST.id: "checked"})
    assert "checked, not timed" in evolve(capsys, "verify", "softmax")[1]


@pytest.mark.usefixtures("archive")
def test_a_device_without_gpu_times_finds_wrong_results(verify: Verify) -> None:
    code, found = verify(giving({}, CPU, {BEST.id: Outcome.WRONG}), "softmax")
    assert (code, results(found)) == (1, {BEST.id: "failed"})


@pytest.mark.usefixtures("archive")
def test_a_device_without_gpu_times_does_not_tune(verify: Verify) -> None:
    code, errors = verify(giving({}, CPU), "softmax", "--retune")
    assert (code, "leave out --retune" in errors) == (2, True)


def test_retuning_keeps_a_faster_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify) -> None:
    tuned, softmax = simple("softmax"), catalog.load("softmax")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(tmp_path / "own.db"))
    store = open_archive(tmp_path / "own.db")
    store.append(
        proposal(tuned, operator="seed"), replace(gpu_confirmed(tuned, everywhere(softmax, 50.0), GPU), created=3.0)
    )

    def judge(job: Job) -> Evaluation:
        median = 30.0 if job.kernel.settings.get("THREADS") == 512 else 50.0
        return replace(gpu_confirmed(job.kernel, everywhere(softmax, median), GPU), created=time.time())

    code, found = verify(FakeEngine(judge, GPU), "softmax", "--retune")
    assert (code, {row["now"]["median_us"] for row in found["rows"]}) == (0, {30.0})
    (winner,) = store.find(Kernel, ids={row["kernel"] for row in found["rows"]})
    assert winner.settings["THREADS"] == 512
    (run,) = store.find(Run)
    assert run.proposer == "offline"


def test_shipped_champions_are_verified_on_a_fresh_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify
) -> None:
    shipped = measured.as_shipped(confirmed(CHILD.id, GPU, **THEN))
    ship(tmp_path / "kernels", monkeypatch, CHILD, found=[MeasuredKernel("k0.cu", CHILD, shipped)])
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(tmp_path / "new.db"))
    code, found = verify(giving({CHILD.id: {ROWS: 19.0, COLS: 29.0}}))
    assert (code, set(results(found).values())) == (0, {"wins"})
    own = [one for one in open_archive(tmp_path / "new.db").find(Evaluation) if not one.shipped]
    assert [one.kernel_id for one in own] == [CHILD.id]


def test_the_kernels_of_a_package_are_verified(tmp_path: Path, archive: Path, verify: Verify) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    exported(folder, "softmax")
    kernel, workloads = simple("softmax"), everywhere(catalog.load("softmax"), 49.0)
    engine = FakeEngine(lambda job: replace(gpu_confirmed(job.kernel, workloads), created=time.time()), H200)
    code, found = verify(engine, folder / "out")
    assert (code, set(results(found).values())) == (0, {"wins"})
    assert [job.kernel.id for job in engine.jobs] == [kernel.id]
    assert len(found["rows"]) == len(workloads)


def test_a_package_from_another_gpu_is_not_a_regression(tmp_path: Path, archive: Path, verify: Verify) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    exported(folder, "softmax")
    slow = everywhere(catalog.load("softmax"), 300.0)
    engine = FakeEngine(lambda job: replace(gpu_confirmed(job.kernel, slow, A100), created=time.time()), A100)
    code, found = verify(engine, folder / "out" / "primitives")
    assert (code, set(results(found).values())) == (0, {"PyTorch"})


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["."], "holds no exported package"),
        ([".", "softmax"], "a package cannot be verified together with"),
        (["sofmax"], "softmax"),
        (["softmax", "--minutes", "0"], "--minutes must be greater than 0"),
    ],
)
def test_wrong_use_is_explained(arguments: list[str], why: str, archive: Path, verify: Verify) -> None:
    code, errors = verify(giving({}), *arguments)
    assert (code, why in errors) == (2, True)
