"""Baselines: time limits on compilation, compiler failures, and the cache."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scripted_device import INFO, ScriptedDevice
from scripted_device import SMALL_OP as OP

from evolve.devices.choose import AUTOTUNE, COMPILE, EAGER
from evolve.devices.device import Device
from evolve.devices.turns import ELSEWHERE, TOGETHER
from evolve.evaluation import baselines
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import BaselineCache, Call
from evolve.evaluation.evaluator import Evaluator
from reference_ops.op import Op, Workload

SMALL = Workload("float32", (("n", 256),))
CUDA = ScriptedDevice(info=replace(INFO, kind="cuda"))


def prepared(name: str) -> Call | None:
    return baselines.prepared(name, OP, SMALL, ScriptedDevice(), lambda _phase: None)


def compiler(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace torch.compile with a stub whose compiled function calls `work` every time it is called."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        work()
        return 2 * tensors[0]

    monkeypatch.setattr(torch, "compile", lambda *_args, **_options: call)


@pytest.mark.parametrize("name", [COMPILE, AUTOTUNE])
def test_a_compilation_that_takes_too_long_is_interrupted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: time.sleep(60), monkeypatch)
    monkeypatch.setitem(baselines.COMPILE_SECONDS, name, 0.1)
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        prepared(name)
    assert time.monotonic() - started < 30


def test_an_interruption_that_the_compiler_wraps_still_counts_as_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrapping() -> None:
        try:
            time.sleep(60)
        except TimeoutError as error:
            raise RuntimeError("the compiler failed") from error

    compiler(wrapping, monkeypatch)
    monkeypatch.setitem(baselines.COMPILE_SECONDS, COMPILE, 0.1)
    with pytest.raises(TimeoutError):
        prepared(COMPILE)


@pytest.mark.parametrize(("slow", "again"), [(COMPILE, {EAGER}), (AUTOTUNE, {EAGER, COMPILE})])
def test_a_baseline_that_took_too_long_is_not_tried_on_other_workloads(
    slow: str, again: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[tuple[str, str]] = []

    def prepared(name: str, op: Op, workload: Workload, _device: Device, _watch: Callable[[str], None]) -> Call:
        tried.append((workload.key, name))
        if name == slow:
            raise TimeoutError
        return lambda inputs: op.call(inputs, workload)

    monkeypatch.setattr(baselines, "prepared", prepared)
    first, second = OP.gpu[:2]
    Evaluator(CUDA, lambda _: None, BaselineCache(tmp_path)).baselines_for(OP, first)
    of_another_process = Evaluator(CUDA, lambda _: None, BaselineCache(tmp_path))
    found = [of_another_process.baselines_for(OP, workload) for workload in (first, second)]
    assert [known.given_up for known in found] == [slow, ""]
    assert {name for key, name in tried if key == second.key} == again


def test_no_alarm_is_pending_after_a_quick_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: None, monkeypatch)
    assert prepared(COMPILE) is not None
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_compilation_that_fails_gives_no_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: torch.empty(-1), monkeypatch)
    assert prepared(COMPILE) is None
    assert prepared(EAGER) is not None


def test_autotuning_is_not_tried_if_the_default_mode_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def compiled(*_args: object, mode: str, **_options: object) -> Call:
        tried.append(mode)
        return lambda *_tensors: torch.empty(-1)

    monkeypatch.setattr(torch, "compile", compiled)
    found = baselines.timed(OP, SMALL, CUDA, lambda _: None)
    assert (found.compile_us, found.autotune_us) == (None, None)
    assert tried == ["default"]


def test_timing_uses_the_device_alone_drawing_inputs_shares_it_and_compiling_leaves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases: list[str] = []
    compiler(lambda: None, monkeypatch)
    baselines.timed(OP, SMALL, CUDA, phases.append)
    # the phases of the default mode, of autotuning and of timing
    assert phases == [*["run", "prepare"] * 2, "baseline"]
    assert "run" in TOGETHER
    assert "prepare" in ELSEWHERE
    assert "baseline" not in (*TOGETHER, *ELSEWHERE)


class Using:
    """A replacement for a class of torch.compile that launches kernels and times candidates."""

    def run(self) -> float:
        return self.benchmark_all_configs() + self.compile_another()

    def compile_another(self) -> float:
        return 1.0

    def benchmark_all_configs(self) -> float:
        return self.benchmark_gpu() + self.benchmark_gpu()

    def benchmark_gpu(self) -> float:
        return 1.0


def test_torch_compile_has_the_device_alone_while_it_measures_and_shares_it_to_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases: list[str] = []
    using = {"run": "run", "benchmark_all_configs": "baseline", "benchmark_gpu": "baseline"}
    using["compile_another"] = "prepare"
    monkeypatch.setattr(baselines, "USING", tuple((__name__, "Using", *item) for item in using.items()))
    before = vars(Using).copy()
    with baselines.in_turn(phases.append):
        assert Using().run() == 3.0
    assert phases == ["prepare", "run", "baseline", "run", "prepare", "run", "prepare"]
    assert vars(Using).copy() == before


def test_a_version_of_pytorch_with_other_names_compiles_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    phases: list[str] = []
    monkeypatch.setattr(baselines, "USING", ((__name__, "Using", "another_name", "run"),))
    with baselines.in_turn(phases.append):
        pass
    assert phases == ["baseline"]


def test_the_installed_pytorch_has_the_functions_that_use_the_device() -> None:
    assert len(baselines._using()) == len(baselines.USING)


@pytest.mark.parametrize("switch", baselines.SWITCHES)
def test_torch_compile_is_not_a_baseline_if_the_environment_disables_it(
    switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda: None, monkeypatch)
    cache = BaselineCache(tmp_path)
    monkeypatch.setenv(switch, "1")
    assert prepared(COMPILE) is None
    cache.keep(OP, SMALL, CUDA.info, Baselines(10.0))
    assert cache.find(OP, SMALL, CUDA.info) == Baselines(10.0)
    monkeypatch.delenv(switch)
    assert cache.find(OP, SMALL, CUDA.info) is None
    assert prepared(COMPILE) is not None


def test_a_compilation_outside_the_main_thread_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda: time.sleep(0.3), monkeypatch)
    monkeypatch.setitem(baselines.COMPILE_SECONDS, COMPILE, 0.1)
    found: list[Call | None] = []
    thread = threading.Thread(target=lambda: found.append(prepared(COMPILE)))
    thread.start()
    thread.join()
    assert found != [None]


def test_an_evaluator_that_defers_compares_with_eager_pytorch_and_names_the_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def prepared(name: str, op: Op, workload: Workload, _device: Device, _watch: Callable[[str], None]) -> Call:
        tried.append(name)
        return lambda inputs: op.call(inputs, workload)

    monkeypatch.setattr(baselines, "prepared", prepared)
    first, second = OP.gpu[:2]
    evaluator = Evaluator(CUDA, lambda _: None, BaselineCache(tmp_path), defers=True)
    evaluator.cache.keep(OP, second, CUDA.info, Baselines(10.0, 8.0, 7.0))
    found = [evaluator.baselines_at_hand(OP, workload) for workload in (first, first, second)]
    assert [times.compile_us for times in found] == [None, None, 8.0]
    assert set(evaluator.lacking) == {first.key}
    assert tried == [EAGER]
    assert evaluator.known(OP, first) is None


def test_an_evaluator_that_does_not_defer_prepares_all_baselines_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda: None, monkeypatch)
    evaluator = Evaluator(CUDA, lambda _: None, BaselineCache(tmp_path))
    assert evaluator.baselines_at_hand(OP, SMALL).compile_us
    assert evaluator.lacking == []
