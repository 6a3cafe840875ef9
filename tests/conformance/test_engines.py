"""Requirements on every engine. To test another one, add a function that makes it to ENGINES."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import bad_kernels
import pytest
from bad_kernels import twice_kernel
from commandline import evolve
from in_process_engine import InProcessEngine

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from archive.sqlite import open_archive
from evolve import wiring
from evolve.engines.engine import Engine, Job, TimesPyTorch
from evolve.engines.local import LocalEngine
from evolve.engines.station import SharedEngine
from evolve.errors import UserError
from evolve.evaluation.requests import TimingRequest

if TYPE_CHECKING:
    from ray_clusters import LocalCluster

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
WORKLOAD = "n=4096 float32"
ENGINES: Mapping[str, Callable[[], Engine]] = {
    "local": lambda: LocalEngine("emulated", 2),
    "in process": InProcessEngine,
    "shared": lambda: SharedEngine(LocalEngine("emulated", 2), depth=3),
    "ray": lambda: wiring.ray_engine("emulated", address=CLUSTERS[0].address),
}
QUICK = ("local", "in process")  # engines that the quick run tests
CONTAINS_CRASHES = ("local", "shared", "ray")
CLUSTERS: list["LocalCluster"] = []  # Ray clusters on which the engine "ray" evaluates
OUTCOMES = {
    twice_kernel(): Outcome.PASSED,
    bad_kernels.WRONG: Outcome.WRONG,
    bad_kernels.NO_CODE: Outcome.COMPILE_ERROR,
    bad_kernels.UNKNOWN_TENSOR: Outcome.MALFORMED,
    bad_kernels.BEYOND: Outcome.OUT_OF_BOUNDS,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in ENGINES],
)
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "ray":
        yield request.param
        return
    pytest.importorskip("ray")
    from ray_clusters import cluster

    with cluster(2) as made:
        CLUSTERS.append(made)
        yield "ray"
        CLUSTERS.clear()


@pytest.fixture(scope="module")
def engine(name: str) -> Iterator[Engine]:
    made = ENGINES[name]()
    yield made
    made.close()


def verdicts(engine: Engine, *kernels: Kernel, confirm: bool = False) -> list[Evaluation]:
    return list(engine.evaluate(Job(kernel, TWICE, confirm=confirm) for kernel in kernels))


def test_every_job_gets_one_evaluation_with_the_outcome_of_its_kernel(engine: Engine) -> None:
    found = verdicts(engine, *OUTCOMES)
    assert {evaluation.kernel_id: evaluation.outcome for evaluation in found} == {
        kernel.id: outcome for kernel, outcome in OUTCOMES.items()
    }
    assert len(found) == len(OUTCOMES)
    assert all(evaluation.log for evaluation in found if not evaluation.passed)


def test_a_kernel_in_two_jobs_is_evaluated_twice(engine: Engine) -> None:
    kernel = twice_kernel()
    assert [(e.kernel_id, e.passed) for e in verdicts(engine, kernel, kernel)] == [(kernel.id, True)] * 2


def test_an_evaluation_names_the_op_and_the_engines_device_and_measures_every_workload(engine: Engine) -> None:
    (found,) = verdicts(engine, twice_kernel())
    assert (found.op, found.device) == ("twice", engine.info)
    assert {measurement.workload for measurement in found.measurements} == {WORKLOAD, "n=4096 bfloat16"}
    assert found.checks
    assert found.created > 0


def test_no_jobs_give_no_evaluations(engine: Engine) -> None:
    assert verdicts(engine) == []


def test_jobs_are_taken_as_evaluations_are_needed(engine: Engine) -> None:
    """A run's next jobs depend on earlier evaluations, so an engine must not wait for the last job."""
    endless = (Job(twice_kernel(note=f"number {number}"), TWICE) for number in count())
    found = list(islice(engine.evaluate(endless), 5))
    assert all(evaluation.passed for evaluation in found)
    assert max(Counter(evaluation.kernel_id for evaluation in found).values()) == 1


def test_an_abandoned_evaluation_leaves_nothing_for_the_next(engine: Engine) -> None:
    abandoned = engine.evaluate([Job(twice_kernel(note=f"number {number}"), TWICE) for number in range(4)])
    next(abandoned)
    (found,) = verdicts(engine, bad_kernels.WRONG)
    assert found.kernel_id == bad_kernels.WRONG.id


def test_only_a_job_that_requests_a_confirmation_is_confirmed(engine: Engine) -> None:
    (plain,) = verdicts(engine, twice_kernel())
    (confirmed,) = verdicts(engine, twice_kernel(), confirm=True)
    assert plain.confirmed is None
    assert confirmed.confirmed
    assert confirmed.confirmed.held_out


def test_an_unknown_op_is_an_error_and_not_a_verdict(engine: Engine) -> None:
    with pytest.raises(UserError, match="no_such_op"):
        list(engine.evaluate([Job(twice_kernel(), "no_such_op")]))
    assert verdicts(engine, twice_kernel())[0].passed


def test_a_missing_profile_comes_with_a_reason(engine: Engine) -> None:
    assert engine.profile(twice_kernel(), TWICE, WORKLOAD) is None
    assert "the emulated device has no profiler" in engine.unprofiled


def test_an_engine_that_times_pytorch_gives_times_or_a_reason(engine: Engine) -> None:
    if not isinstance(engine, TimesPyTorch):
        pytest.skip("this engine does not time PyTorch")
    found = engine.time_pytorch(TimingRequest(TWICE, WORKLOAD)).standard
    assert found
    assert (found.op, found.workload, found.device.key) == ("twice", WORKLOAD, engine.info.key)
    assert "no workload" in engine.time_pytorch(TimingRequest(TWICE, "n=5 float32")).fault


def test_an_engine_may_be_closed_twice_and_before_its_first_job(name: str) -> None:
    made = ENGINES[name]()
    made.close()
    made.close()


def test_a_kernel_that_crashes_gets_a_verdict_too(name: str, engine: Engine) -> None:
    if name not in CONTAINS_CRASHES:
        pytest.skip("a crash would end the tests")
    first, second = sorted(verdicts(engine, bad_kernels.CRASHING, twice_kernel()), key=lambda found: found.passed)
    assert (first.outcome, first.kernel_id) == (Outcome.CRASHED, bad_kernels.CRASHING.id)
    assert second.passed


def test_commands_run_on_the_engine_that_wiring_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wiring, "engine", lambda _kind, _watch=None, _gpus="": InProcessEngine())
    monkeypatch.setattr(LocalEngine, "__init__", lambda *_: pytest.fail("a command made an engine of its own"))
    archive, file = tmp_path / "archive.db", tmp_path / "twice.cu"
    file.write_text(twice_kernel().text)
    code, _, errors = evolve(capsys, "evaluate", TWICE, file, "--device", "emulated", "--archive", archive)
    assert code == 0, errors
    (found,) = open_archive(archive).find(Evaluation, "twice")
    assert (found.kernel_id, found.outcome) == (twice_kernel().id, Outcome.PASSED)
