"""Detection of GPU faults that the driver reports late, and of full memory."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from evolve.devices.device_errors import gpu_fault, out_of_memory

TESTS = Path(__file__).parents[1]
MESSAGE = "CUDA error: misaligned address"
LATE_FAULT = """
import torch
from device_kernels import bound, made, single
from evolve.devices.device_errors import gpu_fault

device, y = made("cuda"), torch.ones(32, dtype=torch.int32, device="cuda")
program = device.compile(bound(single("*(volatile double*)((char*)y + 2) = 1.0;", "int* y"), {"y": y}))
assert not gpu_fault()
program.launch({"y": y})
print(gpu_fault())
print(gpu_fault())
"""


def test_a_gpu_that_works_has_no_fault() -> None:
    assert gpu_fault() == ""


def test_a_fault_is_the_first_line_of_the_drivers_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError(f"{MESSAGE}\nand many more lines")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert gpu_fault() == MESSAGE


def test_full_memory_is_distinguished_from_other_errors() -> None:
    full = (MemoryError(), torch.OutOfMemoryError("CUDA"), RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    assert all(map(out_of_memory, full))
    assert not out_of_memory(RuntimeError(MESSAGE))


@pytest.mark.gpu
def test_a_pending_fault_of_a_kernel_is_found_and_lasts() -> None:
    paths = [str(TESTS.parent), str(TESTS / "support")]
    script = f"import sys; sys.path[:0] = {paths!r}{LATE_FAULT}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [MESSAGE, MESSAGE], done.stderr
