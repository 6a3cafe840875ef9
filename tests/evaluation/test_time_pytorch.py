"""PyTorch's own times on a scripted device, whose clock and whose PyTorch do what the test wants."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from scripted_device import INFO, OP, WORKLOAD, ScriptedDevice

from archive.records import DeviceInfo
from evolve.engines.messages import TimingRequest, TimingResult
from evolve.errors import UserError
from evolve.evaluation import baselines, evaluate
from evolve.evaluation.baselines import Baselines, Shelf
from evolve.evaluation.evaluate import Evaluator
from evolve.evaluation.time_pytorch import time_pytorch

LIGHT_US = 2 * 4 * 2**20 / 1e6
TIMES = Baselines(30.0, 20.0, 15.0)
CPU = DeviceInfo("emulated", "Some CPU", "sm_90a", 1, 1024)


@dataclass
class Timing:
    """Takes the place of `baselines.timed`, and counts."""

    times: Baselines | Exception = TIMES
    calls: int = 0

    def __call__(self, *_: object) -> Baselines:
        self.calls += 1
        if isinstance(self.times, Exception):
            raise self.times
        return self.times


@dataclass
class Place:
    bench: Evaluator
    timing: Timing
    phases: list[str] = field(default_factory=list)

    def time_pytorch(
        self, workload: str = WORKLOAD.key, *, again: bool = False, eager_alone: bool = False
    ) -> TimingResult:
        return time_pytorch(OP, TimingRequest("twice", workload, again, eager_alone), self.bench)


Make = Callable[..., Place]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    def make(times: Baselines | Exception = TIMES, info: DeviceInfo = INFO) -> Place:
        timing, phases = Timing(times), list[str]()
        monkeypatch.setattr(baselines, "timed", timing)
        return Place(Evaluator(ScriptedDevice(info=info), phases.append, Shelf(tmp_path)), timing, phases)

    return make


def test_the_answer_says_what_was_timed_where_and_when_and_what_light_takes(place: Make) -> None:
    found = place().time_pytorch().standard
    assert found
    assert (found.op, found.workload, found.device) == ("twice", WORKLOAD.key, INFO)
    assert (found.eager_us, found.compile_us, found.autotune_us, found.best_us) == (30.0, 20.0, 15.0, 15.0)
    assert found.floor_us == pytest.approx(LIGHT_US)
    assert found.created == pytest.approx(time.time(), abs=60)


def test_what_was_timed_is_on_the_shelf_for_evaluations_to_come(place: Make) -> None:
    made = place()
    made.time_pytorch()
    assert made.bench.shelf.find(OP, WORKLOAD, INFO) == TIMES
    assert made.bench.baselines_for(OP, WORKLOAD) == TIMES
    assert made.timing.calls == 1


def test_what_an_evaluation_left_on_the_shelf_is_not_timed_again_unless_asked_for(place: Make) -> None:
    made = place()
    made.bench.shelf.keep(OP, WORKLOAD, INFO, Baselines(50.0))
    found = made.time_pytorch().standard
    assert found
    assert (found.eager_us, made.timing.calls) == (50.0, 0)
    found = made.time_pytorch(again=True).standard
    assert found
    assert (found.eager_us, made.timing.calls) == (30.0, 1)
    assert made.bench.shelf.find(OP, WORKLOAD, INFO) == TIMES


def test_asking_again_for_what_is_not_known_times_it_once(place: Make) -> None:
    made = place()
    assert made.time_pytorch(again=True).standard
    assert made.timing.calls == 1


def test_an_emulated_device_has_nothing_on_the_shelf_and_no_speed_of_light(place: Make) -> None:
    made = place(info=CPU)
    found = made.time_pytorch(OP.emulated[0].key).standard
    assert found
    assert found.floor_us is None
    assert made.bench.shelf.find(OP, OP.emulated[0], CPU) is None


def test_eager_alone_is_no_baseline_for_evaluations(place: Make) -> None:
    made = place()
    found = made.time_pytorch(eager_alone=True).standard
    assert found
    assert (found.eager_us, found.compile_us, made.timing.calls) == (20.0, None, 0)
    assert made.bench.shelf.find(OP, WORKLOAD, INFO) is None


@pytest.mark.parametrize(
    ("error", "said", "leaving"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 90 GiB"), "does not fit into the memory", False),
        (MemoryError(), "does not fit into the memory", False),
        (NotImplementedError("no kernel for 'Half'"), "NotImplementedError: no kernel for 'Half'", True),
        (RuntimeError("x" * 10_000), "RuntimeError: xxx", True),
    ],
    ids=["GPU memory", "memory", "PyTorch", "a long error"],
)
def test_what_pytorch_cannot_do_is_said_and_not_kept(
    place: Make, error: Exception, said: str, *, leaving: bool
) -> None:
    made = place(error)
    answer = made.time_pytorch()
    assert answer.standard is None
    assert said in answer.fault
    assert len(answer.fault) < 300
    assert answer.leaving is leaving
    assert made.bench.shelf.find(OP, WORKLOAD, INFO) is None


def test_a_workload_that_hides_wrong_results_is_not_timed_either(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise UserError("twice cannot be judged at n=1: nobody would notice")

    monkeypatch.setattr(evaluate, "_refuse_blind", refuse)
    made = place()
    assert "nobody would notice" in made.time_pytorch().fault
    assert made.timing.calls == 0


def test_a_gpu_that_is_spoilt_costs_no_more_than_the_answer(place: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    answer = place(RuntimeError("CUDA error")).time_pytorch()
    assert (answer.standard, answer.leaving) == (None, True)


def test_a_workload_that_nobody_listed_is_named(place: Make) -> None:
    assert "no workload `n=5 float32`" in place().time_pytorch("n=5 float32").fault


def test_the_phase_has_its_deadline(place: Make) -> None:
    made = place()
    made.time_pytorch()
    assert set(made.phases) == {"baseline"}
