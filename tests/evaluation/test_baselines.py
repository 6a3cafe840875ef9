"""What PyTorch offers instead of a kernel, as far as that is to be had in bearable time."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scripted_device import INFO, OP, ScriptedDevice

from evolve.evaluation import baselines
from evolve.evaluation.baselines import AUTOTUNE, COMPILE, EAGER, Call
from reference_ops.op import Workload

SMALL = Workload("float32", (("n", 256),))


def prepared(name: str) -> Call | None:
    return baselines.prepared(name, OP, SMALL, ScriptedDevice())


def compiler(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Does so much at the first call of what it compiled."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        work()
        return 2 * tensors[0]

    monkeypatch.setattr(torch, "compile", lambda *_args, **_options: call)


@pytest.mark.parametrize("name", [COMPILE, AUTOTUNE])
def test_a_compiler_that_takes_for_ever_is_interrupted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: time.sleep(60), monkeypatch)
    monkeypatch.setitem(baselines.COMPILE_SECONDS, name, 0.1)
    started = time.monotonic()
    assert prepared(name) is None
    assert time.monotonic() - started < 30


def test_no_alarm_rings_after_a_compiler_that_was_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: None, monkeypatch)
    assert prepared(COMPILE) is not None
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_a_compiler_cannot_do_is_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: torch.empty(-1), monkeypatch)
    assert prepared(COMPILE) is None
    assert prepared(EAGER) is not None


def test_what_fails_by_default_is_not_tried_with_more_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def compiled(*_args: object, mode: str, **_options: object) -> Call:
        tried.append(mode)
        return lambda *_tensors: torch.empty(-1)

    monkeypatch.setattr(torch, "compile", compiled)
    device = ScriptedDevice(info=replace(INFO, kind="cuda"))
    found = baselines.timed(OP, SMALL, device)
    assert (found.compile_us, found.autotune_us) == (None, None)
    assert tried == ["default"]


def test_outside_the_main_thread_nothing_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: time.sleep(0.3), monkeypatch)
    monkeypatch.setitem(baselines.COMPILE_SECONDS, COMPILE, 0.1)
    found: list[Call | None] = []
    thread = threading.Thread(target=lambda: found.append(prepared(COMPILE)))
    thread.start()
    thread.join()
    assert found != [None]
