import json
from pathlib import Path
from typing import Any

import pytest
from commandline import evolve, filled

Capture = pytest.CaptureFixture[str]
SECRET = "sk-do-not-print-me"


def findings(capsys: Capture, *arguments: object) -> dict[str, Any]:
    _, output, _ = evolve(capsys, "doctor", "--json", *arguments)
    return {finding["name"]: finding for finding in json.loads(output)["findings"]}


def test_doctor_says_what_can_run_here(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "doctor")
    assert "evolve run softmax" in output if code == 0 else "Nothing can run here" in output


def test_everything_that_is_missing_comes_with_a_remedy(capsys: Capture) -> None:
    for finding in findings(capsys).values():
        assert finding["state"] == "ok" or finding["remedy"] or finding["name"].startswith("device")


def test_no_compiler_and_no_gpu_mean_that_nothing_can_run(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, output, _ = evolve(capsys, "doctor")
    assert code == 1
    assert "apt install g++" in output


def test_a_key_is_reported_and_never_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    _, output, errors = evolve(capsys, "doctor")
    assert "OPENAI_API_KEY" in output
    assert SECRET not in output + errors


@pytest.mark.parametrize(
    ("may", "state", "said"),
    [
        (True, "ok", "counters may be read"),
        (False, "not set", "may not read the GPU's counters"),
        (None, "ok", "2025.3"),
    ],
)
def test_the_profiler_comes_with_its_version_and_whether_it_may_count(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, may: bool | None, state: str, said: str
) -> None:
    profiler = pytest.importorskip("evolve.devices.cuda.profiler")
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho Version 2025.3.0.0\n")
    tool.chmod(0o755)
    monkeypatch.setattr(profiler, "command", lambda: tool)
    monkeypatch.setattr(profiler, "permitted", lambda: may)
    found = findings(capsys)["ncu"]
    assert found["state"] == state
    assert f"{tool} 2025.3.0.0" in found["found"]
    assert said in found["found"]
    assert bool(found["remedy"]) == (state != "ok")


def test_without_the_profiler_doctor_says_how_to_get_it(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("evolve.devices.cuda.profiler"), "command", lambda: None)
    found = findings(capsys)["ncu"]
    assert found["state"] == "not set"
    assert "nsight-compute" in found["remedy"]


def test_the_archive_is_counted(capsys: Capture, tmp_path: Path) -> None:
    found = findings(capsys, "--archive", filled(tmp_path / "a.db"))
    assert "5 kernels, 5 evaluations" in found["archive"]["found"]


def test_a_file_that_is_no_archive_is_named(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("words" * 99)
    assert findings(capsys, "--archive", tmp_path / "a.db")["archive"]["state"] == "missing"
