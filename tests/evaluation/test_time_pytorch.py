"""PyTorch's own times on a scripted device, with a scripted clock and scripted baselines."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_device import INFO, ScriptedDevice
from scripted_device import SMALL_OP as OP

from archive.records import DeviceInfo
from evolve.devices.choose import AUTOTUNE, COMPILE, EAGER, EVERY_BASELINE
from evolve.errors import UserError
from evolve.evaluation import baselines, evaluator, time_pytorch
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import BaselineCache
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.requests import TimingRequest, TimingResult

WORKLOAD = OP.gpu[0]
LIGHT_US = 2 * 4 * 2**12 / 1e6
TIMES = Baselines(30.0, 20.0, 15.0)
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 1, 1024)


@dataclass
class Timing:
    """A replacement for `baselines.timed` that counts its calls."""

    times: Baselines | Exception = TIMES
    calls: int = 0
    names: tuple[str, ...] = ()  # of the baselines of the last call

    def __call__(self, *arguments: Any) -> Baselines:
        self.calls += 1
        self.names = tuple(arguments[4])
        if isinstance(self.times, Exception):
            raise self.times
        return self.times


@dataclass
class Timed:
    evaluator: Evaluator
    timing: Timing
    phases: list[str] = field(default_factory=list)

    def time_pytorch(
        self, workload: str = WORKLOAD.key, *, again: bool = False, eager_alone: bool = False, given_up: str = ""
    ) -> TimingResult:
        request = TimingRequest("twice", workload, again, eager_alone, given_up)
        return time_pytorch.time_pytorch(OP, request, self.evaluator)


Make = Callable[..., Timed]


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(times: Baselines | Exception = TIMES, info: DeviceInfo = INFO) -> Timed:
        timing, phases = Timing(times), list[str]()
        monkeypatch.setattr(baselines, "timed", timing)
        return Timed(Evaluator(ScriptedDevice(info=info), phases.append, BaselineCache(tmp_path)), timing, phases)

    return make


def test_the_result_holds_the_times_where_and_when_they_were_taken_and_the_speed_of_light(timed: Make) -> None:
    found = timed().time_pytorch().standard
    assert found
    assert (found.op, found.workload, found.device) == ("twice", WORKLOAD.key, INFO)
    assert (found.eager_us, found.compile_us, found.autotune_us, found.best_us) == (30.0, 20.0, 15.0, 15.0)
    assert found.floor_us == pytest.approx(LIGHT_US)
    assert found.created == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize(
    ("given_up", "names"), [("", EVERY_BASELINE), (COMPILE, (EAGER,)), (AUTOTUNE, (EAGER, COMPILE))]
)
def test_a_baseline_that_is_given_up_is_not_timed(given_up: str, names: tuple[str, ...], timed: Make) -> None:
    made = timed()
    made.time_pytorch(given_up=given_up)
    assert made.timing.names == names
    assert made.evaluator.baselines_for(OP, WORKLOAD).given_up == given_up


def test_times_are_cached_for_evaluations(timed: Make) -> None:
    made = timed()
    made.time_pytorch()
    assert made.evaluator.cache.find(OP, WORKLOAD, INFO) == TIMES
    assert made.evaluator.baselines_for(OP, WORKLOAD) == TIMES
    assert made.timing.calls == 1


def test_cached_times_are_measured_again_only_on_request(timed: Make) -> None:
    made = timed()
    made.evaluator.cache.keep(OP, WORKLOAD, INFO, Baselines(50.0))
    found = made.time_pytorch().standard
    assert found
    assert (found.eager_us, made.timing.calls) == (50.0, 0)
    found = made.time_pytorch(again=True).standard
    assert found
    assert (found.eager_us, made.timing.calls) == (30.0, 1)
    assert made.evaluator.cache.find(OP, WORKLOAD, INFO) == TIMES


def test_a_request_to_time_again_times_an_uncached_workload_once(timed: Make) -> None:
    made = timed()
    assert made.time_pytorch(again=True).standard
    assert made.timing.calls == 1


def test_an_emulated_device_has_no_cached_times_and_no_speed_of_light(timed: Make) -> None:
    made = timed(info=CPU)
    found = made.time_pytorch(OP.emulated[0].key).standard
    assert found
    assert found.floor_us is None
    assert made.evaluator.cache.find(OP, OP.emulated[0], CPU) is None


def test_a_time_of_only_eager_is_not_a_baseline_for_evaluations(timed: Make) -> None:
    made = timed()
    found = made.time_pytorch(eager_alone=True).standard
    assert found
    assert (found.eager_us, found.compile_us, made.timing.calls) == (20.0, None, 0)
    assert made.evaluator.cache.find(OP, WORKLOAD, INFO) is None


@pytest.mark.parametrize(
    ("error", "reason", "tainted"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB"), "does not fit into memory", False),
        (MemoryError(), "does not fit into memory", False),
        (NotImplementedError("no kernel for 'Half'"), "NotImplementedError: no kernel for 'Half'", True),
        (RuntimeError("x" * 10_000), "RuntimeError: xxx", True),
    ],
    ids=["GPU memory", "memory", "PyTorch", "a long error"],
)
def test_a_failure_of_pytorch_has_a_reason_and_is_not_cached(
    timed: Make, error: Exception, reason: str, *, tainted: bool
) -> None:
    made = timed(error)
    answer = made.time_pytorch()
    assert answer.standard is None
    assert reason in answer.fault
    assert len(answer.fault) < 300
    assert answer.tainted is tainted
    assert made.evaluator.cache.find(OP, WORKLOAD, INFO) is None


def test_a_workload_with_a_blind_spot_is_not_timed(timed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("twice cannot be judged at n=1: a wrong result would pass")

    monkeypatch.setattr(evaluator, "_refuse_blind", refuse)
    made = timed()
    assert "a wrong result would pass" in made.time_pytorch().fault
    assert made.timing.calls == 0


def test_a_gpu_fault_while_resetting_the_compiler_is_ignored(timed: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    answer = timed(RuntimeError("CUDA error")).time_pytorch()
    assert (answer.standard, answer.tainted) == (None, True)


def test_an_unknown_workload_is_named(timed: Make) -> None:
    assert "no workload `n=5 float32`" in timed().time_pytorch("n=5 float32").fault


def test_the_device_is_shared_until_the_baselines_are_timed(timed: Make) -> None:
    made = timed()
    made.time_pytorch()
    assert set(made.phases) == {"prepare"}
