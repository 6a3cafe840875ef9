"""Timing on a scripted device with a scripted clock."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from each import each
from scripted_device import INFO, OP, WORKLOAD, ScriptedDevice, program, twice

from archive.records import DeviceInfo, Measurement, Outcome
from evolve.devices.device import RejectedError, Tools
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.buffers import POISONS, Arena
from evolve.evaluation.check import Inspector
from evolve.evaluation.timing import MOST_SETS, _continue, floor_us, measure, median_interval, physical_us
from reference_ops.op import Workload

READ_US = 4 * 2**20 / 1e3 / 1e3
SMALL = Workload("float32", (("n", 256),))


def timed(
    device: ScriptedDevice, work: object = twice, bar_us: float | None = None, workload: Workload = SMALL
) -> Measurement:
    inspector = Inspector(device, Arena("cpu"), random.Random(3), [], lambda _phase: None)
    return measure(inspector, program(work), OP, workload, Baselines(20.0), bar_us)  # type: ignore[arg-type]


def test_the_median_and_its_interval_are_those_of_the_samples() -> None:
    rng = random.Random(1)
    measured = timed(ScriptedDevice(lambda: 20.0 + rng.random()))
    assert 20 < measured.low_us < measured.median_us < measured.high_us < 21
    assert measured.samples >= 9
    assert measured.compile_us is None


def test_the_speed_of_light_is_the_larger_of_bytes_and_flops() -> None:
    assert floor_us(ScriptedDevice(), OP, WORKLOAD) == pytest.approx(2 * READ_US)


def test_a_device_without_known_rates_has_no_speed_of_light() -> None:
    emulated = DeviceInfo("emulated", "CPU", "sm_90a", 1, 1024)
    assert floor_us(ScriptedDevice(info=emulated), OP, WORKLOAD) is None


def test_outputs_that_do_not_fit_in_the_l2_count_towards_the_physical_limit() -> None:
    large_l2 = DeviceInfo(**{**INFO.__dict__, "l2_bytes": 2**30})
    assert physical_us(ScriptedDevice(), OP, WORKLOAD) == pytest.approx(0.8 * 2 * READ_US)
    assert physical_us(ScriptedDevice(info=large_l2), OP, WORKLOAD) == pytest.approx(0.8 * READ_US)


def test_products_count_towards_the_physical_limit_as_in_the_speed_of_light() -> None:
    fast = DeviceInfo(**{**INFO.__dict__, "tflops": (("float32", 50.0), ("float16", 750.0))})
    product = replace(OP, matrix_flops=lambda _: 10**12)
    assert physical_us(ScriptedDevice(info=fast), product, WORKLOAD) == pytest.approx(0.8 * 4000.0)
    assert floor_us(ScriptedDevice(info=fast), product, WORKLOAD) == pytest.approx(4000.0)


def test_a_time_too_short_to_read_the_inputs_is_implausible() -> None:
    with pytest.raises(RejectedError) as caught:
        timed(ScriptedDevice(lambda: READ_US / 2), workload=WORKLOAD)
    assert caught.value.outcome is Outcome.IMPLAUSIBLE


def test_a_clear_loser_gets_a_coarse_measurement_that_encloses_its_samples() -> None:
    rng = random.Random(1)
    times = [30.0 + rng.random() for _ in range(100)]
    clock = iter(times)
    measured = timed(ScriptedDevice(lambda: next(clock)), bar_us=20.0)
    assert measured.coarse
    assert measured.samples == 6
    assert measured.graph_us is None
    assert {measured.low_us, measured.high_us} <= set(times)
    assert measured.high_us - measured.low_us > 0.1


def test_a_kernel_with_one_slow_sample_is_not_a_loser() -> None:
    """Every sample has to exceed the time to beat, because a single one may be disturbed."""
    clock = itertools.cycle([40.0, 40.0, 40.0, 40.0, 20.0])
    assert timed(ScriptedDevice(lambda: next(clock)), bar_us=20.0).samples >= 9


def test_without_a_time_to_beat_a_kernel_far_above_pytorch_is_timed_less() -> None:
    assert timed(ScriptedDevice(lambda: 61.0)).samples == 6
    assert timed(ScriptedDevice(lambda: 59.0)).samples > 9


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_contenders_are_never_timed_coarsely(noise: float) -> None:
    """400 simulated kernels within 5 % of the champion; some of their samples are disturbed."""
    rng = random.Random(17)
    for _ in range(400):
        true_us = 100.0 * rng.uniform(0.8, 1.05)
        samples: list[float] = []
        while _continue(samples, 0.0, 100.0, math.inf):
            disturbed = 1.0 if rng.random() > 0.05 else rng.uniform(1.1, 2.0)
            samples.append(true_us * math.exp(rng.gauss(0.0, noise)) * disturbed)
        assert len(samples) >= 9


def test_a_kernel_close_to_the_time_to_beat_is_timed_longer() -> None:
    device = ScriptedDevice(lambda: 20.0)
    assert timed(device, bar_us=20.0).samples > timed(device, bar_us=18.0).samples == timed(device).samples


def test_every_timed_call_gets_new_inputs_and_poisoned_outputs() -> None:
    seen: list[float] = []
    poisons: set[int] = set()

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        (poison,) = tensors["out"].view(torch.uint8).unique().tolist()
        poisons.add(poison)
        seen.append(float(tensors["x"][0]))
        twice(tensors)

    timed(ScriptedDevice(), work)
    assert len(set(seen)) == len(seen) > 9
    assert poisons == set(POISONS)


@each({f"seed {seed}": (seed,) for seed in range(9)})
def test_the_first_timed_calls_meet_every_poison(seed: int) -> None:
    poisons: list[int] = []

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        poisons.append(int(tensors["out"].view(-1).view(torch.uint8)[0]))
        twice(tensors)

    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(seed), [], lambda _: None)
    measure(inspector, program(work), OP, SMALL, Baselines(20.0))
    assert set(poisons[1 : 1 + len(POISONS)]) == set(POISONS)  # the call before them is a warm-up


def test_calls_in_a_graph_have_inputs_also_if_fewer_calls_were_timed_than_there_are_sets_of_buffers() -> None:
    poisoned: list[bool] = []

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        poisoned.append(bool((tensors["x"].view(-1).view(torch.uint8) == POISONS[1]).all()))
        twice(tensors)

    def in_a_graph(calls: Sequence[Callable[[], object]]) -> float:
        poisoned.clear()
        for call in calls:
            call()
        return 1.0

    times = itertools.chain([5.0] * 4, itertools.repeat(15.0))
    device = ScriptedDevice(
        lambda: next(times), replace(INFO, l2_bytes=2**20), work, tools=Tools(graph_time=in_a_graph)
    )
    measured = timed(device, work, bar_us=5.0)
    assert 9 <= measured.samples < MOST_SETS
    assert len(poisoned) > MOST_SETS
    assert not any(poisoned)


def test_other_baselines_are_scaled_if_eager_pytorch_has_become_faster() -> None:
    faster = Baselines(20.0, 10.0, None).anchored(18.0)
    assert faster.compile_us == pytest.approx(9.0)
    assert (faster.eager_us, faster.autotune_us) == (18.0, None)


def test_other_baselines_are_not_scaled_if_eager_pytorch_has_become_slower() -> None:
    assert Baselines(20.0, 10.0).anchored(25.0) == Baselines(20.0, 10.0)


def test_other_baselines_are_not_scaled_within_the_noise_of_eager_pytorch() -> None:
    assert Baselines(20.0, 10.0).anchored(19.7) == Baselines(20.0, 10.0)


def test_pytorch_never_computes_on_the_inputs_of_a_later_call() -> None:
    """Otherwise the expected result would be in memory when the kernel runs."""
    known: list[torch.Tensor] = []
    reference = OP.reference

    def remembering(x: torch.Tensor) -> torch.Tensor:
        known.append(x.clone())
        return reference(x)  # type: ignore[return-value]

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        assert not any(torch.equal(tensors["x"], x) for x in known)
        twice(tensors)

    device = ScriptedDevice()
    inspector = Inspector(device, Arena("cpu"), random.Random(3), [], lambda _phase: None)
    spied = OP.__class__(**{**OP.__dict__, "baseline": remembering})
    measure(inspector, program(work), spied, SMALL, Baselines(20.0))
    assert known


class Memo:
    """Work that stores its first result and copies it whenever the inputs seem to be the same."""

    def __init__(self, *, by_address: bool) -> None:
        self.by_address = by_address
        self.answers: dict[object, torch.Tensor] = {}

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        key = tensors["x"].data_ptr() if self.by_address else float(tensors["x"].shape[0])
        if key not in self.answers:
            self.answers[key] = 2 * tensors["x"]
        tensors["out"].copy_(self.answers[key])


@pytest.mark.parametrize("by_address", [True, False], ids=["by address", "by size"])
def test_a_kernel_that_stores_its_results_fails(by_address: bool) -> None:
    with pytest.raises(RejectedError, match="right when checked, wrong when timed"):
        timed(ScriptedDevice(), Memo(by_address=by_address))


@pytest.mark.parametrize("honest", [1, 5])
def test_a_kernel_that_stops_working_after_some_calls_fails(honest: int) -> None:
    left = [honest]

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        left[0] -= 1
        if left[0] >= 0:
            twice(tensors)

    with pytest.raises(RejectedError, match="right when checked, wrong when timed"):
        timed(ScriptedDevice(), work)


class SkipsSometimes:
    """Work that is skipped in every `one_of`-th call, which then takes half the time."""

    def __init__(self, one_of: int) -> None:
        self.one_of, self.calls, self.took_us = one_of, 0, 20.0

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.calls += 1
        lazy = self.calls % self.one_of == 0
        self.took_us = 10.0 if lazy else 20.0
        if not lazy:
            twice(tensors)


@pytest.mark.parametrize(("workloads", "checked"), [(1, 6), (2, 3), (3, 2), (9, 2)])
def test_more_calls_are_checked_if_few_workloads_are_timed(workloads: int, checked: int) -> None:
    inspector = Inspector(ScriptedDevice(), Arena("cpu"), random.Random(3), [], lambda _: None)
    measure(inspector, program(twice), OP, SMALL, Baselines(20.0), workloads=workloads)
    assert len(inspector.checks) in (checked, checked + 1)  # the fastest call may be one of them


@each({f"one of {one_of}, seed {seed}": (one_of, seed) for one_of in (2, 9) for seed in range(5)})
def test_the_output_of_the_fastest_call_is_always_checked(one_of: int, seed: int) -> None:
    work = SkipsSometimes(one_of)
    inspector = Inspector(ScriptedDevice(lambda: work.took_us), Arena("cpu"), random.Random(seed), [], lambda _: None)
    with pytest.raises(RejectedError, match="right when checked, wrong when timed"):
        measure(inspector, program(work), OP, SMALL, Baselines(20.0))


def test_a_write_between_buffers_during_timing_is_found() -> None:
    calls = [0]

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        twice(tensors)
        calls[0] += 1
        if calls[0] == 6:
            tensors["out"].as_strided((tensors["out"].numel() + 3,), (1,))[-1] = 7

    with pytest.raises(RejectedError, match=r"bytes behind it \(while it was timed\)") as caught:
        timed(ScriptedDevice(), work)
    assert caught.value.outcome is Outcome.OUT_OF_BOUNDS


def test_timed_calls_get_inputs_of_different_scales() -> None:
    spreads: list[float] = []

    def work(tensors: Mapping[str, torch.Tensor]) -> None:
        spreads.append(float(tensors["x"].std()))
        twice(tensors)

    timed(ScriptedDevice(), work, workload=Workload("float32", (("n", 4096),)))
    assert max(spreads) / min(spreads) > 3


@each({f"{count} samples": count for count in (1, 2, 7, 60)})
def test_the_interval_of_a_median_encloses_it(count: int) -> None:
    samples = sorted(random.Random(count).random() for _ in range(count))
    low, high = median_interval(samples)
    assert low <= statistics.median(samples) <= high
