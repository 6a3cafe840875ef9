"""Timing on a scripted device: it computes with PyTorch, and its clock says what the test wants."""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import bad_kernels
import pytest
import torch

from archive.binding import Bound, bind
from archive.records import DeviceInfo, Outcome, Resources
from evolve.devices.device import Program, RejectedError
from evolve.evaluation.check import Task
from evolve.evaluation.timing import eager_only, floor_us, measure, median_interval
from evolve.points import point
from reference_ops import catalog

OP = catalog.load(str(Path(__file__).parents[1] / "samples" / "twice.py"))
WORKLOAD = OP.gpu[0]  # 2**20 float32: 4.19 MB in, 4.19 MB out
INFO = DeviceInfo("cuda", "Scripted", "sm_90a", 1, 1024, copy_gb_s=1000.0, tflops=(("float32", 1.0),))
READ_US = 4 * 2**20 / 1e3 / 1e3


@dataclass
class Doubling:
    """Launches that double their input, until they have had enough."""

    bound: Bound
    honest_launches: int = 10**9
    resources: tuple[Resources, ...] = ()
    log: str = ""

    def launch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self.honest_launches -= 1
        if self.honest_launches >= 0:
            tensors["out"].copy_(2 * tensors["x"])


@dataclass
class ScriptedDevice:
    clock: Callable[[], float]
    info: DeviceInfo = INFO
    torch_device: str = "cpu"

    def compile(self, bound: Bound) -> Program:
        return Doubling(bound)

    def run(self, program: Program, tensors: Mapping[str, torch.Tensor]) -> None:
        program.launch(tensors)

    def time(self, call: Callable[[], object]) -> float:
        call()
        return self.clock()


def program(honest_launches: int = 10**9) -> Doubling:
    return Doubling(bind(bad_kernels.twice_kernel(), point(OP, WORKLOAD, INFO)), honest_launches)


def test_the_median_and_its_interval_are_those_of_the_samples() -> None:
    rng = random.Random(1)
    device = ScriptedDevice(lambda: 20.0 + rng.random())
    measured = measure(device, program(), Task(OP, WORKLOAD, 7), eager_only(OP, WORKLOAD))
    assert 20 < measured.low_us < measured.median_us < measured.high_us < 21
    assert measured.samples >= 7
    assert measured.compile_us is None


def test_the_speed_of_light_is_the_larger_of_bytes_and_flops() -> None:
    assert floor_us(ScriptedDevice(lambda: 1.0), OP, WORKLOAD) == pytest.approx(2 * READ_US)


def test_a_device_without_known_rates_has_no_speed_of_light() -> None:
    emulated = DeviceInfo("emulated", "CPU", "sm_90a", 1, 1024)
    assert floor_us(ScriptedDevice(lambda: 1.0, emulated), OP, WORKLOAD) is None


def test_faster_than_the_inputs_can_be_read_is_implausible() -> None:
    with pytest.raises(RejectedError) as caught:
        measure(ScriptedDevice(lambda: READ_US / 2), program(), Task(OP, WORKLOAD, 7), eager_only(OP, WORKLOAD))
    assert caught.value.outcome is Outcome.IMPLAUSIBLE


def test_a_kernel_that_stops_working_once_it_is_warm_is_found_out() -> None:
    with pytest.raises(RejectedError, match="right when checked, wrong when timed"):
        measure(ScriptedDevice(lambda: 20.0), program(5), Task(OP, WORKLOAD, 7), eager_only(OP, WORKLOAD))


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_the_interval_of_a_median_encloses_it(count: int) -> None:
    samples = sorted(random.Random(count).random() for _ in range(count))
    low, high = median_interval(samples)
    assert low <= statistics.median(samples) <= high
