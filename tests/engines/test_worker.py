"""The verdict of a worker whose GPU fails or lacks memory during an evaluation, on a scripted device."""

from pathlib import Path

import pytest
import torch
from bad_kernels import twice_kernel
from scripted_device import INFO, OP, ScriptedDevice

from archive.records import Evaluation, Outcome
from evolve.devices import choose
from evolve.devices.device import Tools
from evolve.devices.turns import Turns
from evolve.engines import sandbox, worker
from evolve.engines.messages import Assignment, Done, Fork, Message, Role
from evolve.evaluation.evaluator import Evaluator

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
FAULT = "CUDA error: misaligned address"


def sent(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Message]:
    """Return the messages of a worker whose evaluation raises a RuntimeError."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("some later call failed")

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    monkeypatch.setattr(choose, "make", lambda *_: ScriptedDevice())
    monkeypatch.setattr(sandbox, "enter", lambda *_: None)
    monkeypatch.setattr(worker, "evaluate", fail)
    job = Assignment(twice_kernel().text, TWICE, (), confirm=False, shapes_seed=0, device=INFO)
    fork = Fork(1, Role.EVALUATOR, str(folder), str(folder), None, None)
    messages: list[Message] = []
    worker._evaluate("emulated", fork, iter([job]), folder, messages.append)
    return messages


def test_a_kernel_that_leaves_a_fault_on_the_gpu_has_crashed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise RuntimeError(FAULT)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    verdict = sent(monkeypatch, tmp_path)[-1]
    assert isinstance(verdict, Done)
    assert (verdict.evaluation.outcome, verdict.evaluation.log) == (Outcome.CRASHED, FAULT)
    assert verdict.evaluation.op == OP.name
    assert verdict.tainted


def test_an_error_is_raised_if_the_gpu_has_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="some later call failed"):
        sent(monkeypatch, tmp_path)


def lacking_memory(times: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Evaluate while memory is exhausted this many times; return whether each attempt had the device alone."""
    monkeypatch.setattr(worker, "WAITS_FOR_MEMORY", (0.0, 0.0))
    turns, alone = Turns(folder, lambda: None, lambda: None), list[bool]()
    evaluator = Evaluator(ScriptedDevice(), lambda _: None)

    def evaluated() -> Evaluation:
        alone.append(turns.always_alone)
        if len(alone) <= times:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Evaluation("0" * 16, OP.name, INFO, Outcome.PASSED, "")

    assert worker._with_memory(evaluated, evaluator, turns).outcome is Outcome.PASSED
    return alone


def test_an_evaluation_without_enough_memory_beside_others_is_repeated_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert lacking_memory(0, tmp_path, monkeypatch) == [False]
    assert lacking_memory(2, tmp_path, monkeypatch) == [False, True, True]


def test_a_kernel_that_never_gets_enough_memory_is_not_retried_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        lacking_memory(3, tmp_path, monkeypatch)


def test_memory_that_other_processes_hold_is_not_the_fault_of_the_kernel() -> None:
    device = ScriptedDevice(tools=Tools(memory_bytes=80 * 2**30, free_bytes=lambda: 2**30))
    with pytest.raises(RuntimeError, match=r"other processes hold .*1\.0 of 80 GiB are free"):
        worker._require_memory(Evaluator(device, lambda _: None))
    device = ScriptedDevice(tools=Tools(memory_bytes=80 * 2**30, free_bytes=lambda: 70 * 2**30))
    worker._require_memory(Evaluator(device, lambda _: None))


def test_a_worker_waits_longer_only_while_other_processes_hold_the_memory() -> None:
    free = ScriptedDevice(tools=Tools(memory_bytes=80 * 2**30, free_bytes=lambda: 70 * 2**30))
    assert tuple(worker._waits(free)) == worker.WAITS_FOR_MEMORY
    taken = ScriptedDevice(tools=Tools(memory_bytes=80 * 2**30, free_bytes=lambda: 2**30))
    assert tuple(worker._waits(taken)) == worker.WAITS_FOR_MEMORY + worker.WAITS_FOR_OTHERS
