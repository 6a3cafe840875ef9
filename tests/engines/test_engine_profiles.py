"""Profiles taken by real workers, whose emulated device gets a profiler that acts as a kernel's note says.

A `sitecustomize.py`, which Python imports at every start, installs that profiler.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest
from processes import all_gone, descendants

from archive.kernel import Kernel
from archive.records import Evaluation
from evolve.devices.counters import DRAM_READ
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.engines.messages import Role
from evolve.errors import UserError

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
HERE, THERE = "n=4096 float32", "n=4096 bfloat16"
SCRIPT = """
import os, signal, subprocess, time
from evolve.devices import choose

def profiler(bound, inputs, outputs, seconds):
    from evolve.devices.device import Counted
    note = bound.kernel.plan.note
    if note == "exits":
        os.kill(os.getpid(), signal.SIGKILL)
    if note == "hangs":
        subprocess.Popen(["sleep", "600"])
        time.sleep(600)
    if note in ("fails", "is refused"):
        return Counted(fault=note, lasting=note == "is refused")
    return Counted((("bytes", float(inputs["x"].nbytes)), ("process", float(os.getpid()))))

made = choose.make

def device(*arguments, **options):
    from evolve.devices.device import Tools
    found = made(*arguments, **options)
    found.tools = Tools(profiler=profiler)
    return found

