"""Two stages, compilers and evaluators: the decisions of each, and the assignment of jobs to workers."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

import bad_kernels
import pytest
from scripted_device import INFO

from archive.kernel import Kernel, parse
from archive.records import Evaluation, Outcome
from evolve.engines import local, worker
from evolve.engines.engine import Job
from evolve.engines.local import LocalEngine
from evolve.engines.messages import Assignment, Role
from evolve.evaluation.compiling import bound_at
from evolve.evaluation.evaluate import SLOWER
from evolve.selection.duplicates import Duplicates
from reference_ops import catalog

TWICE = str(Path(__file__).parents[1] / "samples" / "twice.py")
pytestmark = pytest.mark.skipif(find_spec("cupy") is None, reason="compilers need NVRTC")


class Watched:
    """An engine that records the phases of its kernels and the workers that evaluated them."""

    def __init__(self, workers: int = 1, compilers: int = 1, **limits: object) -> None:
        self.phases: list[tuple[str, str]] = []
        self.evaluators: list[int] = []
        self.engine = LocalEngine("emulated", workers, self.record, compilers=compilers, **limits)  # type: ignore[arg-type]

    def record(self, kernel_id: str, phase: str) -> None:
        self.phases.append((kernel_id, phase))
        busy = [w.pid for w in self.engine._pool.workers if w.role is Role.EVALUATOR and w.current and w.pid]
        self.evaluators += [pid for pid in busy if pid not in self.evaluators[-1:]]

    def verdicts(self, *jobs: Job) -> list[Evaluation]:
        return list(self.engine.evaluate(jobs))

    def phases_of(self, kernel: Kernel) -> list[str]:
        return [phase for kernel_id, phase in self.phases if kernel_id == kernel.id]


@pytest.fixture(scope="module")
def long_lived() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.engine.close()


@pytest.fixture
def watched(long_lived: Watched) -> Watched:
    """Return the engine that all tests with default settings share, with empty records."""
    long_lived.phases.clear()
    long_lived.evaluators.clear()
    return long_lived


@pytest.fixture
def newly_watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.engine.close()


def job(kernel: Kernel, *, confirm: bool = False) -> Job:
    return Job(kernel, TWICE, confirm=confirm)


@dataclass(frozen=True)
class Verdicts:
    """Known verdicts, in which duplicates are looked up by their machine code."""

    known: tuple[Evaluation, ...] = ()

    def with_text(self, _kernel: Kernel) -> None:
        return None

    def with_code(self, code: str) -> Evaluation | None:
        return next((verdict for verdict in self.known if verdict.traits and verdict.traits.code == code), None)


def unless(*kernels: Kernel, known: tuple[Evaluation, ...] = (), confirm: bool = False) -> list[Job]:
    """Return jobs whose kernel is not run if it duplicates another job's kernel or one with a known verdict."""
    duplicates = Duplicates(Verdicts(known))
    return [Job(kernel, TWICE, confirm=confirm, duplicates=duplicates) for kernel in kernels]


def test_a_kernel_is_compiled_before_an_evaluator_gets_it(watched: Watched) -> None:
    kernel = bad_kernels.twice_kernel()
    (evaluation,) = watched.verdicts(job(kernel))
    assert evaluation.passed
    phases = watched.phases_of(kernel)
    assert phases.count("compile") > 2  # one compile phase, with its own deadline, for each workload
    assert set(phases[: phases.index("waiting")]) == {"compile"}
    assert phases.index("waiting") < phases.index("run")


@pytest.mark.parametrize(
    ("kernel", "outcome"),
    [(bad_kernels.NO_CODE, Outcome.COMPILE_ERROR), (bad_kernels.UNKNOWN_TENSOR, Outcome.MALFORMED)],
    ids=["no code", "unknown tensor"],
)
def test_a_kernel_that_does_not_compile_never_reaches_an_evaluator(
    watched: Watched, kernel: Kernel, outcome: Outcome
) -> None:
    (evaluation,) = watched.verdicts(job(kernel))
    assert evaluation.outcome is outcome
    assert evaluation.device == watched.engine.info
    assert "waiting" not in watched.phases_of(kernel)
    assert watched.evaluators == []


def test_a_kernel_that_does_not_compile_gets_its_verdict_beside_several_cards() -> None:
    made = Watched(cards=("one", "two"))
    try:
        (evaluation,) = made.verdicts(job(bad_kernels.NO_CODE))
        assert evaluation.outcome is Outcome.COMPILE_ERROR
    finally:
        made.engine.close()


