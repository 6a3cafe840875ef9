"""`evolve profile` with a fake engine."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import bad_kernels
import pytest
from command import TWICE
from commandline import evolve
from fake_engine import FakeEngine, use_as_gpu
from records import GPU, failed_reply, measurement

from archive.records import DeviceInfo, Evaluation, Outcome, Profile, Traits
from archive.sqlite import open_archive
from evolve.devices import choose
from evolve.devices import counters as c

Capture = pytest.CaptureFixture[str]
KERNEL = bad_kernels.twice_kernel()
FLOAT, HALF = "n=1048576 float32", "n=1048576 bfloat16"
COUNTED = ((c.DURATION.name, 31_400.0), (c.DRAM.name, 91.25), (c.DRAM_READ.name, 67_108_864.0), (c.MEMORY.name, 92.0))
STORES = ((c.STORE_SECTORS.name, 800.0), (c.STORE_REQUESTS.name, 100.0))


def verdict(device: DeviceInfo = GPU, **times: float) -> Evaluation:
    measurements = tuple(measurement(key, times[key.split()[-1]]) for key in (FLOAT, HALF))
    return Evaluation(KERNEL.id, "twice", device, Outcome.PASSED, "", measurements, created=times.get("at", 1.0))


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "archive.db"
    store = open_archive(path)
    store.append(KERNEL, verdict(float32=20.0, bfloat16=30.0), failed_reply())
    store.close()
    monkeypatch.setenv("EVOLVE_ARCHIVE", str(path))
    monkeypatch.setenv("COLUMNS", "120")
    return path


Use = Callable[[FakeEngine], FakeEngine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Use:
    return partial(use_as_gpu, monkeypatch=monkeypatch)


def counting(counters: tuple[tuple[str, float], ...] | None = COUNTED, info: DeviceInfo = GPU) -> FakeEngine:
    return FakeEngine(info=info, counters=counters)


def profiles(archive: Path) -> list[Profile]:
    return open_archive(archive).find(Profile, "twice")


def test_the_counters_are_archived_and_printed_with_the_bottleneck(archive: Path, on: Use, capsys: Capture) -> None:
    on(counting())
    code, output, _ = evolve(capsys, "profile", KERNEL.id[:6], TWICE)
    assert code == 0
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert f"{c.DURATION.words} 31.4 µs" in lines
    assert f"{c.DRAM_READ.words} 67.1 MB" in lines
    assert f"{c.DRAM.words} 91.2 %" in lines
    assert any(line.startswith("bottleneck: memory bandwidth: DRAM is at 91 %") for line in lines)
    assert profiles(archive) == [Profile(KERNEL.id, "twice", GPU.key, HALF, COUNTED, 1.0)]


def test_the_default_workload_is_the_farthest_from_the_speed_of_light(archive: Path, on: Use, capsys: Capture) -> None:
    engine = on(counting())
    evolve(capsys, "profile", KERNEL.id, TWICE)
    with_later = open_archive(archive)
    with_later.append(verdict(float32=40.0, bfloat16=30.0, at=2.0))
    with_later.append(verdict(replace(GPU, name="Another GPU"), float32=20.0, bfloat16=30.0, at=3.0))
    evolve(capsys, "profile", KERNEL.id, TWICE)
    assert engine.profiled == [(KERNEL.id, TWICE, HALF), (KERNEL.id, TWICE, FLOAT)]


def test_a_kernel_without_times_on_this_device_is_profiled_at_the_first_workload(
    archive: Path, on: Use, capsys: Capture
) -> None:
    engine = on(counting(info=replace(GPU, name="Another GPU")))
    assert evolve(capsys, "profile", KERNEL.id, TWICE)[0] == 0
    assert engine.profiled == [(KERNEL.id, TWICE, FLOAT)]


def test_the_workload_can_be_given(archive: Path, on: Use, capsys: Capture) -> None:
    engine = on(counting())
    assert evolve(capsys, "profile", KERNEL.id, TWICE, "--workload", FLOAT)[0] == 0
    assert engine.profiled == [(KERNEL.id, TWICE, FLOAT)]


def test_the_width_of_the_kernels_accesses_decides_what_counts_as_uncoalesced(
    archive: Path, on: Use, capsys: Capture
) -> None:
    on(counting(STORES))
    assert "uncoalesced" not in evolve(capsys, "profile", KERNEL.id, TWICE)[1]
    traits = Traits("hash", 4, 4, 0, 20, 128, 1, tensor_cores=False, atomics=False, occupancy=1.0)
    open_archive(archive).append(replace(verdict(float32=20.0, bfloat16=30.0, at=2.0), traits=traits))
    assert "uncoalesced access: a warp's store touches 8.0 sectors" in evolve(capsys, "profile", KERNEL.id, TWICE)[1]


def test_standard_output_contains_only_json(archive: Path, on: Use, capsys: Capture) -> None:
    on(counting())
    found = json.loads(evolve(capsys, "profile", KERNEL.id, TWICE, "--json")[1])
    assert found["counters"] == dict(COUNTED)
    assert (found["kernel"], found["workload"], found["bottleneck"]["kind"]) == (KERNEL.id, HALF, "memory bandwidth")


def test_without_counters_the_reason_is_printed(archive: Path, on: Use, capsys: Capture) -> None:
    on(FakeEngine(info=GPU, unprofiled="this user may not read the GPU's counters"))
    code, _, errors = evolve(capsys, "profile", KERNEL.id, TWICE)
    assert code == 1
    assert "no counters were read: this user may not read the GPU's counters" in errors
    assert "evolve doctor" in errors
    assert profiles(archive) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((KERNEL.id,), "twice"),  # not in the catalog
        ((KERNEL.id, "softmax"), "is a kernel of twice, not of softmax"),
        ((KERNEL.id, TWICE, "--workload", "n=3 float32"), f"choose one of: {FLOAT}; {HALF}"),
        ((failed_reply().id,), "is a reply without a kernel"),
        ((KERNEL.id, TWICE, "--turbo"), "--turbo"),
        ((), "ID"),
    ],
    ids=["an op outside the catalog", "another op", "no such workload", "a reply", "no such option", "no kernel"],
)
def test_a_usage_error_of_profile_is_explained(
    arguments: tuple[str, ...], message: str, archive: Path, on: Use, capsys: Capture
) -> None:
    engine = on(counting())
    code, _, errors = evolve(capsys, "profile", *arguments)
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors
    assert engine.profiled == []


def test_profiling_without_a_gpu_is_explained(archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(choose, "device_kind", lambda _requested="": "emulated")
    code, _, errors = evolve(capsys, "profile", KERNEL.id, TWICE)
    assert code == 2
    assert "needs an NVIDIA GPU" in errors


def test_an_unknown_id_exits_with_code_1(archive: Path, capsys: Capture) -> None:
    assert evolve(capsys, "profile", "0000", TWICE)[0] == 1
