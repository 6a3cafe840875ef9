"""Evaluations that are held until their baselines are timed: by pure logic, and by real workers on a fake GPU."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import bad_kernels
import pytest
from fake_gpu import fake_gpus
from records import measurement

from archive.kernel import Kernel, parse
from archive.records import DeviceInfo, Evaluation, Outcome, Standard
from evolve.devices.choose import AUTOTUNE, COMPILE, EVERY_BASELINE
from evolve.engines.engine import Job
from evolve.engines.lacking import LackingBaselines
from evolve.engines.local import LocalEngine
from evolve.engines.messages import RIGHT, Role
from evolve.errors import UserError
from evolve.evaluation.requests import PreparationRequest, TimingRequest, TimingResult

INFO = DeviceInfo("cuda", "Scripted", "sm_90a", 1, 1024)
HERE, THERE = "n=4096 float32", "n=4096 bfloat16"


def evaluation(kernel: str = "k", *workloads: str) -> Evaluation:
    times = tuple(measurement(one, median_us=10.0, eager_us=30.0) for one in workloads or (HERE,))
    return Evaluation(kernel, "twice", INFO, Outcome.PASSED, "", times)


def timed(workload: str = HERE, eager_us: float = 30.0) -> TimingResult:
    return TimingResult(Standard("twice", workload, INFO, eager_us, 20.0, 15.0))


def held(lacking: LackingBaselines, kernel: str = "k", *workloads: str, ahead: bool = False) -> list[Evaluation]:
    places = workloads or (HERE,)
    return list(lacking.hold(evaluation(kernel, *places), "twice", "0", places, ahead=ahead))


@pytest.fixture
def lacking() -> LackingBaselines:
    return LackingBaselines(EVERY_BASELINE)


def test_an_evaluation_is_given_with_the_times_of_all_baselines(lacking: LackingBaselines) -> None:
    assert held(lacking) == []
    assert lacking.waiting
    found = lacking.take_place("0")
    assert found
    (verdict,) = lacking.end_timing(found[0], timed())
    assert [(m.eager_us, m.compile_us, m.autotune_us) for m in verdict.measurements] == [(30.0, 20.0, 15.0)]
    assert not lacking.waiting


def test_times_that_are_known_complete_the_next_evaluation_at_once(lacking: LackingBaselines) -> None:
    held(lacking)
    found = lacking.take_place("0")
    assert found
    list(lacking.end_timing(found[0], timed()))
    assert [verdict.kernel_id for verdict in held(lacking, "another")] == ["another"]


def test_a_faster_clock_since_then_makes_the_baselines_faster_too(lacking: LackingBaselines) -> None:
    held(lacking)
    found = lacking.take_place("0")
    assert found
    (verdict,) = lacking.end_timing(found[0], timed(eager_us=60.0))
    assert [(m.eager_us, m.compile_us, m.autotune_us) for m in verdict.measurements] == [(30.0, 10.0, 7.5)]


def test_several_kernels_wait_for_one_timing_of_a_workload(lacking: LackingBaselines) -> None:
    held(lacking, "one")
    held(lacking, "two")
    found = lacking.take_place("0")
    assert found
    assert found[1] == "one"
    assert lacking.take_place("0") is None
    assert [verdict.kernel_id for verdict in lacking.end_timing(found[0], timed())] == ["one", "two"]


def test_an_evaluation_waits_for_each_of_its_workloads(lacking: LackingBaselines) -> None:
    held(lacking, "k", HERE, THERE)
    first = lacking.take_place("0")
    assert first
    second = lacking.take_place("0")
    assert second
    assert list(lacking.end_timing(first[0], timed(HERE))) == []
    assert [one.kernel_id for one in lacking.end_timing(second[0], timed(THERE))] == ["k"]


def test_a_card_is_not_timed_by_the_worker_of_another(lacking: LackingBaselines) -> None:
    held(lacking)
    assert lacking.take_place("1") is None


def test_a_workload_is_timed_when_all_its_baselines_are_compiled(lacking: LackingBaselines) -> None:
    held(lacking, ahead=True)
    first, second = lacking.take_compilation(), lacking.take_compilation()
    assert (first, second) == (
        PreparationRequest("twice", HERE, COMPILE), PreparationRequest("twice", HERE, AUTOTUNE),
    )  # fmt: skip
    assert first
    assert second
    assert lacking.take_compilation() is None
    lacking.end_compilation(second)
    assert lacking.take_place("0") is None
    lacking.end_compilation(first)
    assert lacking.take_place("0")


def test_a_baseline_that_takes_too_long_is_given_up_at_all_workloads_with_those_after_it(
    lacking: LackingBaselines,
) -> None:
    held(lacking, "k", HERE, THERE, ahead=True)
    first = lacking.take_compilation()
    assert first == PreparationRequest("twice", HERE, COMPILE)
    lacking.end_compilation(first, too_long=True)
    assert lacking.take_compilation() is None
    place, _ = lacking.take_place("0") or (None, "")
    assert place
    assert lacking.request(place) == TimingRequest("twice", HERE, given_up=COMPILE)


def test_the_baselines_before_one_that_takes_too_long_are_compiled_everywhere(lacking: LackingBaselines) -> None:
    held(lacking, "k", HERE, THERE, ahead=True)
    first, second = lacking.take_compilation(), lacking.take_compilation()
    assert first
    assert second == PreparationRequest("twice", HERE, AUTOTUNE)
    lacking.end_compilation(second, too_long=True)
    lacking.end_compilation(first)
    assert lacking.take_compilation() == PreparationRequest("twice", THERE, COMPILE)
    assert lacking.take_compilation() is None


def test_a_workload_is_timed_without_waiting_for_compilations_that_no_worker_does(lacking: LackingBaselines) -> None:
    held(lacking, ahead=True)
    assert lacking.take_place("0") is None
    lacking.compile_no_more()
    assert lacking.take_place("0")


def test_where_pytorch_cannot_be_timed_eager_pytorch_is_the_only_baseline(lacking: LackingBaselines) -> None:
    held(lacking)
    first = lacking.take_place("0")
    assert first
    assert list(lacking.end_timing(first[0], None)) == []
    second = lacking.take_place("0")
    assert second
    (verdict,) = lacking.end_timing(second[0], TimingResult(None, "it fails"))
    assert [(m.eager_us, m.compile_us) for m in verdict.measurements] == [(30.0, None)]


def test_an_op_that_cannot_be_judged_is_an_error(lacking: LackingBaselines) -> None:
    held(lacking)
    found = lacking.take_place("0")
    assert found
    with pytest.raises(UserError, match="zeros would pass"):
        list(lacking.end_timing(found[0], TimingResult(None, "zeros would pass", hint="change the sizes")))


def test_dropped_evaluations_are_not_waited_for(lacking: LackingBaselines) -> None:
    held(lacking)
    lacking.drop()
    assert not lacking.waiting
    assert lacking.take_place("0") is None


def test_baselines_that_a_kernel_waits_for_are_compiled_before_others(lacking: LackingBaselines) -> None:
    lacking.compile_later("softmax", [HERE])
    lacking.compile_later("twice", [HERE])
    lacking.compile_next("twice", [HERE])
    asked = [lacking.take_compilation() for _ in range(4)]
    assert [one.op for one in asked if one] == ["twice", "twice", "softmax", "softmax"]
    assert lacking.take_compilation() is None


# A fake torch.compile that records each compilation and timing with the kind of process that ran it.
COMPILER = """
import inspect
import json
import threading
from dataclasses import replace
from pathlib import Path

