"""Traits of a kernel's GPU code, which every device reports if a GPU compiler is installed."""

from importlib.util import find_spec

import pytest
import torch
from device_kernels import EVERY_DEVICE, bound, single

from archive.records import Traits
from evolve.devices import choose
from evolve.devices.device import Device
from evolve.devices.emulated.device import EmulatedDevice

X = {"x": torch.zeros(4096), "y": torch.zeros(4096)}
COPY = "reinterpret_cast<float4*>(y)[threadIdx.x] = reinterpret_cast<const float4*>(x)[threadIdx.x];"
WITH_CUBIN = pytest.mark.skipif(find_spec("cupy") is None, reason="no GPU compiler is installed")


@pytest.fixture(scope="module", params=EVERY_DEVICE)
def device(request: pytest.FixtureRequest) -> Device:
    return choose.make(request.param)


def traits(device: Device, body: str, block: str = "[64]", more: str = "") -> Traits:
    found = device.compile(bound(single(body, "const float* x, float* y", block=block, more=more), X)).traits
    assert found
    return found


@WITH_CUBIN
def test_a_program_has_the_traits_of_its_machine_code(device: Device) -> None:
    found = traits(device, COPY, more="shared = 2000")
    assert (found.load_bytes, found.store_bytes, found.shared_bytes) == (16, 16, 2000)
    assert (found.threads, found.launches, found.tensor_cores, found.atomics) == (64, 1, False, False)
    assert 0 < found.registers < 32
    assert 0 < found.occupancy <= 1


@WITH_CUBIN
def test_the_hash_of_the_code_depends_only_on_the_running_code(device: Device) -> None:
    assert traits(device, COPY).code == traits(device, f"// as before\n{COPY}").code
    assert traits(device, COPY).code != traits(device, COPY, block="[32]").code
    assert traits(device, COPY).code != traits(device, COPY.replace("4*", "2*")).code


@WITH_CUBIN
def test_traits_say_whether_there_are_atomics(device: Device) -> None:
    assert traits(device, "atomicAdd(y, x[threadIdx.x]);").atomics


def test_without_a_gpu_compiler_there_are_no_traits() -> None:
    assert EmulatedDevice().compile(bound(single("y[0] = x[0];", "const float* x, float* y"), X)).traits is None
