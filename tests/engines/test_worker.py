"""The verdict of a worker whose GPU fails during an evaluation, on a scripted device."""

from pathlib import Path

import pytest
import torch
from bad_kernels import twice_kernel
from scripted_device import INFO, OP, ScriptedDevice

from archive.records import Outcome
from evolve.devices import choose
from evolve.engines import sandbox, worker
from evolve.engines.messages import Assignment, Done, Fork, Message, Role

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
FAULT = "CUDA error: misaligned address"


def sent(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[Message]:
    """Return what a worker sends when an evaluation raises a RuntimeError."""

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
