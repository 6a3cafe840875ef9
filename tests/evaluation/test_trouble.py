"""What is made of a fault of the GPU that comes to light late; the GPU's part is scripted but for the last test."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bad_kernels import twice_kernel
from scripted_device import INFO, OP, ScriptedDevice

from archive.records import Outcome
from evolve import wiring
from evolve.engines import sandbox, worker
from evolve.engines.messages import Assignment, Done, Fork, Message, Role
from evolve.evaluation.trouble import gpu_fault

TESTS = Path(__file__).parents[1]
SAID = "CUDA error: misaligned address"
LATE = """
import torch
from device_kernels import bound, made, single
from evolve.evaluation.trouble import gpu_fault

device, y = made("cuda"), torch.ones(32, dtype=torch.int32, device="cuda")
program = device.compile(bound(single("*(volatile double*)((char*)y + 2) = 1.0;", "int* y"), {"y": y}))
assert not gpu_fault()
program.launch({"y": y})
print(gpu_fault())
print(gpu_fault())
"""


def broken() -> None:
    raise RuntimeError(f"{SAID}\nand many more lines")


def answered(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Message]:
    """What a worker says of a kernel over whose evaluation the GPU breaks, or so it seems."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("some later call failed")

    monkeypatch.setattr(wiring, "device", lambda *_: ScriptedDevice())
    monkeypatch.setattr(sandbox, "enter", lambda *_: None)
    monkeypatch.setattr(worker, "evaluate", fail)
    file = str(TESTS / "samples" / "twice.py")
    job = Assignment(twice_kernel().text, file, (), confirm=False, shapes_seed=0, device=INFO)
    fork = Fork(1, Role.EVALUATOR, str(folder), str(folder), None, None)
    said: list[Message] = []
    worker._evaluate("emulated", fork, iter([job]), folder, said.append)
    return said


def test_where_all_is_well_nothing_is_said() -> None:
    assert gpu_fault() == ""


def test_the_first_line_of_a_fault_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    assert gpu_fault() == SAID


def test_a_kernel_that_broke_the_gpu_has_crashed_wherever_that_showed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    verdict = answered(monkeypatch, tmp_path)[-1]
    assert isinstance(verdict, Done)
    assert (verdict.evaluation.outcome, verdict.evaluation.log) == (Outcome.CRASHED, SAID)
    assert verdict.evaluation.op == OP.name
    assert verdict.leaving


def test_an_error_on_a_sound_gpu_is_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="some later call failed"):
        answered(monkeypatch, tmp_path)


@pytest.mark.gpu
def test_a_fault_of_a_kernel_that_nobody_has_waited_for_is_found_and_lasts() -> None:
    paths = [str(TESTS.parent), str(TESTS / "support")]
    script = f"import sys; sys.path[:0] = {paths!r}{LATE}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [SAID, SAID], done.stderr
