"""ncu's counters for real kernels on a GPU. `test_profiler.py` tests the rest without one."""

import pytest
import torch
from device_kernels import PAIR, bound, made, single

from evolve.devices import counters
from evolve.devices.device import Device

pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def device() -> Device:
    found = made("cuda")
    if found.tools.profiler is None:
        pytest.skip("ncu is not installed")
    return found


N = 1 << 25


def profiled(device: Device, body: str) -> dict[str, float]:
    """Return the counters of a kernel with one thread per element of `x` and `y`, which hold 128 MiB each."""
    assert device.tools.profiler
    x = torch.rand(N, device="cuda")
    kernel = single(body, "const float* x, float* y", block="[256]", grid=f"[{N // 256}]")
    counted = device.tools.profiler(bound(kernel, {"x": x, "y": x}), {"x": x}, {"y": x.nbytes}, 90.0)
    if counted.lasting:
        pytest.skip(counted.fault)
    assert not counted.fault
    return dict(counted.counters)


NEIGHBOURS = "const long i = blockIdx.x * 256l + threadIdx.x;\ny[i] = x[i];"
# Lanes are 32 elements apart, so that each load of a warp reads a sector per lane.
APART = f"const long i = blockIdx.x * 256l + threadIdx.x;\ny[i] = x[i * 32 % {N} + i / {N // 32}];"


@pytest.mark.gpu
def test_a_copy_moves_each_byte_once(device: Device) -> None:
    found = profiled(device, NEIGHBOURS)
    nbytes = 4 * N
    assert found[counters.DRAM_READ.name] == pytest.approx(nbytes, rel=0.05)
    # some of the written bytes remain in the L2 cache
    assert 0.4 * nbytes < found[counters.DRAM_WRITTEN.name] < 1.05 * nbytes
    assert found[counters.LOAD_REQUESTS.name] == N / 32
    assert 10_000 < found[counters.DURATION.name] < 5_000_000
    assert found[counters.DRAM.name] > 40


@pytest.mark.gpu
def test_lanes_that_are_far_apart_load_a_sector_each(device: Device) -> None:
    def sectors_per_load(body: str) -> float:
        found = profiled(device, body)
        return found[counters.LOAD_SECTORS.name] / found[counters.LOAD_REQUESTS.name]

    assert sectors_per_load(NEIGHBOURS) == pytest.approx(4, rel=0.01)
    assert sectors_per_load(APART) == pytest.approx(32, rel=0.01)


@pytest.mark.gpu
def test_every_counter_is_known_on_this_gpu(device: Device) -> None:
    assert {counter.name for counter in counters.COUNTERS} - profiled(device, NEIGHBOURS).keys() == set()


@pytest.mark.gpu
def test_several_launches_give_one_set_of_counters(device: Device) -> None:
    assert device.tools.profiler
    x = torch.rand(32, device="cuda")
    skipped, whole = (
        device.tools.profiler(bound(PAIR, {"x": x, "y": x}, {"n": n}), {"x": x}, {"y": 128}, 90.0) for n in (1, 2)
    )
    assert [skipped.fault, whole.fault] == ["", ""]
    requests = [dict(counted.counters)[counters.STORE_REQUESTS.name] for counted in (skipped, whole)]
    assert requests == [3, 4]


@pytest.mark.gpu
def test_an_endless_kernel_is_killed_and_the_gpu_still_works(device: Device) -> None:
    assert device.tools.profiler
    x = torch.rand(32, device="cuda")
    endless = single("while (((volatile float*)x)[0] < 2.f) {}\ny[0] = 1;", "const float* x, float* y")
    assert device.tools.profiler(bound(endless, {"x": x, "y": x}), {"x": x}, {"y": 128}, 8.0).fault
    assert profiled(device, NEIGHBOURS)