@pytest.mark.exhaustive
def test_each_of_many_kernels_gets_its_verdict() -> None:
    made = Watched(workers=2, compilers=2)
    good = [bad_kernels.twice_kernel(note=f"number {n}") for n in range(6)]
    bad = [bad_kernels.twice_kernel("no code;", f"number {n}") for n in range(12)]
    try:
        found = {e.kernel_id: e.passed for e in made.verdicts(*map(job, (*good, *bad)))}
    finally:
        made.engine.close()
    assert found == {**{k.id: True for k in good}, **{k.id: False for k in bad}}


@pytest.mark.exhaustive
def test_a_compiler_that_misses_its_deadline_is_killed() -> None:
    made = Watched(phase_seconds={"compile": 0.5})
    nested = "".join(f"#define A{n} A{n - 1} A{n - 1} A{n - 1} A{n - 1}\n" for n in range(1, 15))
    bomb = with_source("twice", f"#define A0 1 +\n{nested}", "A14 1")
    try:
        (evaluation,) = made.verdicts(job(bomb))
        assert evaluation.outcome is Outcome.COMPILE_ERROR
        assert evaluation.log == "compiling took more than 0.5 s"
    finally:
        made.engine.close()


@pytest.mark.exhaustive
def test_a_compiler_that_needs_too_much_memory_gives_a_verdict_and_the_next_job_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # NVRTC reserves 2**28 bytes for precompiled headers.
    monkeypatch.setattr(local, "COMPILER_BYTES", 2**29)
    made = Watched()
    bomb = with_source(
        "twice",
        "template <int N, int M> struct T { typedef typename T<N - 1, 2 * M>::t a; "
        "typedef typename T<N - 1, 2 * M + 1>::t b; typedef int t; };\n"
        "template <int M> struct T<0, M> { typedef int t; };\n",
        "T<24, 0>::t(1)",
    )
    try:
        first, second = made.verdicts(job(bomb), job(bad_kernels.twice_kernel()))
        assert first.outcome is Outcome.COMPILE_ERROR
        assert "memory" in first.log
        assert second.passed, second.log
    finally:
        made.engine.close()


def with_source(note: str, before: str, value: str) -> Kernel:
    text = bad_kernels.twice_kernel(f"if (i < n) out[i] = x_t({value});", note).text
    return parse(text.replace('extern "C" __global__', f'{before}extern "C" __global__'))


@pytest.mark.parametrize("compilers", [pytest.param(0, marks=pytest.mark.exhaustive), 1])
def test_a_champion_is_confirmed_in_a_fresh_process(compilers: int) -> None:
    made = Watched(compilers=compilers)
    kernel = bad_kernels.twice_kernel()
    try:
        first, second, third = made.verdicts(job(kernel), job(kernel, confirm=True), job(kernel, confirm=True))
        assert first.confirmed is None
        assert second.confirmed
        assert third.confirmed
        assert len(set(made.evaluators)) == 3
    finally:
        made.engine.close()


def test_a_kernel_that_compiles_to_known_code_never_reaches_an_evaluator(watched: Watched) -> None:
    kernel, duplicate = bad_kernels.twice_kernel(), bad_kernels.twice_kernel(note="the same in other words")
    (first,) = watched.verdicts(job(kernel))
    (second,) = watched.verdicts(*unless(duplicate, known=(first,)))
    assert second.outcome is Outcome.DUPLICATE
    assert second.log == f"compiles to the same machine code as kernel {kernel.id}, whose verdict is: passed"
    assert second.traits == first.traits
    assert second.kernel_id == duplicate.id
    assert "waiting" not in watched.phases_of(duplicate)
    assert len(watched.evaluators) == 1


def test_a_duplicate_of_a_failed_kernel_is_not_run_either(watched: Watched) -> None:
    (first,) = watched.verdicts(job(bad_kernels.WRONG))
    (second,) = watched.verdicts(*unless(parse(bad_kernels.WRONG.text + "// unlike\n"), known=(first,)))
    assert first.outcome is Outcome.WRONG
    assert second.outcome is Outcome.DUPLICATE
    assert second.log.endswith("whose verdict is: wrong")


