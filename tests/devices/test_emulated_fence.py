"""Memory behind which any access faults, on the emulated device."""

import subprocess
import sys

import pytest
import torch

from evolve.devices.emulated.fence import fenced

READ = "import ctypes; from evolve.devices.emulated.fence import fenced; memory = fenced({nbytes}); "
READ += "print(ctypes.string_at(memory.data_ptr() + len(memory) - 16, {read}) == bytes(16))"


def reads(read: int, nbytes: int) -> "subprocess.CompletedProcess[str]":
    """Read so many bytes, the first 16 of which are the last that may be read."""
    source = READ.format(nbytes=nbytes, read=read)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000])
def test_the_last_bytes_in_front_of_a_fence_can_be_read(nbytes: int) -> None:
    assert reads(16, nbytes).stdout == "True\n"


@pytest.mark.parametrize("nbytes", [1, 4096, 100_000])
def test_a_read_behind_a_fence_faults(nbytes: int) -> None:
    assert reads(17, nbytes).returncode < 0


def test_fenced_memory_is_as_large_as_asked_for_and_can_be_written() -> None:
    memory = fenced(100_000)
    assert memory is not None
    assert len(memory) >= 100_000
    assert memory.fill_(7).eq(7).all()
    assert memory.dtype == torch.uint8
