import os
import re
import signal
import threading
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
DEADLINES = {"compile": 60.0, "check": 3.0, "time": 10.0, "baseline": 240.0}


@pytest.fixture(scope="module", params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def engine(request: pytest.FixtureRequest) -> Iterator[LocalEngine]:
    made = LocalEngine(request.param, 1, phase_seconds=DEADLINES)
    yield made
    made.close()


def verdict(engine: LocalEngine, kernel: Kernel) -> Evaluation:
    (evaluation,) = engine.evaluate([Job(kernel, TWICE)])
    assert evaluation.kernel_id == kernel.id
    return evaluation


def test_a_right_kernel_passes_with_a_measurement_of_every_workload(engine: LocalEngine) -> None:
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
        (bad_kernels.CHANGES_INPUT, Outcome.CHANGED_INPUT, "input `x` were changed"),
        (bad_kernels.NO_CODE, Outcome.COMPILE_ERROR, r"kernel.cu.16"),
        (bad_kernels.NOT_EXTERN, Outcome.MALFORMED, 'no extern "C" __global__ function `twice`'),
        (bad_kernels.TOO_MANY_ARGUMENTS, Outcome.MALFORMED, "takes 3 arguments, the plan gives 4"),
        (bad_kernels.UNKNOWN_TENSOR, Outcome.MALFORMED, "unknown argument `y`"),
        (bad_kernels.CRASHING, Outcome.CRASHED, "illegal memory access|SIGSEGV"),
        (bad_kernels.HANGING, Outcome.TIMED_OUT, "check took more than 3 s"),
    ],
    ids=lambda value: value.plan.note if isinstance(value, Kernel) else None,
)
def test_each_bad_kernel_gets_its_outcome_and_a_reason(
    engine: LocalEngine, kernel: Kernel, outcome: Outcome, reason: str
) -> None:
    evaluation = verdict(engine, kernel)
    assert evaluation.outcome == outcome, evaluation.log
    assert re.search(reason, evaluation.log), evaluation.log


def test_the_engine_goes_on_after_a_crash_and_a_hang(engine: LocalEngine) -> None:
    kernels = [bad_kernels.CRASHING, bad_kernels.twice_kernel(), bad_kernels.HANGING, bad_kernels.WRONG]
    outcomes = {e.kernel_id: e.outcome for e in engine.evaluate([Job(kernel, TWICE) for kernel in kernels])}
    assert [outcomes[kernel.id].value for kernel in kernels] == ["crashed", "passed", "timed out", "wrong"]


def test_a_worker_killed_from_outside_is_replaced_and_its_kernel_tried_once_more() -> None:
    phases: list[tuple[str, str]] = []
    made = LocalEngine("emulated", 1, lambda kernel, phase: phases.append((kernel, phase)), DEADLINES)
    try:
        assert made.info
        threading.Timer(0.3, os.killpg, (made._workers[0].process.pid, signal.SIGKILL)).start()
        (evaluation,) = made.evaluate([Job(bad_kernels.twice_kernel(), TWICE)])
        assert evaluation.outcome is Outcome.PASSED
        assert phases.count((evaluation.kernel_id, "check")) >= 1
        assert len(made._retried) == 1
    finally:
        made.close()


def test_a_kernel_whose_worker_is_killed_twice_is_given_up() -> None:
    made = LocalEngine("emulated", 1, phase_seconds=DEADLINES)

    def kill_whatever_works() -> None:
        for worker in made._workers:
            if worker.job:
                os.killpg(worker.process.pid, signal.SIGKILL)

    try:
        timers = [threading.Timer(seconds / 2, kill_whatever_works) for seconds in range(4, 40)]
        assert made.info
        for timer in timers:
            timer.start()
        (evaluation,) = made.evaluate([Job(bad_kernels.HANGING, TWICE)])
        assert evaluation.outcome is Outcome.CRASHED
        assert "ended by SIGKILL" in evaluation.log
    finally:
        for timer in timers:
            timer.cancel()
        made.close()


def test_workers_know_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    made = LocalEngine("emulated", 1)
    try:
        environment = Path(f"/proc/{made._workers[0].process.pid}/environ").read_bytes()
    finally:
        made.close()
    assert b"secret" not in environment


def test_closing_leaves_no_process_and_no_folder() -> None:
    made = LocalEngine("emulated", 2)
    workers = list(made._workers)
    made.close()
    for worker in workers:
        assert worker.process.poll() is not None
        assert not worker.folder.exists()


def test_a_reference_that_raises_is_the_users_fault_not_the_kernels(tmp_path: Path) -> None:
    text = Path(TWICE).read_text().replace("return x * 2", "raise RuntimeError('no such thing')")
    (tmp_path / "twice.py").write_text(text)
    made = LocalEngine("emulated", 1)
    try:
        with pytest.raises(UserError, match="RuntimeError: no such thing"):
            list(made.evaluate([Job(bad_kernels.twice_kernel(), str(tmp_path / "twice.py"))]))
    finally:
        made.close()