from evolve.devices.choose import EVERY_BASELINE

POLICY = replace(POLICY, baselines=EVERY_BASELINE)
really_make = make


def make(known, cubins):
    from evolve.engines import worker
    from evolve.evaluation import baselines, time_pytorch
    from reference_ops.listing import user_cache_dir

    if "no_memory" in os.environ.get("TORCH_FAULT", "") and any(
        frame.function == "_prepare" for frame in inspect.stack()
    ):
        os._exit(9)

    def note(what, name, op, workload):
        with (user_cache_dir() / "notes").open("a") as notes:
            notes.write(json.dumps([what, name, op.name, workload.key]) + "\\n")

    def prepared(name, op, workload, device, watch):
        note("timed", name, op, workload)
        if "crashes" in op.name and name != "eager":
            os._exit(3)
        return lambda inputs: op.call_baseline(inputs, workload)

    def compile_ahead(name, op, workload, torch_device):
        note("ahead", name, op, workload)
        if "deadly" in op.name:
            os._exit(4)
        time.sleep(1.0 if "slow" in op.name else 0.0)

    def import_compiler(device):
        thread = threading.Thread(target=int)
        thread.start()
        return thread

    baselines.prepared, baselines.import_compiler, worker.compile_ahead = prepared, import_compiler, compile_ahead
    time_pytorch._reset_compiler = lambda: None
    return really_make(known, cubins)