def test_only_one_of_two_equal_kernels_proposed_together_is_evaluated(watched: Watched) -> None:
    kernels = [bad_kernels.twice_kernel(note=f"number {n}") for n in range(2)]
    found = {evaluation.outcome: evaluation for evaluation in watched.verdicts(*unless(*kernels))}
    assert set(found) == {Outcome.PASSED, Outcome.DUPLICATE}
    assert f"{found[Outcome.PASSED].kernel_id}, which was proposed at the same time" in found[Outcome.DUPLICATE].log


def at_a_glance(kernel: Kernel, bar_us: float, *, workloads: int = 2) -> Job:
    """Return a job for a setting of knobs of a kernel that has passed, with one time to beat at every workload."""
    keys = [one.key for one in catalog.load(TWICE).workloads("emulated")]
    return Job(kernel, TWICE, tuple((key, bar_us) for key in keys[:workloads]), setting=True)


def test_a_setting_of_knobs_that_is_clearly_slower_everywhere_is_judged_in_few_calls(watched: Watched) -> None:
    kernel = bad_kernels.twice_kernel()
    (verdict,) = watched.verdicts(at_a_glance(kernel, bar_us=1e-3))
    assert verdict.passed
    assert verdict.log.startswith(SLOWER)
    assert [measurement.coarse for measurement in verdict.measurements] == [True, True]
    assert {check.workload for check in verdict.checks} == {one.workload for one in verdict.measurements}
    assert verdict.envelope is None
    assert watched.phases_of(kernel).count("waiting") == 1


@pytest.mark.parametrize("times", [{"bar_us": 1e9}, {"bar_us": 1e-3, "workloads": 1}], ids=["fast", "no time to beat"])
def test_a_setting_of_knobs_that_may_be_fast_at_some_workload_is_evaluated_in_full(
    watched: Watched, times: dict[str, float]
) -> None:
    kernel = bad_kernels.twice_kernel()
    (verdict,) = watched.verdicts(at_a_glance(kernel, **times))  # type: ignore[arg-type]
    assert verdict.passed
    assert verdict.envelope
    assert SLOWER not in verdict.log
    assert watched.phases_of(kernel).count("waiting") == 2


def test_a_wrong_setting_of_knobs_is_refused_after_few_calls(watched: Watched) -> None:
    (verdict,) = watched.verdicts(at_a_glance(bad_kernels.WRONG, bar_us=1e-3))
    assert verdict.outcome is Outcome.WRONG


def test_compilers_without_work_share_a_kernel_and_compile_each_program_once() -> None:
    made = Watched(compilers=3)
    try:
        (verdict,) = made.verdicts(job(bad_kernels.twice_kernel()))
        files = [file.suffix for file in made.engine._pool._cubins.iterdir()]
    finally:
        made.engine.close()
    assert verdict.passed
    assert files.count(".begun") == files.count(".ended") == 2  # one program for each dtype


def test_a_worker_waits_for_or_skips_a_program_that_another_has_begun(tmp_path: Path) -> None:
    kernel, op = bad_kernels.twice_kernel(), catalog.load(TWICE)
    bound = bound_at(kernel, op, op.workloads("emulated")[0], INFO)
    request = Assignment(kernel.text, TWICE, (), confirm=False, shapes_seed=1, device=INFO)
    program: Any = object()
    shared = worker._Shared(tmp_path, request, lambda _: program)
    another = worker._Shared(tmp_path, replace(request, shapes_seed=2), shared.compile_bound)
    assert shared.compile_if_left(bound) is program
    assert shared.compile_if_left(bound) is None
    assert shared.compile(bound) is program  # loads the program that is already compiled
    assert another.compile_if_left(bound) is program  # a job of another kernel does not share it
    shared._mark(bound, "ended").unlink()
    (process := Thread(target=shared.compile, args=(bound,))).start()
    assert process.is_alive()
    shared._mark(bound, "ended").touch()
    process.join(5)
    assert not process.is_alive()


def test_without_known_verdicts_duplicates_are_evaluated(watched: Watched) -> None:
    kernels = [bad_kernels.twice_kernel(note=f"number {n}") for n in range(2)]
    assert all(e.passed for e in watched.verdicts(*map(job, kernels), *unless(kernels[0])))


def test_a_kernel_is_not_a_duplicate_of_itself(watched: Watched) -> None:
    kernel = bad_kernels.twice_kernel()
    (first,) = watched.verdicts(job(kernel))
    assert watched.verdicts(*unless(kernel, known=(first,)))[0].passed
    assert [e.passed for e in watched.verdicts(*unless(kernel, kernel))] == [True, True]


