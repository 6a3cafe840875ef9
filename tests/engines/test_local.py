import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.errors import UserError

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
DEADLINES = {"compile": 60.0, "run": 3.0, "check": 20.0, "time": 10.0, "baseline": 240.0}


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    made = LocalEngine(request.param, 1, phase_seconds=DEADLINES)
    yield made
    made.close()


def verdict(engine: LocalEngine, kernel: Kernel) -> Evaluation:
    (evaluation,) = engine.evaluate([Job(kernel, TWICE)])
    assert evaluation.kernel_id == kernel.id
    return evaluation


def test_a_correct_kernel_passes_with_a_measurement_of_every_workload(engine: LocalEngine) -> None:
    evaluation = verdict(engine, bad_kernels.twice_kernel())
    assert (evaluation.outcome, evaluation.deterministic) == (Outcome.PASSED, True)
    assert len(evaluation.measurements) == 2
    for measurement in evaluation.measurements:
        assert 0 < measurement.low_us <= measurement.median_us <= measurement.high_us
        assert measurement.eager_us > 0


@pytest.mark.parametrize(
    ("kernel", "outcome", "reason"),
    [
        (bad_kernels.NO_OP, Outcome.WRONG, "never written"),
        (bad_kernels.ZEROS, Outcome.WRONG, "expected"),
        (bad_kernels.HALF_WRITTEN, Outcome.WRONG, "never written"),
        (bad_kernels.WRONG, Outcome.WRONG, "off by more than rounding explains"),
        (bad_kernels.BEYOND, Outcome.OUT_OF_BOUNDS, "behind the buffer"),
        (bad_kernels.BEFORE, Outcome.OUT_OF_BOUNDS, "before the buffer"),
        (bad_kernels.CHANGES_INPUT, Outcome.CHANGED_INPUT, "input `x` was changed"),
        (bad_kernels.NO_CODE, Outcome.COMPILE_ERROR, r"kernel.cu.16"),
        (bad_kernels.NOT_EXTERN, Outcome.MALFORMED, 'no extern "C" __global__ function `twice`'),
        (bad_kernels.TOO_MANY_ARGUMENTS, Outcome.MALFORMED, "takes 3 arguments, the plan gives 4"),
        (bad_kernels.UNKNOWN_TENSOR, Outcome.MALFORMED, "unknown argument `y`"),
        (bad_kernels.CRASHING, Outcome.CRASHED, "illegal memory access|SIGSEGV"),
        pytest.param(
            bad_kernels.HANGING, Outcome.TIMED_OUT, "run took more than 3 s: an endless loop",
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids=lambda value: value.plan.note if isinstance(value, Kernel) else None,
)  # fmt: skip
def test_each_bad_kernel_gets_its_outcome_and_a_reason(
    engine: LocalEngine, kernel: Kernel, outcome: Outcome, reason: str
) -> None:
    evaluation = verdict(engine, kernel)
    assert evaluation.outcome == outcome, evaluation.log
    assert re.search(reason, evaluation.log), evaluation.log


def test_the_engine_continues_after_a_crash_and_a_hang(engine: LocalEngine) -> None:
    kernels = [bad_kernels.CRASHING, bad_kernels.twice_kernel(), bad_kernels.HANGING, bad_kernels.WRONG]
    outcomes = {e.kernel_id: e.outcome for e in engine.evaluate([Job(kernel, TWICE) for kernel in kernels])}
    assert [outcomes[kernel.id].value for kernel in kernels] == ["crashed", "passed", "timed out", "wrong"]


@pytest.mark.exhaustive
def test_the_engine_continues_after_an_error_in_the_iterable_of_jobs(engine: LocalEngine) -> None:
    def jobs() -> Iterator[Job]:
        yield Job(bad_kernels.HANGING, TWICE)
        raise LookupError("no more kernels")

    with pytest.raises(LookupError, match="no more kernels"):
        list(engine.evaluate(jobs()))
    assert verdict(engine, bad_kernels.twice_kernel()).passed


def test_an_abandoned_evaluation_leaves_no_verdict_for_the_next(engine: LocalEngine) -> None:
    abandoned = engine.evaluate([Job(bad_kernels.ZEROS, TWICE), Job(bad_kernels.HALF_WRITTEN, TWICE)])
    assert next(abandoned).kernel_id == bad_kernels.ZEROS.id
    abandoned.close()  # type: ignore[attr-defined]
    assert verdict(engine, bad_kernels.twice_kernel()).passed


def test_a_worker_killed_from_outside_is_replaced_and_its_job_retried() -> None:
    made: LocalEngine
    killed: list[int] = []

    def kill_at_the_first_run(_kernel: str, phase: str) -> None:
        (worker,) = made._pool.workers
        if phase == "run" and not killed:
            killed.append(worker.pid)
            os.killpg(worker.pid, signal.SIGKILL)

    made = LocalEngine("emulated", 1, kill_at_the_first_run, DEADLINES)
    try:
        assert verdict(made, bad_kernels.twice_kernel()).passed
        assert killed
        assert made._pool.workers[0].pid not in killed
    finally:
        made.close()


@pytest.mark.exhaustive
def test_a_kernel_whose_worker_is_killed_twice_has_crashed() -> None:
    made: LocalEngine

    def kill_at_every_run(_kernel: str, phase: str) -> None:
        if phase == "run":
            os.killpg(made._pool.workers[0].pid, signal.SIGKILL)

    made = LocalEngine("emulated", 1, kill_at_every_run, DEADLINES)
    try:
        evaluation = verdict(made, bad_kernels.HANGING)
        assert evaluation.outcome is Outcome.CRASHED
        assert "ended by SIGKILL in run" in evaluation.log
    finally:
        made.close()


@pytest.mark.exhaustive
def test_a_kernel_that_hangs_after_it_has_run_is_retried_once() -> None:
    workers: set[int] = set()
    made: LocalEngine
    made = LocalEngine("emulated", 1, lambda *_: workers.add(made._pool.workers[0].pid), {**DEADLINES, "run": 1.0})
    endless = "volatile int on = n == 4096; while (on) {} "
    try:
        evaluation = verdict(made, bad_kernels.twice_kernel(endless + bad_kernels.RIGHT))
        assert (evaluation.outcome, len(workers)) == (Outcome.TIMED_OUT, 2)
    finally:
        made.close()


def test_a_stopped_worker_counts_as_timed_out() -> None:
    made: LocalEngine

    def stop(_kernel: str, phase: str) -> None:
        if phase == "run":
            os.kill(made._pool.workers[0].pid, signal.SIGSTOP)

    # by the time it is stopped, the worker may be in the next phase
    made = LocalEngine("emulated", 1, stop, {**DEADLINES, "run": 1.0, "check": 2.0})
    try:
        assert verdict(made, bad_kernels.twice_kernel()).outcome is Outcome.TIMED_OUT
    finally:
        made.close()


def raising(folder: Path, error: str, *, shared_memory: bool = True) -> Iterator[Evaluation]:
    """Evaluate a correct kernel against a reference that raises, as it might after memory was overwritten."""
    text = Path(TWICE).read_text().replace("return x * 2", f"{error}\n    return x * 2")
    (folder / "twice.py").write_text(f"from pathlib import Path\n{text}")
    made = LocalEngine("emulated", 1)
    made._shared_memory = shared_memory
    try:
        yield from made.evaluate([Job(bad_kernels.twice_kernel(), str(folder / "twice.py"))])
    finally:
        made.close()


def test_a_reference_that_raises_is_an_error_and_not_a_verdict(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="RuntimeError: no such thing"):
        list(raising(tmp_path, "raise RuntimeError('no such thing')"))


@pytest.mark.exhaustive
def test_an_evaluation_that_fails_in_one_process_is_retried_in_the_next(tmp_path: Path) -> None:
    (evaluation,) = raising(tmp_path, "if Path.cwd().name == 'worker-0': raise TypeError('no longer sound')")
    assert evaluation.passed


@pytest.mark.exhaustive
def test_without_shared_memory_a_failure_is_never_attributed_to_the_kernel(tmp_path: Path) -> None:
    """On a GPU, a kernel cannot write to the memory of its worker."""
    with pytest.raises(UserError, match="TypeError: no longer sound"):
        list(
            raising(
                tmp_path, "if Path.cwd().name == 'worker-0': raise TypeError('no longer sound')", shared_memory=False
            )
        )


@pytest.mark.exhaustive
def test_a_kernel_on_which_two_processes_fail_differently_has_crashed(tmp_path: Path) -> None:
    (evaluation,) = raising(tmp_path, "raise TypeError(f'{Path.cwd().name} is no longer sound')")
    assert evaluation.outcome is Outcome.CRASHED
    assert "worker-0 is no longer sound" in evaluation.log
    assert "worker-1 is no longer sound" in evaluation.log


@pytest.mark.exhaustive
def test_a_kernel_that_ends_a_used_worker_is_retried_alone() -> None:
    made: LocalEngine
    crashed: list[int] = []

    def crash_once(kernel: str, phase: str) -> None:
        (worker,) = made._pool.workers
        if phase == "run" and kernel == last.id and not crashed:
            crashed.append(worker.pid)
            os.kill(worker.pid, signal.SIGSEGV)

    first, last = bad_kernels.WRONG, bad_kernels.twice_kernel()
    made = LocalEngine("emulated", 1, crash_once, DEADLINES)
    try:
        assert [verdict(made, kernel).outcome for kernel in (first, last)] == [Outcome.WRONG, Outcome.PASSED]
        assert crashed
    finally:
        made.close()


def test_workers_load_an_op_that_is_named_before_their_first_job(engine: LocalEngine, tmp_path: Path) -> None:
    op, faulty = tmp_path / "twice.py", tmp_path / "faulty.py"
    op.write_text(Path(TWICE).read_text() + '\nopen("loaded", "w").close()\n')  # in the worker's own folder
    faulty.write_text("1 / 0")
    for path in (faulty, op):
        engine.load(str(path))
    deadline, loaded = time.monotonic() + 60.0, [one.folder / "loaded" for one in engine._pool.workers]
    while not all(file.exists() for file in loaded) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert loaded
    assert all(file.exists() for file in loaded)
    assert verdict(engine, bad_kernels.twice_kernel()).passed
