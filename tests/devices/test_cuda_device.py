"""The cuda device on a GPU: leftover memory, caches, clocks and graphs."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from secrets import randbits

import pytest
import torch
from device_kernels import bound, made, single

from evolve.devices.device import Program, RejectedError

pytest.importorskip("cupy")

from evolve.devices.cuda.device import CudaDevice
from evolve.devices.cuda.memory import LIMIT_BYTES

pytestmark = pytest.mark.gpu
I32 = torch.int32
MAGIC = 123456789
ALL_SHARED = 220 * 1024
TRIES = 50


@pytest.fixture(scope="module")
def device() -> CudaDevice:
    found = made("cuda")
    assert isinstance(found, CudaDevice)
    return found


def compiled(device: CudaDevice, body: str, tensors: Mapping[str, torch.Tensor], **how: str) -> Program:
    arguments = ", ".join(f"int* {name}" for name in tensors)
    return device.compile(bound(single(body, arguments, **how), tensors))


def doubling(device: CudaDevice, y: torch.Tensor) -> Program:
    return compiled(device, "y[threadIdx.x] *= 2;", {"y": y})


@pytest.mark.parametrize("earlier_runs", [0, 1, 2])
def test_no_earlier_tensor_is_left_in_free_memory(device: CudaDevice, earlier_runs: int) -> None:
    y = torch.ones(32, dtype=I32, device="cuda")
    program = doubling(device, y)
    for _ in range(earlier_runs):
        device.run(program, {"y": y})
    sizes = [64, 1 << 12, 1 << 20, 1 << 24]
    secrets = [torch.full((size,), MAGIC, dtype=I32, device="cuda") for size in sizes]
    places = {secret.data_ptr() for secret in secrets}
    del secrets
    device.run(program, {"y": y})
    found = [torch.empty(size, dtype=I32, device="cuda") for size in sizes]
    assert places & {tensor.data_ptr() for tensor in found}
    assert not any(bool((tensor == MAGIC).any()) for tensor in found)


def filled_everywhere(device: CudaDevice, y: torch.Tensor) -> Program:
    """Fill all shared memory with a number and return a program that counts how often it finds that number."""
    body = "extern __shared__ int s[]; volatile int* held = s; for (int i = threadIdx.x; i < {n}; i += 1024) {do}"
    how = {"block": "[1024]", "more": f"shared = {ALL_SHARED}"}
    sms = device.info.sms
    fill = body.format(n=ALL_SHARED // 4, do=f"held[i] = {MAGIC};")
    count = body.format(n=ALL_SHARED // 4, do=f"atomicAdd(&y[blockIdx.x], held[i] == {MAGIC});")
    device.run(compiled(device, fill, {"y": y}, grid=f"[{8 * sms}]", **how), {"y": y})
    y.zero_()
    return compiled(device, count, {"y": y}, grid=f"[{sms}]", **how)


def left_behind(device: CudaDevice, y: torch.Tensor) -> int:
    """Return how many filled words of shared memory the next kernel finds, if no other process ran in between."""
    filled_everywhere(device, y).launch({"y": y})
    return int(y.sum())


def test_shared_memory_is_overwritten_on_every_multiprocessor_before_a_run(device: CudaDevice) -> None:
    y = torch.zeros(device.info.sms, dtype=I32, device="cuda")
    assert any(left_behind(device, y) for _ in range(TRIES))  # `launch` alone does not overwrite shared memory
    program = filled_everywhere(device, y)
    device.run(program, {"y": y})
    assert int(y.sum()) == 0


def test_shared_memory_is_overwritten_before_a_timed_call_too(device: CudaDevice) -> None:
    y = torch.zeros(device.info.sms, dtype=I32, device="cuda")
    program = filled_everywhere(device, y)
    device.time(lambda: program.launch({"y": y}))
    assert int(y.sum()) == 0


def test_a_timed_call_does_not_find_its_input_in_the_cache(device: CudaDevice) -> None:
    """A copy of 16 MB from the cache would take less than half the time."""
    x = torch.ones(1 << 22, dtype=I32, device="cuda")
    y = torch.empty_like(x)

    def again_and_again() -> None:
        for _ in range(10):
            y.copy_(x)

    cold = min(device.time(lambda: y.copy_(x)) for _ in range(10))
    warm = min(device.time(again_and_again) for _ in range(10)) / 10
    assert warm < 0.8 * cold


def test_time_lost_on_a_slow_host_does_not_count_as_gpu_time(device: CudaDevice) -> None:
    """The host is slow if other processes keep its cores busy, or if a call launches many kernels."""
    x = torch.ones(1 << 10, device="cuda")

    def hesitant() -> None:
        x.add_(1)
        time.sleep(0.002)
        x.add_(1)

    later = [device.time(hesitant) for _ in range(20)][10:]
    assert statistics.median(later) < 200


def test_registers_are_reported_again_for_a_kernel_that_was_compiled_before(device: CudaDevice) -> None:
    """If a driver is installed, NVRTC caches cubins on disk, but not the compiler's report on registers."""
    y = torch.zeros(32, dtype=I32, device="cuda")
    number = randbits(30)  # random, so that these kernels were never compiled before
    programs = [compiled(device, f"y[threadIdx.x] = {number}; // {said}", {"y": y}) for said in ("once", "again")]
    assert [program.resources for program in programs] == [programs[0].resources] * 2
    assert len(programs[0].resources) == 1