def test_a_confirmation_is_never_a_duplicate(watched: Watched) -> None:
    kernel, duplicate = bad_kernels.twice_kernel(), bad_kernels.twice_kernel(note="the same in other words")
    (first,) = watched.verdicts(job(kernel))
    (second,) = watched.verdicts(*unless(duplicate, known=(first,), confirm=True))
    assert second.confirmed


def test_a_kernel_with_other_knob_settings_is_not_a_duplicate(watched: Watched) -> None:
    kernel = bad_kernels.twice_kernel()
    (first,) = watched.verdicts(job(kernel))
    (second,) = watched.verdicts(*unless(kernel.with_knobs({"THREADS": 64}), known=(first,)))
    assert second.passed
    assert first.traits
    assert second.traits
    assert (first.traits.threads, second.traits.threads) == (128, 64)


def test_the_verdict_on_a_kernel_that_ended_its_worker_holds_its_traits(watched: Watched) -> None:
    (evaluation,) = watched.verdicts(job(bad_kernels.CRASHING))
    assert evaluation.outcome is Outcome.CRASHED
    assert evaluation.traits
    assert evaluation.traits.store_bytes == 4


def test_the_verdict_on_a_kernel_whose_worker_was_killed_from_outside_is_not_copied_to_duplicates() -> None:
    made: LocalEngine

    def kill_at_every_run(_kernel: str, phase: str) -> None:
        if phase == "run":
            os.killpg(next(w.pid for w in made._pool.workers if w.role is Role.EVALUATOR), signal.SIGKILL)

    made = LocalEngine("emulated", 1, kill_at_every_run, compilers=1)
    try:
        (evaluation,) = made.evaluate([job(bad_kernels.HANGING)])
    finally:
        made.close()
    assert "ended by SIGKILL in run" in evaluation.log
    assert evaluation.traits is None


@pytest.mark.exhaustive
def test_without_compilers_a_duplicate_is_evaluated() -> None:
    made = Watched(compilers=0)
    kernel, duplicate = bad_kernels.twice_kernel(), bad_kernels.twice_kernel(note="the same in other words")
    try:
        (first,) = made.verdicts(job(kernel))
        (second,) = made.verdicts(*unless(duplicate, known=(first,)))
    finally:
        made.engine.close()
    assert second.passed
    assert first.traits == second.traits is not None


@pytest.mark.exhaustive
def test_a_worker_is_replaced_after_its_maximum_number_of_jobs(
    newly_watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "JOBS_PER_WORKER", 2)
    kernel = bad_kernels.twice_kernel()
    assert all(e.passed for e in newly_watched.verdicts(*[job(kernel)] * 5))
    assert len(set(newly_watched.evaluators)) == 3


@pytest.mark.exhaustive
def test_old_cubins_are_removed_when_a_worker_is_replaced(newly_watched: Watched) -> None:
    assert newly_watched.verdicts(job(bad_kernels.twice_kernel()))[0].passed
    left = set((newly_watched.engine._pool.folder / "cubins").iterdir())
    assert left  # the emulated device does not load cubins, so they are still there
    old = left.pop()
    os.utime(old, (0, 0))
    newly_watched.verdicts(job(bad_kernels.CRASHING))
    assert not old.exists()
    assert all(file.exists() for file in left)


@pytest.mark.gpu
def test_a_gpu_worker_loads_and_removes_the_cubins_that_were_compiled_ahead() -> None:
    made = LocalEngine("cuda", 1, compilers=2)
    kernels = [bad_kernels.twice_kernel(f"{bad_kernels.RIGHT}  // number {n}") for n in range(4)]
    try:
        assert all(e.passed for e in made.evaluate(map(job, kernels)))
        assert not list((made._pool.folder / "cubins").glob("*.cubin"))
    finally:
        made.close()


@pytest.mark.gpu
def test_a_gpu_worker_is_replaced_after_every_fault() -> None:
    made = LocalEngine("cuda", 1, compilers=2)
    faults = [bad_kernels.twice_kernel(f"out[(1ll << 44) + i] = x_t({n}.0f);", f"crash {n}") for n in range(5)]
    try:
        assert [e.outcome for e in made.evaluate(map(job, faults))] == [Outcome.CRASHED] * 5
        assert next(made.evaluate([job(bad_kernels.twice_kernel())])).passed
    finally:
        made.close()
