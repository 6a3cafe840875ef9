"""`evolve confirm` with a fake engine."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from commandline import BEST, CHILD, COLS, ROWS, evolve, filled
from fake_engine import FakeEngine, use_as_gpu
from records import GPU, confirmed, failed

from archive.records import DeviceInfo, Evaluation, Outcome
from archive.sqlite import open_archive
from evolve.engines.engine import Job

Capture = pytest.CaptureFixture[str]
OTHER_GPU = replace(GPU, name="Another GPU")


def confirming(*failing: str, info: DeviceInfo = GPU) -> FakeEngine:
    """Return an engine that confirms every kernel except those whose ids are in `failing`."""

    def judge(job: Job) -> Evaluation:
        assert job.confirm
        if job.kernel.id in failing:
            return failed(job.kernel.id, Outcome.UNSAFE, created=9.0)
        return confirmed(job.kernel.id, info, 9.0, **{ROWS: 20.0, COLS: 30.0})

    return FakeEngine(judge, info)


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = filled(tmp_path / "archive.db")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


Use = Callable[[FakeEngine], FakeEngine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Use:
    return partial(use_as_gpu, monkeypatch=monkeypatch)


def test_each_champion_is_confirmed_and_its_duels_are_printed(archive: Path, on: Use, capsys: Capture) -> None:
    on(confirming())
    code, output, _ = evolve(capsys, "confirm", "softmax")
    assert code == 0
    assert f"softmax: {BEST.id[:8]} confirmed: won 2 of 2 duels with PyTorch, at best 5.00x" in output
    row = next(line for line in output.splitlines() if line.startswith("8×16"))
    assert row.split()[2:] == [BEST.id[:8], "compile", "5.00x", "4.90–5.10", "1.0%", "won"]
    assert f"{BEST.id[:8]} under the sanitizer: memcheck, racecheck, initcheck and synccheck found nothing" in output


def test_a_failed_confirmation_exits_with_code_1_and_the_next_champion_is_confirmed(
    archive: Path, on: Use, capsys: Capture
) -> None:
    on(confirming(BEST.id))
    code, output, _ = evolve(capsys, "confirm", "softmax")
    assert code == 1
    assert f"{BEST.id[:8]} failed its confirmation: unsafe" in output
    assert f"evolve evaluate --explain {BEST.id[:8]} --archive {archive}" in output
    verdicts = {e.kernel_id: e for e in open_archive(archive).find(Evaluation, "softmax") if e.device == GPU}
    assert verdicts[BEST.id].outcome is Outcome.UNSAFE
    assert verdicts[CHILD.id].confirmed


def test_confirming_again_succeeds_and_prints_the_duels(archive: Path, on: Use, capsys: Capture) -> None:
    on(confirming())
    assert evolve(capsys, "confirm", "softmax")[0] == 0
    code, output, errors = evolve(capsys, "confirm", "softmax")
    assert (code, errors) == (0, "")
    assert "nothing is left to confirm" in output
    assert "5.00x" in output


def test_champions_of_another_device_are_not_confirmed(archive: Path, on: Use, capsys: Capture) -> None:
    on(confirming(info=OTHER_GPU))
    code, _, errors = evolve(capsys, "confirm", "softmax")
    assert code == 1
    assert "nothing to confirm" in errors


def test_without_a_name_every_op_of_the_catalog_is_confirmed(archive: Path, on: Use, capsys: Capture) -> None:
    on(confirming())
    code, output, errors = evolve(capsys, "confirm")
    assert code == 0
    assert f"softmax: {BEST.id[:8]} confirmed" in output
    assert "unheard_of is not in the catalog" in errors


def test_standard_output_contains_only_json(archive: Path, on: Use, capsys: Capture) -> None:
    on(confirming())
    _, output, _ = evolve(capsys, "confirm", "softmax", "--json")
    assert all(duel["won"] for verdict in json.loads(output) for duel in verdict["confirmed"]["duels"])