def test_known_rates_are_not_measured_again(device: CudaDevice) -> None:
    known = replace(device.info, copy_gb_s=1.0, tflops=(("float32", 2.0),))
    assert CudaDevice(known).info == known


def test_reading_from_the_l2_launches_and_grid_barriers_are_measured(device: CudaDevice) -> None:
    info = device.info
    assert info.copy_gb_s < info.l2_gb_s < 20 * info.copy_gb_s
    assert 0.3 < info.launch_us < 20
    assert 0.3 < info.grid_barrier_us < 20


def test_known_rates_of_another_gpu_are_not_used(device: CudaDevice) -> None:
    assert CudaDevice(replace(device.info, name="another", copy_gb_s=1.0)).info.copy_gb_s > 10.0


def test_the_output_of_kernels_is_bounded() -> None:
    # in a new process, like a worker: the driver refuses the limit after a kernel that can print
    script = """
from cupy.cuda import runtime
from evolve.devices import choose
assert choose.make("cuda").info.sms
print(runtime.deviceGetLimit(runtime.cudaLimitPrintfFifoSize))
"""
    printed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert int(printed) <= 8 * LIMIT_BYTES  # drivers round up


def test_a_kernel_that_prints_without_end_finishes(device: CudaDevice, capfd: pytest.CaptureFixture[str]) -> None:
    y = torch.zeros(32, dtype=I32, device="cuda")
    body = 'for (int i = 0; i < 1000; ++i) printf("%d of many words\\n", i);\ny[threadIdx.x] = 1;'
    device.run(compiled(device, body, {"y": y}, grid="[4]"), {"y": y})
    assert int(y.sum()) == 32
    assert len(capfd.readouterr().out) < 2**20


def test_conditions_hold_clocks_temperature_and_power(device: CudaDevice) -> None:
    assert device.tools.conditions
    now = device.tools.conditions()
    assert now is not None
    assert 100 < now.sm_mhz < 5000
    assert 100 < now.memory_mhz < 20000
    assert 10 < now.temperature_c < 110
    assert 10 < now.power_w < 2000


def graph_time(device: CudaDevice, calls: Sequence[Callable[[], object]]) -> float | None:
    assert device.tools.graph_time
    return device.tools.graph_time(calls)


def test_calls_in_a_graph_take_less_time_than_separate_calls(device: CudaDevice) -> None:
    y = torch.ones(32, dtype=I32, device="cuda")
    program = doubling(device, y)
    alone = device.time(lambda: program.launch({"y": y}))
    together = graph_time(device, [lambda: program.launch({"y": y})] * 20)
    assert together is not None
    assert 0 < together < alone


def test_a_graph_runs_every_call_in_order(device: CudaDevice) -> None:
    y = torch.ones(32, dtype=I32, device="cuda")
    double, add = doubling(device, y), compiled(device, "y[threadIdx.x] += 1;", {"y": y})
    calls = [lambda: double.launch({"y": y}), lambda: add.launch({"y": y}), lambda: y.remainder_(1000)]
    expected, replays = 1, 0
    assert graph_time(device, calls) is not None
    while replays < 64 and expected != int(y[0]):
        expected, replays = (2 * expected + 1) % 1000, replays + 1
    assert 0 < replays < 64


def test_a_call_that_cannot_be_captured_has_no_graph_time_but_the_next_one_does(device: CudaDevice) -> None:
    y = torch.ones(32, dtype=I32, device="cuda")
    assert graph_time(device, [lambda: y.sum().item()]) is None
    program = doubling(device, y)
    device.run(program, {"y": y})
    assert y.tolist() == [2] * 32
    assert graph_time(device, [lambda: program.launch({"y": y})]) is not None


def test_a_table_that_is_changed_within_a_graph_counts_as_state(device: CudaDevice) -> None:
    y = torch.ones(32, dtype=I32, device="cuda")
    kernel = single("table[threadIdx.x % 2] = y[threadIdx.x];", "int* y")
    kernel = kernel.replace('extern "C"', '__device__ int table[2] = {1, 2};\nextern "C"')
    program = device.compile(bound(kernel, {"y": y}))
    y += 4
    with pytest.raises(RejectedError, match="`table`"):
        graph_time(device, [lambda: program.launch({"y": y})])
