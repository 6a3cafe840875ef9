"""Duels and the sanitizer's reports, on a scripted device with a scripted clock."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest
import torch
from scripted_device import OP, ScriptedDevice, program

from archive.records import Duel, Outcome, Sanitized
from evolve.devices.device import RejectedError, Tools
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.buffers import Arena
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled
from evolve.evaluation.confirm import duel, sanitized, without_small_form
from reference_ops import catalog
from reference_ops.op import Workload

SMALL = Workload("float32", (("n", 256),))


class Clock:
    """A clock that reports how long the last call took, whether it was the kernel or PyTorch."""

    def __init__(self, kernel_us: float, pytorch_us: float, noise: float) -> None:
        self.kernel_us, self.pytorch_us, self.noise = kernel_us, pytorch_us, noise
        self.kernel_was_called = False
        self.rng = random.Random(2)

    def work(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.kernel_was_called = True
        tensors["out"].copy_(2 * tensors["x"])

    def __call__(self) -> float:
        spent = self.kernel_us if self.kernel_was_called else self.pytorch_us
        self.kernel_was_called = False
        return spent * self.rng.uniform(1 - self.noise, 1 + self.noise)


def duel_of(kernel_us: float, pytorch_us: float, noise: float = 0.01, compile_us: float | None = None) -> Duel:
    clock = Clock(kernel_us, pytorch_us, noise)
    inspector = Inspector(ScriptedDevice(clock), Arena("cpu"), random.Random(3), [], lambda _phase: None)
    return duel(inspector, program(clock.work), OP, SMALL, Baselines(pytorch_us, compile_us))


def test_a_kernel_twice_as_fast_wins() -> None:
    found = duel_of(10.0, 20.0)
    assert found.low < 2 < found.high
    assert found.won
    assert found.baseline == "eager"


def test_the_next_best_baseline_replaces_one_that_fails_to_compile_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_memory(*_: object, **__: object) -> None:
        raise RuntimeError("the GPU's memory is full")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: out_of_memory)
    assert duel_of(10.0, 20.0, compile_us=15.0).baseline == "eager"


def test_a_slower_kernel_loses() -> None:
    assert not duel_of(20.0, 10.0).won


def test_a_gain_within_the_noise_of_the_kernel_against_itself_is_not_a_win() -> None:
    found = duel_of(10.0, 10.2, noise=0.2)
    assert found.noise > 0.005
    assert not found.won


@pytest.mark.parametrize("lazy_from", [5, 60])
def test_a_kernel_that_skips_its_work_in_a_duel_fails(lazy_from: int) -> None:
    clock, calls = Clock(10.0, 20.0, 0.01), [0]

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        calls[0] += 1
        clock.kernel_us = 10.0 if calls[0] < lazy_from else 5.0
        clock.kernel_was_called = True
        if calls[0] < lazy_from:
            clock.work(tensors)

    inspector = Inspector(ScriptedDevice(clock), Arena("cpu"), random.Random(3), [], lambda _phase: None)
    with pytest.raises(RejectedError, match="right when checked, wrong when timed"):
        duel(inspector, program(work), OP, SMALL, Baselines(20.0))


def test_a_write_between_buffers_in_a_duel_is_found() -> None:
    clock = Clock(10.0, 20.0, 0.01)

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        clock.work(tensors)
        tensors["out"].as_strided((tensors["out"].numel() + 3,), (1,))[-1] = 7

    inspector = Inspector(ScriptedDevice(clock), Arena("cpu"), random.Random(3), [], lambda _phase: None)
    with pytest.raises(RejectedError) as caught:
        duel(inspector, program(work), OP, SMALL, Baselines(20.0))
    assert caught.value.outcome is Outcome.OUT_OF_BOUNDS


def reporting(errors: int | None) -> ScriptedDevice:
    return ScriptedDevice(
        tools=Tools(sanitizer=lambda runs, _seconds: [(Sanitized("racecheck", errors, "words"),) for _ in runs])
    )


def test_an_error_found_by_the_sanitizer_makes_a_kernel_unsafe() -> None:
    with pytest.raises(RejectedError, match="racecheck found 2 errors") as caught:
        sanitized(reporting(2), [(SMALL, program())], (), OP, lambda _phase: None)
    assert caught.value.outcome is Outcome.UNSAFE


@pytest.mark.parametrize("errors", [0, None])
def test_a_clean_report_differs_from_the_report_of_an_unfinished_tool(errors: int | None) -> None:
    found = sanitized(reporting(errors), [(SMALL, program())], (), OP, lambda _phase: None)
    assert [one.errors for one in found] == [errors]
    assert found[0].report.startswith(SMALL.key)


def memchecked(*reports: Sanitized) -> ScriptedDevice:
    """Return a device whose memcheck gives one of these reports for each shape in turn."""
    return ScriptedDevice(tools=Tools(sanitizer=lambda _runs, _seconds: [(report,) for report in reports]))


LATE, CLEAN = Sanitized("memcheck", None, "took more than 60 s"), Sanitized("memcheck", 0)
FAILED = Sanitized("memcheck", None, "did not finish: out of memory")
SHAPES = [(Workload("float32", (("n", n),)), program()) for n in (3, 5)]


def test_a_kernel_that_is_too_slow_for_memcheck_at_every_shape_is_refused() -> None:
    with pytest.raises(RejectedError, match="at each of 2 shapes") as caught:
        sanitized(memchecked(LATE, LATE), (), SHAPES, OP, print)
    assert caught.value.outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize("other", [CLEAN, FAILED], ids=["another shape is clean", "the tool failed at another shape"])
def test_a_kernel_that_is_too_slow_for_memcheck_at_one_shape_is_not_refused(other: Sanitized) -> None:
    assert [one.errors for one in sanitized(memchecked(LATE, other), (), SHAPES, OP, print)] == [None, other.errors]


def test_the_sanitizer_runs_on_the_smaller_half_of_the_shapes() -> None:
    shapes = [Workload("float32", (("n", 2**power),)) for power in range(10)]
    seen: Iterator[str] = iter(
        one.report for one in sanitized(reporting(0), [(w, program()) for w in shapes], (), OP, print)
    )
    assert [report.split()[0] for report in seen] == ["n=1", "n=4", "n=16"]


def test_the_sanitizer_skips_large_shapes() -> None:
    large = Workload("float32", (("n", 2**28),))
    seen = sanitized(reporting(0), [(large, program()), (SMALL, program())], (), OP, print)
    assert [one.report.split()[0] for one in seen] == [SMALL.key.split()[0]]


ROWS = catalog.load("sum")
LONG, LARGE = (Workload("float32", (("rows", rows), ("cols", 2**15))) for rows in (3, 2**14))
LARGER = Workload("float32", (("rows", 2**15), ("cols", 2**15)))
NARROW = Workload("float32", (("rows", 2**14), ("cols", 64)))


def whole(*thin: Workload) -> list[Workload]:
    """Return which of three declared workloads are run whole if a kernel also accepts these."""
    declared, few = (tuple((workload, program()) for workload in some) for some in ((LARGER, LARGE, NARROW), thin))
    return [workload for workload, _ in without_small_form(Compiled(declared, (), (), (), (), (), (), few, ()), ROWS)]


def test_a_declared_workload_without_a_form_of_few_rows_is_run_whole() -> None:
    assert whole() == [NARROW, LARGE]
    assert whole(LONG) == [NARROW]
    assert whole(LONG, replace(NARROW, dims=(("rows", 3), ("cols", 64)))) == []


@pytest.mark.exhaustive
def test_a_kernel_only_for_large_workloads_is_run_at_them() -> None:
    with pytest.raises(RejectedError, match=r"n=268435456.*racecheck found 2 errors"):
        sanitized(reporting(2), (), [(Workload("float32", (("n", 2**28),)), program())], OP, print)


def test_a_workload_is_examined_once() -> None:
    found = sanitized(reporting(0), [(SMALL, program())], [(SMALL, program())], OP, print)
    assert len(found) == 1


def test_a_device_without_a_sanitizer_has_no_report() -> None:
    assert sanitized(ScriptedDevice(), [(SMALL, program())], (), OP, lambda _phase: None) == ()
