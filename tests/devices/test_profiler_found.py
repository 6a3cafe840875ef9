"""Finding the profiler on this machine, its version, and the permission to use it."""

from pathlib import Path

import pytest

pytest.importorskip("cupy")

from evolve.devices.cuda import profiler, replay


def test_a_tool_is_found_on_the_path_first_and_then_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("path", "home/bin", "else"):
        (tmp_path / folder).mkdir(parents=True)
        tool = tmp_path / folder / "no-such-tool"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o755)
    elsewhere = [tmp_path / "nowhere" / "no-such-tool", tmp_path / "else" / "no-such-tool"]
    assert replay.tool("no-such-tool", ()) is None
    assert replay.tool("no-such-tool", (), elsewhere) == elsewhere[1]
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    assert replay.tool("no-such-tool", (), elsewhere) == tmp_path / "home" / "bin" / "no-such-tool"
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    assert replay.tool("no-such-tool", (), elsewhere) == tmp_path / "path" / "no-such-tool"


def test_the_newest_of_several_versions_is_chosen() -> None:
    folders = [Path("/opt/nvidia/nsight-compute") / version for version in ("2024.3.2", "2025.1.0", "2024.10.0")]
    assert max(folders, key=profiler._newest).name == "2025.1.0"
    assert min(folders, key=profiler._newest).name == "2024.3.2"


@pytest.mark.parametrize(
    ("restricted", "capabilities", "may"),
    [("1", "0000000000000000", False), ("1", "000001ffffffffff", True), ("0", "0000000000000000", True)],
)
def test_counters_need_an_administrator_if_the_driver_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restricted: str, capabilities: str, may: bool
) -> None:
    (tmp_path / "params").write_text(f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {restricted}\n")
    (tmp_path / "status").write_text(f"CapPrm:\t000001ffffffffff\nCapEff:\t{capabilities}\n")
    monkeypatch.setattr(profiler, "RESTRICTION", tmp_path / "params")
    monkeypatch.setattr(profiler, "OWN_STATUS", tmp_path / "status")
    assert profiler.permitted() is may


def test_without_a_driver_the_permission_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "RESTRICTION", tmp_path / "params")
    assert profiler.permitted() is None


def test_the_version_is_the_one_that_the_tool_prints(tmp_path: Path) -> None:
    tool = tmp_path / "ncu"
    tool.write_text("#!/bin/sh\necho 'NVIDIA (R) Nsight Compute'; echo 'Version 2024.1.1.0 (build 33998838)'\n")
    tool.chmod(0o755)
    assert profiler.version(tool) == "2024.1.1.0"
    assert profiler.version(tmp_path / "nowhere") == ""
