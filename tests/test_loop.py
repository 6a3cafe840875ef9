"""Tests of the loop with a real archive and the real offline proposer. The engine is scripted and needs no device."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
import pytest
from fake_engine import FakeEngine, verdict
from records import CPU, GPU, passed

from archive.kernel import Kernel, Proposal
from archive.records import Evaluation, Leg, Measurement, Outcome, Profile
from archive.runs import Budget
from archive.sqlite import SqliteStore, open_archive
from evolve.engines.engine import Job
from evolve.loop import evolve
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.request import MOST_WITHOUT_KERNEL, Request
from evolve.search import GENERATION, Search
from evolve.selection import population
from evolve.selection.view import OpView
from reference_ops import catalog

TWICE = str(Path(__file__).parent / "samples" / "twice.py")
TIME = Measurement("n=4096 float32", 128.0, 128.0, 128.0, 9, 100.0)
SEED = Proposal("twice", "seed", "tell", bad_kernels.twice_kernel(), created=1.0)


def by_threads(*failing: int) -> Callable[[Job], Evaluation]:
    """Return a judge: a kernel takes 1 us per thread, and fails its confirmation with a `failing` number of threads."""

    def judge(job: Job) -> Evaluation:
        threads = job.kernel.plan.settings["THREADS"]
        if job.confirm and threads in failing:
            return verdict(job, outcome=Outcome.UNSAFE)
        return verdict(job, Measurement("n=4096 float32", threads, threads, threads, 9, 100.0))

    return judge


def engine_by_threads(*failing: int, stop_after: int | None = None) -> FakeEngine:
    return FakeEngine(by_threads(*failing), stop_after=stop_after, counters=(("registers", 32.0),))


def threads(kernels: Sequence[Kernel]) -> list[int]:
    return [kernel.plan.settings["THREADS"] for kernel in kernels]


@dataclass(frozen=True)
class OnlyFailures:
    """A model that never writes a kernel."""

    name: str = "model"

    def propose(self, request: Request) -> Iterator[Proposal]:
        for number in range(request.wanted):
            yield Proposal("twice", "draft", self.name, None, reply=f"{request.seed} {number}", failure="prose")


@dataclass(frozen=True)
class RepeatingModel:
    """A model that proposes the same kernel again and again."""

    name: str = "model"

    def propose(self, request: Request) -> Iterator[Proposal]:
        yield replace(SEED, operator="draft", reply=str(request.seed))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def search(tries: int = 100, seconds: float = 60.0) -> Search:
    return Search("run", catalog.load(TWICE), TWICE, 7, Budget(evals=tries), time.monotonic() + seconds)


def run(store: SqliteStore, engine: FakeEngine, tries: int = 100) -> list[Proposal | Evaluation]:
    return list(evolve(search(tries), [SEED], OfflineProposer(), engine, store))


def test_the_fastest_setting_is_found_and_the_run_ends_when_nothing_is_left(store: SqliteStore) -> None:
    engine = engine_by_threads()
    run(store, engine)
    best = min(store.find(Evaluation), key=lambda evaluation: evaluation.measurements[0].median_us)
    assert best.measurements[0].median_us == 64.0
    assert len(engine.evaluated) == 3  # one evaluation for each setting of the only knob


def test_every_event_is_in_the_archive_before_it_is_reported(store: SqliteStore) -> None:
    for event in evolve(search(), [SEED], OfflineProposer(), engine_by_threads(), store):
        found = store.find(Proposal) if isinstance(event, Proposal) else store.find(Evaluation)
        assert event in found


def test_a_stopped_run_resumes_without_losing_or_repeating_work(store: SqliteStore) -> None:
    first, second = engine_by_threads(stop_after=2), engine_by_threads()
    with pytest.raises(KeyboardInterrupt):
        run(store, first)
    run(store, second)
    assert len(first.evaluated) == 2
    evaluated = sorted(kernel.id for kernel in first.evaluated + second.evaluated)
    assert evaluated == sorted({kernel.id for kernel in store.find(Kernel)})
    assert len(store.find(Evaluation)) == 4  # one verdict for each setting, and the champion's confirmation


def test_running_again_when_everything_is_known_evaluates_nothing(store: SqliteStore) -> None:
    run(store, engine_by_threads())
    again = engine_by_threads()
    run(store, again)
    assert (again.evaluated, again.confirmed) == ([], [])


def test_the_run_keeps_its_number_of_tries(store: SqliteStore) -> None:
    engine = engine_by_threads()
    run(store, engine, tries=2)
    assert len(engine.evaluated) == 2


def test_a_model_that_writes_no_kernel_ends_the_run_although_that_is_not_an_evaluation(
    store: SqliteStore,
) -> None:
    events = list(evolve(search(tries=20), [], OnlyFailures(), engine_by_threads(), store))
    assert MOST_WITHOUT_KERNEL <= len(events) < MOST_WITHOUT_KERNEL + GENERATION
    assert all(proposal.failure for proposal in store.find(Proposal))


def test_a_model_that_repeats_itself_ends_the_run_too(store: SqliteStore) -> None:
    engine = engine_by_threads()
    list(evolve(search(tries=5), [], RepeatingModel(), engine, store))
    assert len(engine.evaluated) == 1


def test_no_evaluation_begins_after_the_deadline(store: SqliteStore) -> None:
    engine = engine_by_threads()
    list(evolve(search(seconds=-1), [SEED], OfflineProposer(), engine, store))
    assert engine.evaluated == []
    assert OpView(store, "twice", CPU).pending() == [bad_kernels.twice_kernel().id]


def test_only_the_champion_is_confirmed_at_the_end(store: SqliteStore) -> None:
    engine = engine_by_threads()
    run(store, engine)
    assert threads(engine.confirmed) == [64]
    assert {kernel.plan.settings["THREADS"] for kernel in store.find(Kernel)} == {128, 64, 256}
    assert OpView(store, "twice", CPU).unconfirmed() == []


def test_when_a_champion_fails_its_confirmation_the_next_one_is_confirmed(store: SqliteStore) -> None:
    engine = engine_by_threads(64, 128)
    run(store, engine)
    assert threads(engine.confirmed) == [64, 128, 256]
    verdicts = population.latest(store.find(Evaluation), CPU.key)
    assert sorted(str(verdict.outcome) for verdict in verdicts.values()) == ["passed", "unsafe", "unsafe"]


def test_a_run_ends_without_a_champion_when_every_confirmation_fails(store: SqliteStore) -> None:
    run(store, engine_by_threads(64, 128, 256))
    assert population.champions(population.latest(store.find(Evaluation), CPU.key).values()) == ()


def test_champions_are_confirmed_after_the_deadline(store: SqliteStore) -> None:
    store.append(SEED, Evaluation(SEED.kernel_id, "twice", CPU, Outcome.PASSED, "", (TIME,)))
    engine = engine_by_threads()
    list(evolve(search(seconds=-1), [], OfflineProposer(), engine, store))
    assert (engine.evaluated, threads(engine.confirmed)) == ([], [128])


def test_a_run_that_was_stopped_confirms_nothing(store: SqliteStore) -> None:
    engine = engine_by_threads(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        run(store, engine)
    assert engine.confirmed == []


def test_every_job_contains_the_time_to_beat(store: SqliteStore) -> None:
    engine = engine_by_threads()
    run(store, engine)
    bars = {job.kernel.plan.settings["THREADS"]: dict(job.bars) for job in engine.jobs if not job.confirm}
    assert bars[128] == {}
    assert bars[256] == {"n=4096 float32": 128.0}


def test_a_kernel_that_differs_only_in_its_note_is_not_evaluated_again(store: SqliteStore) -> None:
    engine = engine_by_threads()
    again = bad_kernels.twice_kernel(note="in other words")
    run(store, engine, tries=1)
    store.append(replace(SEED, kernel=again))
    list(evolve(search(tries=1), [], RepeatingModel(), engine, store))
    assert [kernel.id for kernel in engine.evaluated] == [SEED.kernel_id]
    verdict = population.latest(store.find(Evaluation), CPU.key)[again.id]
    assert verdict.outcome is Outcome.DUPLICATE
    assert SEED.kernel_id in verdict.log


@dataclass(frozen=True)
class Reader:
    """A model that proposes nothing and collects the profiles of its requests in `read`."""

    read: list[tuple[Profile, ...]] = field(default_factory=list)
    name: str = "model"

    def propose(self, request: Request) -> Iterator[Proposal]:
        self.read.extend(parent.profiles for parent in request.parents)
        return iter(())


def profiled(store: SqliteStore, engine: FakeEngine) -> list[tuple[Profile, ...]]:
    reader = Reader()
    list(evolve(replace(search(), profiled=True), [SEED], reader, engine, store))
    return reader.read


def test_parents_are_profiled_before_a_model_is_asked(store: SqliteStore) -> None:
    shown = profiled(store, engine_by_threads())
    assert shown
    assert all([profile.kernel_id for profile in profiles] == [SEED.kernel_id] for profiles in shown)


def test_a_kernel_is_profiled_only_once(store: SqliteStore) -> None:
    engine = engine_by_threads()
    profiled(store, engine)
    profiled(store, engine)
    assert engine.profiled == [(SEED.kernel_id, TWICE, "n=4096 float32")]


def test_the_model_is_asked_even_without_a_profiler(store: SqliteStore) -> None:
    shown = profiled(store, FakeEngine(by_threads()))
    assert shown
    assert not any(shown)


def test_nothing_is_profiled_for_a_proposer_that_does_not_read_profiles(store: SqliteStore) -> None:
    engine = engine_by_threads()
    run(store, engine)
    assert engine.profiled == []


def test_the_archive_records_when_a_run_ended_even_if_it_was_stopped(store: SqliteStore) -> None:
    run(store, engine_by_threads(), tries=1)
    with pytest.raises(KeyboardInterrupt):
        run(store, engine_by_threads(stop_after=0), tries=2)
    assert all(leg.ended >= leg.started > 0 for leg in store.find(Leg))
    assert len(store.find(Leg)) == 2


def test_a_run_without_a_gpu_evaluates_its_own_kernels_but_none_that_a_gpu_has_judged(store: SqliteStore) -> None:
    merged = bad_kernels.twice_kernel(note="merged")
    store.append(Proposal("twice", "draft", "model", merged, created=1.0))
    store.append(
        replace(passed(merged.id, GPU, w=1.0), op="twice"), replace(passed(SEED.kernel_id, GPU, w=1.0), op="twice")
    )
    engine = engine_by_threads()
    run(store, engine)
    assert merged.id not in {kernel.id for kernel in engine.evaluated}
    assert SEED.kernel_id in {kernel.id for kernel in engine.evaluated}
