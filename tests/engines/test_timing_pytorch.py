"""PyTorch's own times, taken by real workers. The emulated device times eager PyTorch on the CPU."""

from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest

from archive.kernel import Kernel
from evolve.engines.engine import Job, TimesPyTorch
from evolve.engines.local import LocalEngine
from evolve.errors import UserError
from evolve.evaluation.requests import TimingRequest

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
HERE, THERE = "n=4096 float32", "n=4096 bfloat16"
LARGE, HALF = "n=1048576 float32", "n=1048576 bfloat16"
FAILING = """
import inspect, os, signal, time
import torch
from reference_ops.op import Op, tensors, workloads

def failing(x: torch.Tensor) -> torch.Tensor:
    return x * 2

def baseline(x: torch.Tensor) -> torch.Tensor:
    if x.dtype == torch.float32 and any(frame.function == "timed" for frame in inspect.stack()):
        FAULT
    return x * 2

op = Op(
    name="failing",
    reference=failing,
    baseline=baseline,
    inputs=tensors(x="n"),
    outputs=tensors(out="n"),
    gpu=workloads("float32 bfloat16", {"n": 1 << 20}),
    emulated=workloads("float32 bfloat16", {"n": 4096}),
    flops=lambda dims: dims["n"],
)
"""
DEADLINES = {"compile": 60.0, "run": 20.0, "check": 20.0, "time": 10.0, "baseline": 6.0}


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine("emulated", 1, phase_seconds=DEADLINES)
    yield made
    made.close()


def failing(folder: Path, fault: str) -> str:
    path = folder / "failing.py"
    path.write_text(FAILING.replace("FAULT", fault))
    return str(path)


def kernel() -> Kernel:
    return bad_kernels.twice_kernel()


def test_eager_pytorch_is_timed_on_the_emulated_device(engine: LocalEngine) -> None:
    assert isinstance(engine, TimesPyTorch)
    for workload in (HERE, THERE):
        found = engine.time_pytorch(TimingRequest(TWICE, workload)).standard
        assert found
        assert (found.op, found.workload, found.device.key) == ("twice", workload, engine.info.key)
        assert found.eager_us > 0
        assert (found.compile_us, found.autotune_us, found.floor_us) == (None, None, None)


def test_evaluations_profiles_and_times_take_turns_in_one_worker(engine: LocalEngine) -> None:
    for _ in range(2):
        assert engine.time_pytorch(TimingRequest(TWICE, HERE)).standard
        before = engine._pool.workers[0].pid
        (evaluation,) = engine.evaluate([Job(kernel(), TWICE)])
        assert evaluation.passed
        assert engine.profile(kernel(), TWICE, HERE) is None  # the emulated device has no profiler
        assert engine._pool.workers[0].pid == before


@pytest.mark.parametrize(
    ("fault", "reason", "tainted"),
    [
        ("raise NotImplementedError('not for this dtype')", "PyTorch fails: NotImplementedError", True),
        ("raise torch.OutOfMemoryError('too large')", "does not fit into memory", False),
        ("os._exit(3)", "ended with exit status 3 in baseline", True),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV in baseline", True),
        pytest.param("time.sleep(60)", "baseline took more than 6 s", True, marks=pytest.mark.exhaustive),
    ],
    ids=["it raises", "memory", "it exits", "it crashes", "it hangs"],
)
def test_a_baseline_that_fails_has_a_reason_and_the_next_workload_is_timed(
    engine: LocalEngine, tmp_path: Path, fault: str, reason: str, *, tainted: bool
) -> None:
    op = failing(tmp_path, fault)
    answer = engine.time_pytorch(TimingRequest(op, HERE))
    assert answer.standard is None
    assert reason in answer.fault
    assert answer.tainted is tainted
    assert engine.time_pytorch(TimingRequest(op, THERE)).standard


def test_timing_an_unknown_op_is_an_error(engine: LocalEngine) -> None:
    with pytest.raises(UserError, match="no_such_op"):
        engine.time_pytorch(TimingRequest("no_such_op", HERE))


@pytest.mark.exhaustive
def test_compilers_get_no_timing_requests() -> None:
    made = LocalEngine("emulated", 1, compilers=1)
    try:
        assert made.time_pytorch(TimingRequest(TWICE, HERE)).standard
        assert sorted(worker.jobs for worker in made._pool.workers) == [0, 1]
    finally:
        made.close()


@pytest.mark.gpu
def test_a_gpu_worker_times_every_baseline_and_caches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the test starts with an empty cache
    made = LocalEngine("cuda", 1)
    try:
        found = made.time_pytorch(TimingRequest(TWICE, LARGE)).standard
        assert found
        assert found.compile_us
        assert found.autotune_us
        assert found.floor_us
        assert 0.2 < found.floor_us / found.best_us < 1.2
        assert list(tmp_path.glob("**/baselines/*.json"))
        again = made.time_pytorch(TimingRequest(TWICE, LARGE)).standard
        assert again
        assert again.eager_us == found.eager_us
        (evaluation,) = made.evaluate([Job(kernel(), TWICE)])
        assert evaluation.passed
        alone = made.time_pytorch(TimingRequest(TWICE, HALF, eager_alone=True)).standard
        assert alone
        assert alone.compile_us is None
    finally:
        made.close()
