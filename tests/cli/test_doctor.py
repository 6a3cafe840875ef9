"""`evolve doctor` on this machine."""

import json
from contextlib import closing
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from commandline import BEST, CHILD, WAITING, WRONG, evolve, filled
from records import GPU, passed

from archive.library import op_names, shipped
from archive.sqlite import open_archive
from evolve.cli import doctor
from evolve.cli.doctor import compared_with_tested

Capture = pytest.CaptureFixture[str]
SECRET = "sk-do-not-print-me"


def findings(capsys: Capture, *arguments: object) -> dict[str, Any]:
    _, output, _ = evolve(capsys, "doctor", "--json", *arguments)
    return {finding["name"]: finding for finding in json.loads(output)["findings"]}


def test_the_last_line_gives_the_next_command_or_says_that_nothing_can_run(capsys: Capture) -> None:
    code, output, _ = evolve(capsys, "doctor")
    assert "evolve run softmax" in output if code == 0 else "No device can run kernels" in output


def test_every_missing_part_has_a_remedy(capsys: Capture) -> None:
    for finding in findings(capsys).values():
        assert finding["state"] == "ok" or finding["remedy"] or finding["name"].startswith("device")


def test_without_a_compiler_and_a_gpu_no_device_can_run(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, output, _ = evolve(capsys, "doctor")
    assert code == 1
    assert "apt install g++" in output


def test_an_api_key_is_reported_but_never_printed(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    _, output, errors = evolve(capsys, "doctor")
    assert "OPENAI_API_KEY" in output
    assert SECRET not in output + errors


@pytest.mark.parametrize(
    ("permitted", "state", "words"),
    [
        (True, "ok", "this user may read the GPU's counters"),
        (False, "not set", "may not read the GPU's counters"),
        (None, "ok", "2025.3"),
    ],
)
def test_the_profiler_is_shown_with_its_version_and_permission(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, permitted: bool | None, state: str, words: str
) -> None:
    profiler = pytest.importorskip("evolve.devices.cuda.profiler")
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho Version 2025.3.0.0\n")
    tool.chmod(0o755)
    monkeypatch.setattr(profiler, "command", lambda: tool)
    monkeypatch.setattr(profiler, "permitted", lambda: permitted)
    found = findings(capsys)["ncu"]
    assert found["state"] == state
    assert f"{tool} 2025.3.0.0" in found["found"]
    assert words in found["found"]
    assert bool(found["remedy"]) == (state != "ok")


def test_a_missing_profiler_has_a_remedy(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytest.importorskip("evolve.devices.cuda.profiler"), "command", lambda: None)
    found = findings(capsys)["ncu"]
    assert found["state"] == "not set"
    assert "nsight-compute" in found["remedy"]


@pytest.mark.parametrize(
    ("extra", "module", "purpose"), [("web", "uvicorn", "evolve serve"), ("ray", "ray", "--engine ray")]
)
def test_an_extra_is_shown_with_its_purpose_and_how_to_install_it(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, extra: str, module: str, purpose: str
) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda _name: object())
    monkeypatch.setattr(doctor, "version", lambda _name: "9.9")
    present = findings(capsys)[f"extra {extra}"]
    assert present["state"] == "ok"
    assert f"{module} 9.9" in present["found"]
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == module else object())
    absent = findings(capsys)[f"extra {extra}"]
    assert absent["state"] == "not set"
    assert f"{module} not installed" in absent["found"]
    assert purpose in absent["found"]
    assert f".[{extra}]" in absent["remedy"]


def test_rates_measured_on_a_gpu_are_shown(capsys: Capture, tmp_path: Path) -> None:
    path = Path(filled(tmp_path / "a.db"))
    before = findings(capsys, "--archive", path)["measured rates"]["found"]
    assert before == f"{GPU.name}: copy 4000 GB/s, float32 products 50 TFLOP/s"
    measured = replace(GPU, l2_gb_s=5512.3, launch_us=1.94, grid_barrier_us=1.25)
    with closing(open_archive(path)) as store:
        store.append(passed(BEST.id, measured, created=2.0, w=20.0))
    found = findings(capsys, "--archive", path)["measured rates"]["found"]
    assert ", L2 5512 GB/s, launch 1.9 us, grid barrier 1.2 us, " in found


def test_the_archive_is_shown_with_its_counts(capsys: Capture, tmp_path: Path) -> None:
    found = findings(capsys, "--archive", filled(tmp_path / "a.db"))
    every = len({BEST.id, CHILD.id, WRONG.id, WAITING.id} | {one.id for op in op_names() for one in shipped(op)}) + 1
    assert f"{every} kernels, 5 evaluations" in found["archive"]["found"]


def test_a_file_that_is_not_an_archive_is_reported_missing(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_text("words" * 99)
    assert findings(capsys, "--archive", tmp_path / "a.db")["archive"]["state"] == "missing"


CONSTRAINTS = ["# tested versions", "torch==2.13.0", "cupy-cuda13x==14.2.0", "cuda-toolkit<=13.5.0"]


@pytest.mark.parametrize(
    ("project", "installed", "newest"),
    [
        ("torch", "2.14.1", "2.13.0"),
        ("torch", "2.13.1+cu130", "2.13.0"),
        ("cupy", "15.0.0rc1", "14.2.0"),
        ("cuda-toolkit", "13.6", "13.5.0"),
    ],
)
def test_a_version_newer_than_the_tested_one_is_reported(project: str, installed: str, newest: str) -> None:
    expected = f"{installed} (newer than {newest}, the newest tested)"
    assert compared_with_tested(project, installed, CONSTRAINTS) == expected


@pytest.mark.parametrize(
    ("project", "installed"),
    [("torch", "2.13.0+cpu"), ("torch", "2.13"), ("torch", "2.9.1"), ("cuda-toolkit", "13.5"), ("rich", "99.0")],
)
def test_a_tested_or_older_version_has_no_remark(project: str, installed: str) -> None:
    assert compared_with_tested(project, installed, CONSTRAINTS) == installed


def test_the_package_includes_its_tested_versions() -> None:
    assert "\ntorch==" in (resources.files("evolve") / "tested_versions.txt").read_text()


@pytest.mark.parametrize("columns", ["50", "80", "120"])
def test_no_word_of_the_report_is_broken_or_cut_off(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    found = findings(capsys)
    words = evolve(capsys, "doctor")[1].split()
    for finding in found.values():
        assert not set(f"{finding['found']} {finding['remedy']}".split()) - set(words)
