"""`evolve evaluate --explain ID` explains the verdicts in the archive."""

import json
from pathlib import Path

import pytest
from commandline import BEST, CHILD, ROWS, WAITING, WRONG, evolve, filled
from records import GPU, checked, confirmed, failed

from archive.records import Outcome
from archive.sqlite import open_archive

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = filled(tmp_path / "archive.db")
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    return path


def explained(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    return evolve(capsys, "evaluate", "--explain", *arguments)


def test_the_verdict_on_each_device_is_explained_gpus_first(archive: Path, capsys: Capture) -> None:
    code, output, _ = explained(capsys, BEST.id[:6])
    assert code == 0
    assert output.index("on Some GPU") < output.index("on Some CPU")


def test_the_kind_of_device_can_be_chosen(archive: Path, capsys: Capture) -> None:
    assert "Some CPU" not in explained(capsys, BEST.id, "--device", "cuda")[1]


def test_the_latest_verdict_is_explained(archive: Path, capsys: Capture) -> None:
    store = open_archive(archive)
    store.append(checked(confirmed(CHILD.id, GPU, 2.0, **{ROWS: 40.0})))
    assert "PASSED, and confirmed" in explained(capsys, CHILD.id)[1]
    store.append(failed(CHILD.id, Outcome.UNSAFE, created=3.0))
    assert "FAILED at step 6: unsafe" in explained(capsys, CHILD.id)[1]


def test_explaining_a_failed_kernel_exits_with_code_0(archive: Path, capsys: Capture) -> None:
    code, output, _ = explained(capsys, WRONG.id)
    assert code == 0
    assert "FAILED at step 3: wrong." in output
    assert "it is wrong" in output


def test_a_kernel_without_a_verdict_exits_with_code_1_and_suggests_evaluating_it(
    archive: Path, capsys: Capture
) -> None:
    code, _, errors = explained(capsys, WAITING.id)
    assert code == 1
    assert "has no evaluation" in errors
    assert f"evolve evaluate softmax --archive {archive}" in errors
    assert "--device emulated" in explained(capsys, CHILD.id, "--device", "emulated")[2]


def test_json_has_the_whole_record(archive: Path, capsys: Capture) -> None:
    open_archive(archive).append(checked(confirmed(CHILD.id, GPU, 2.0, **{ROWS: 40.0})))
    (verdict,) = json.loads(explained(capsys, CHILD.id, "--json")[1])
    assert verdict["checks"][0]["worst"] == pytest.approx(0.4)
    assert verdict["conditions"]["sm_mhz"] == 1980
    assert verdict["confirmed"]["duels"][0]["won"] is True
    assert verdict["measurements"][0]["autotune_us"] == 75.0


def test_an_op_given_with_explain_is_rejected(archive: Path, capsys: Capture) -> None:
    code, _, errors = explained(capsys, BEST.id, "softmax")
    assert code == 2
    assert "--explain takes no ops or files, got softmax" in errors
