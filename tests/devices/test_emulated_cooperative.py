"""Cooperative grids on the emulated device: all blocks are resident at once."""

from pathlib import Path

import pytest
import torch
from device_kernels import bound, rejected, single

from archive.records import Outcome
from evolve.devices.emulated.device import EmulatedDevice

MAPPINGS = Path("/proc/self/maps")
Y = {"y": torch.zeros(4096, dtype=torch.int32)}


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice()


def with_groups(kernel: str) -> str:
    return kernel.replace("#include <cuda_fp16.h>", "#include <cooperative_groups.h>")


def test_a_grid_barrier_in_an_ordinary_launch_is_refused(device: EmulatedDevice) -> None:
    error = rejected(device, with_groups(single("cooperative_groups::this_grid().sync();", "int* y")), Y)
    assert "cooperative = true" in error.log


def test_blocks_that_end_before_a_grid_barrier_cause_a_deadlock(device: EmulatedDevice) -> None:
    body = "if (blockIdx.x) cooperative_groups::this_grid().sync();"
    error = rejected(device, with_groups(single(body, "int* y", grid="[4]", more="cooperative = true")), Y)
    assert "others have ended" in error.log


def test_a_trap_stops_the_other_blocks_of_a_cooperative_grid(device: EmulatedDevice) -> None:
    body = "if (blockIdx.x == 1) __trap();\ncooperative_groups::this_grid().sync();"
    error = rejected(device, with_groups(single(body, "int* y", grid="[4]", more="cooperative = true")), Y)
    assert error.outcome == Outcome.CRASHED


@pytest.mark.exhaustive
def test_blocks_of_a_cooperative_grid_can_start_threads_while_others_end_theirs(device: EmulatedDevice) -> None:
    kernel = single(
        "__syncthreads();\natomicAdd(y, 1);", "int* y", block="[512]", grid="[8]", more="cooperative = true"
    )
    y = torch.zeros(1, dtype=torch.int32)
    program = device.compile(bound(kernel, {"y": y}))
    for _ in range(300):
        device.run(program, {"y": y})
    assert y.item() == 300 * 8 * 512


def mappings() -> int:
    return len(MAPPINGS.read_text().splitlines())


@pytest.mark.skipif(not MAPPINGS.exists(), reason="only Linux lists a process's mappings")
@pytest.mark.parametrize("more", ["cooperative = true", ""], ids=["cooperative", "in turn"])
def test_programs_use_the_same_stacks_in_turn(device: EmulatedDevice, more: str) -> None:
    """Otherwise a kernel with a program of its own for each workload exceeds the number of a process's mappings."""
    y, programs, before = torch.zeros(1, dtype=torch.int32), [], mappings()
    for number in range(4):
        kernel = single(f"__syncthreads();\ny[0] = {number};", "int* y", block="[1024]", grid="[2]", more=more)
        programs.append(device.compile(bound(kernel, {"y": y})))
        device.run(programs[-1], {"y": y})
    blocks, threads = 2, 1024  # the blocks of a cooperative grid run at the same time, or one after the other
    assert mappings() - before < 2 * blocks * threads + 300  # each stack has two, and a loaded program a few