choose.make = device
"""
DEADLINES = {"compile": 60.0, "run": 20.0, "check": 20.0, "time": 10.0, "baseline": 240.0, "profile": 1.0}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    folder = tmp_path_factory.mktemp("hook")
    (folder / "sitecustomize.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
        made = LocalEngine("emulated", 1, phase_seconds=DEADLINES)
    yield made
    made.close()


def noted(note: str) -> Kernel:
    return bad_kernels.twice_kernel(note=note)


def test_a_profile_is_received_from_the_worker(engine: LocalEngine) -> None:
    kernel = noted("counts")
    for workload, nbytes in ((HERE, 4 * 4096), (THERE, 2 * 4096)):
        found = engine.profile(kernel, TWICE, workload)
        assert found
        assert (found.kernel_id, found.op, found.workload, found.device) == (
            kernel.id, "twice", workload, engine.info.key,
        )  # fmt: skip
        assert dict(found.counters)["bytes"] == nbytes
        assert engine.unprofiled == ""


def test_the_last_phase_of_a_profile_is_empty(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    phases, kernel = list[tuple[str, str]](), noted("counts")
    monkeypatch.setattr(engine, "_watch", lambda subject, phase: phases.append((subject, phase)))
    engine.profile(kernel, TWICE, HERE)
    assert (phases[0], phases[-1]) == ((kernel.id, "profile"), (kernel.id, ""))


def test_evaluations_and_profiles_take_turns_in_one_worker(engine: LocalEngine) -> None:
    kernel = noted("counts")
    for _ in range(2):
        (evaluation,) = engine.evaluate([Job(kernel, TWICE)])
        assert evaluation.passed
        found = engine.profile(kernel, TWICE, HERE)
        assert found
        assert dict(found.counters)["process"] == engine._pool.workers[0].pid


def test_a_worker_that_ends_while_profiling_is_replaced_and_there_is_no_profile(engine: LocalEngine) -> None:
    before = engine._pool.workers[0].number
    assert engine.profile(noted("exits"), TWICE, HERE) is None
    assert "ended by SIGKILL in profile" in engine.unprofiled
    assert engine._pool.workers[0].number != before
    assert engine.profile(noted("counts"), TWICE, HERE)


def test_a_worker_that_hangs_while_profiling_is_killed_with_its_children_and_there_is_no_profile(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert engine.profile(noted("counts"), TWICE, HERE)
    (worker,) = engine._pool.workers
    started, below, step = time.monotonic(), set[int](), engine._step

    def recording() -> list[Evaluation]:
        below.update(descendants(worker.pid))
        return step()

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_step", recording)
        assert engine.profile(noted("hangs"), TWICE, HERE) is None
    assert engine.unprofiled == "profiling took more than 1 s"
    assert time.monotonic() - started < 30
    assert below
    assert all_gone({worker.pid, *below})
    (evaluation,) = engine.evaluate([Job(noted("counts"), TWICE)])
    assert evaluation.passed


@pytest.mark.parametrize(
    ("kernel", "workload", "reason"),
    [
        (noted("fails"), HERE, "fails"),
        (bad_kernels.UNKNOWN_TENSOR, HERE, "unknown argument `y`"),
        (noted("counts"), "n=5 float32", "no workload `n=5 float32`"),
    ],
    ids=["the profiler fails", "a malformed kernel", "an unknown workload"],
)
def test_a_failed_profile_has_a_reason_and_the_next_one_succeeds(
    engine: LocalEngine, kernel: Kernel, workload: str, reason: str
) -> None:
    assert engine.profile(kernel, TWICE, workload) is None
    assert reason in engine.unprofiled
    assert engine.profile(noted("counts"), TWICE, HERE)


def test_profiling_an_unknown_op_is_an_error(engine: LocalEngine) -> None:
    with pytest.raises(UserError, match="no_such_op"):
        engine.profile(noted("counts"), "no_such_op", HERE)


def test_an_abandoned_evaluation_does_not_disturb_a_profile(engine: LocalEngine) -> None:
    abandoned = engine.evaluate([Job(noted("counts"), TWICE), Job(bad_kernels.ZEROS, TWICE)])
    next(abandoned)
    assert engine.profile(noted("counts"), TWICE, HERE)
    assert list(abandoned) == []


def test_a_profiler_that_refuses_permanently_is_called_only_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    (tmp_path / "sitecustomize.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = LocalEngine("emulated", 1, lambda _kernel, phase: asked.append(phase))
    try:
        assert made.profile(noted("is refused"), TWICE, HERE) is None
        asked_before = len(asked)
        assert made.profile(noted("counts"), TWICE, HERE) is None
        assert made.unprofiled == "is refused"
        assert len(asked) == asked_before
    finally:
        made.close()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[LocalEngine, list[str]]]:
    """Yield an engine and a growing list of the ids of the kernels that its worker was asked to profile."""
    kernels: list[str] = []
    (tmp_path / "sitecustomize.py").write_text(SCRIPT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = LocalEngine("emulated", 1, lambda kernel, _phase: kernels.append(kernel))
    yield made, kernels
    made.close()


@pytest.mark.exhaustive
def test_a_failed_profile_is_not_tried_again(asked: tuple[LocalEngine, list[str]]) -> None:
    engine, kernels = asked
    assert engine.profile(noted("fails"), TWICE, HERE) is None
    assert engine.profile(noted("counts"), TWICE, HERE)
    asked_before = len(kernels)
    assert engine.profile(noted("fails"), TWICE, HERE) is None
    assert engine.unprofiled == "fails"
    assert len(kernels) == asked_before
    assert engine.profile(noted("counts"), TWICE, HERE)
    assert engine.unprofiled == ""


@pytest.mark.exhaustive
def test_a_profiler_that_fails_for_three_kernels_in_a_row_is_disabled(
    asked: tuple[LocalEngine, list[str]],
) -> None:
    engine, kernels = asked
    for threads in (64, 128, 256):
        assert engine.profile(noted("fails").with_knobs({"THREADS": threads}), TWICE, HERE) is None
    asked_before = len(kernels)
    assert engine.profile(noted("counts"), TWICE, HERE) is None
    assert engine.unprofiled == "fails"
    assert len(kernels) == asked_before


def test_the_emulated_device_has_no_profiler_and_compilers_get_no_such_job() -> None:
    made = LocalEngine("emulated", 1, compilers=1)
    try:
        assert made.profile(noted("counts"), TWICE, HERE) is None
        assert "the emulated device has no profiler" in made.unprofiled
        assert all(worker.jobs == 0 for worker in made._pool.workers if worker.role is Role.COMPILER)
    finally:
        made.close()


@pytest.mark.gpu
def test_a_gpu_worker_profiles_inside_its_sandbox_even_after_a_crash() -> None:
    made = LocalEngine("cuda", 1, compilers=1)
    try:
        found = made.profile(bad_kernels.twice_kernel(), TWICE, "n=1048576 float32")
        if found is None and made._last_profile.lasting:
            pytest.skip(made.unprofiled)
        assert found, made.unprofiled
        assert dict(found.counters)[DRAM_READ.name] == pytest.approx(4 << 20, rel=0.1)
        assert made.profile(bad_kernels.CRASHING, TWICE, "n=1048576 float32") is None
        assert made.unprofiled
        (evaluation,) = made.evaluate([Job(bad_kernels.twice_kernel(), TWICE)])
        assert evaluation.passed
        assert made.profile(bad_kernels.twice_kernel(), TWICE, "n=1048576 bfloat16")
    finally:
        made.close()