"""


class Watched:
    """An engine on the fake GPU, with the notes of its workers and the events of its watch."""

    def __init__(self, folder: Path, preparers: int) -> None:
        self.folder, self.right = folder, dict[str, str]()  # messages about each correct kernel
        self.named: list[str] = []
        self.compiled: dict[str, bool] = {}  # whether torch.compile was timed before the message
        self.engine = LocalEngine("fakegpu", 1, self.watch, preparers=preparers)

    def watch(self, kernel: str, phase: str) -> None:
        if phase.startswith(RIGHT):
            self.right[kernel] = phase
            names = {kernel.id: name for name in self.named for kernel in kernels(name, 2)}
            self.compiled[kernel] = any(note[:2] == ("timed", COMPILE) for note in self.notes(names[kernel]))

    def op(self, name: str) -> str:
        """Write an op with a new name, whose baselines are unknown."""
        folder = self.folder / name
        folder.mkdir()
        self.named.append(name)
        path = Path(bad_kernels.small_twice(folder))
        path.write_text(path.read_text().replace('name="twice"', f'name="{name}"'))
        return str(path)

    def notes(self, name: str) -> list[tuple[str, str, str]]:
        lines = (self.folder / "cache" / "evolve" / "notes").read_text().splitlines()
        return [(what, baseline, workload) for what, baseline, op, workload in map(json.loads, lines) if op == name]

    @property
    def preparers(self) -> int:
        return sum(worker.role is Role.PREPARER for worker in self.engine._pool.workers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("lacking")
    (made / "cache").mkdir()
    with pytest.MonkeyPatch.context() as patch, fake_gpus(made, COMPILER):
        patch.setenv("XDG_CACHE_HOME", str(made / "cache"))
        yield made


@pytest.fixture(scope="module")
def watched(folder: Path) -> Iterator[Watched]:
    made = Watched(folder, preparers=2)
    yield made
    made.engine.close()


def kernels(name: str, count: int = 1) -> list[Kernel]:
    made = [bad_kernels.twice_kernel(note=f"kernel {number}") for number in range(count)]
    return [parse(one.text.replace('op = "twice"', f'op = "{name}"')) for one in made]


def verdicts(watched: Watched, name: str, count: int = 1) -> list[Evaluation]:
    op = watched.op(name)
    found = list(watched.engine.evaluate([Job(kernel, op) for kernel in kernels(name, count)]))
    assert [verdict.outcome for verdict in found] == [Outcome.PASSED] * count, [v.log for v in found]
    return found


def test_a_kernel_is_known_to_be_right_before_torch_compile_is_timed(watched: Watched) -> None:
    (verdict,) = verdicts(watched, "early")
    for one in verdict.measurements:
        assert one.compile_us
        assert one.autotune_us
    assert "x eager PyTorch" in watched.right[verdict.kernel_id]
    assert watched.compiled[verdict.kernel_id] is False


def test_two_kernels_have_each_baseline_compiled_and_timed_once(watched: Watched) -> None:
    verdicts(watched, "once", 2)
    notes = watched.notes("once")
    ahead = [(name, workload) for what, name, workload in notes if what == "ahead"]
    assert sorted(ahead) == sorted((name, workload) for name in (COMPILE, AUTOTUNE) for workload in (HERE, THERE))
    timed = [(name, workload) for what, name, workload in notes if what == "timed" and name != "eager"]
    assert sorted(timed) == sorted(ahead)


def test_evaluators_continue_while_baselines_are_compiled(watched: Watched) -> None:
    found = [verdict.kernel_id for verdict in verdicts(watched, "slow_one", 2)]
    assert found == [kernel.id for kernel in kernels("slow_one", 2)]
    assert [watched.compiled[kernel] for kernel in found] == [False, False]


def test_baselines_are_compiled_while_the_engine_waits_for_the_first_kernel(watched: Watched) -> None:
    watched.engine.prepare(watched.op("model_thinks"), [HERE, THERE])
    deadline = time.monotonic() + 20
    while len(watched.notes("model_thinks")) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {what for what, _, _ in watched.notes("model_thinks")} == {"ahead"}


def test_baselines_that_are_known_are_not_compiled_ahead(watched: Watched) -> None:
    verdicts(watched, "known")
    before = watched.notes("known")
    watched.engine.prepare(str(watched.folder / "known" / "twice.py"), [HERE, THERE])
    list(watched.engine.evaluate([Job(kernels("known")[0], str(watched.folder / "known" / "twice.py"))]))
    assert watched.notes("known") == before


def test_processes_that_compile_ahead_end_when_nothing_is_left_to_compile(watched: Watched) -> None:
    verdicts(watched, "ending")
    deadline = time.monotonic() + 20
    while watched.preparers and time.monotonic() < deadline:
        list(watched.engine.evaluate([]))
        watched.engine._step()
    assert watched.preparers == 0


def test_a_compilation_ahead_that_ends_its_process_costs_no_verdict(watched: Watched) -> None:
    (verdict,) = verdicts(watched, "deadly")
    assert all(one.autotune_us for one in verdict.measurements)


def test_a_baseline_that_ends_its_process_leaves_eager_pytorch(watched: Watched) -> None:
    (verdict,) = verdicts(watched, "crashes")
    assert [(one.compile_us, one.autotune_us) for one in verdict.measurements] == [(None, None)] * 2


@pytest.mark.exhaustive
def test_without_processes_that_compile_ahead_the_evaluator_compiles(folder: Path) -> None:
    made = Watched(folder, preparers=0)
    try:
        (verdict,) = verdicts(made, "alone")
    finally:
        made.engine.close()
    assert all(one.autotune_us for one in verdict.measurements)
    assert {what for what, _, _ in made.notes("alone")} == {"timed"}


@pytest.mark.exhaustive
def test_processes_that_cannot_start_cost_no_verdict(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FAULT", "no_memory")
    made = Watched(folder, preparers=2)
    try:
        (verdict,) = verdicts(made, "poor")
    finally:
        made.engine.close()
    assert all(one.autotune_us for one in verdict.measurements)
    assert {what for what, _, _ in made.notes("poor")} == {"timed"}
