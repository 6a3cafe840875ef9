"""Memory with a fence on the emulated device: any access after its end faults."""

import subprocess
import sys

import pytest
import torch

from evolve.devices.emulated.device import fenced

SIZES = (1, 4096, 100_000)
# Reads bytes, each time in a separate process. Only the first 16 may be read.
READS = f"""
import ctypes, os
from evolve.devices.emulated.device import fenced

def read(count, nbytes):
    memory = fenced(nbytes)
    return ctypes.string_at(memory.data_ptr() + len(memory) - 16, count) == bytes(16)

for nbytes in {SIZES}:
    for count in (16, 17):
        if (pid := os.fork()) == 0:
            os._exit(0 if read(count, nbytes) else 1)
        print(nbytes, count, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture(scope="module")
def statuses() -> dict[tuple[int, int], int]:
    """Return the exit status of each read by the size of the memory and the number of bytes."""
    done = subprocess.run([sys.executable, "-c", READS], capture_output=True, text=True, check=True)
    rows = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    return {(nbytes, count): status for nbytes, count, status in rows}


@pytest.mark.parametrize("nbytes", SIZES)
def test_the_last_bytes_in_front_of_a_fence_can_be_read(nbytes: int, statuses: dict[tuple[int, int], int]) -> None:
    assert statuses[nbytes, 16] == 0


@pytest.mark.parametrize("nbytes", SIZES)
def test_a_read_beyond_a_fence_faults(nbytes: int, statuses: dict[tuple[int, int], int]) -> None:
    assert statuses[nbytes, 17] < 0


def test_fenced_memory_has_the_requested_size_and_can_be_written() -> None:
    memory = fenced(100_000)
    assert memory is not None
    assert len(memory) >= 100_000
    assert memory.fill_(7).eq(7).all()
    assert memory.dtype == torch.uint8
