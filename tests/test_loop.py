"""The loop over a real archive and the real offline proposer; the engine is scripted, so that it needs no device."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
import pytest
from records import CPU

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Proposal
from archive.store import SqliteStore, open_archive
from evolve import selection
from evolve.engines.engine import Job
from evolve.loop import Quest, evolve
from evolve.proposers.offline import OfflineProposer
from evolve.proposers.proposer import Request
from reference_ops import catalog

TWICE = str(Path(__file__).parent / "samples" / "twice.py")
SEED = Proposal("twice", "seed", "shipped", bad_kernels.twice_kernel(), created=1.0)


@dataclass
class ScriptedEngine:
    """Times follow from the knobs; kernels noted as bad fail. Can stop half-way, as a killed run does."""

    stop_after: int = 10**9
    evaluated: list[str] = field(default_factory=list)
    info: DeviceInfo = CPU

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            if len(self.evaluated) >= self.stop_after:
                raise KeyboardInterrupt
            self.evaluated.append(job.kernel.id)
            time_us = float(job.kernel.plan.settings["THREADS"])
            passed = job.kernel.plan.note != "bad"
            times = (Measurement("n=4096 float32", time_us, time_us, time_us, 9, 100.0),) if passed else ()
            outcome = Outcome.PASSED if passed else Outcome.WRONG
            yield Evaluation(job.kernel.id, "twice", CPU, outcome, "", times, created=time.time())

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class OnlyFailures:
    """A model that never writes a kernel."""

    name: str = "model"

    def propose(self, request: Request) -> Iterator[Proposal]:
        for number in range(request.wanted):
            yield Proposal("twice", "draft", self.name, None, reply=f"{request.seed} {number}", failure="prose")


@dataclass(frozen=True)
class Parrot:
    """A model that offers the same kernel again and again."""

    name: str = "model"

    def propose(self, request: Request) -> Iterator[Proposal]:
        yield replace(SEED, operator="draft", reply=str(request.seed))


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def quest(tries: int = 100, seconds: float = 60.0) -> Quest:
    return Quest("run", catalog.load(TWICE), TWICE, 7, tries, time.monotonic() + seconds)


def run(store: SqliteStore, engine: ScriptedEngine, tries: int = 100) -> list[Proposal | Evaluation]:
    return list(evolve(quest(tries), [SEED], OfflineProposer(), engine, store))


def test_the_fastest_setting_is_found_and_the_run_ends_when_nothing_is_left(store: SqliteStore) -> None:
    engine = ScriptedEngine()
    run(store, engine)
    best = min(store.find(Evaluation), key=lambda evaluation: evaluation.measurements[0].median_us)
    assert best.measurements[0].median_us == 64.0
    assert len(engine.evaluated) == 3  # every setting of the one knob, each once


def test_every_event_is_in_the_archive_before_it_is_told(store: SqliteStore) -> None:
    for event in evolve(quest(), [SEED], OfflineProposer(), ScriptedEngine(), store):
        found = store.find(Proposal) if isinstance(event, Proposal) else store.find(Evaluation)
        assert event in found


def test_a_run_that_was_stopped_goes_on_without_losing_or_repeating_anything(store: SqliteStore) -> None:
    first, second = ScriptedEngine(stop_after=2), ScriptedEngine()
    with pytest.raises(KeyboardInterrupt):
        run(store, first)
    run(store, second)
    assert len(first.evaluated) == 2
    assert sorted(first.evaluated + second.evaluated) == sorted({kernel.id for kernel in store.find(Kernel)})
    assert len(store.find(Evaluation)) == 3


def test_running_again_when_everything_is_known_evaluates_nothing(store: SqliteStore) -> None:
    run(store, ScriptedEngine())
    again = ScriptedEngine()
    run(store, again)
    assert again.evaluated == []


def test_the_number_of_tries_is_kept(store: SqliteStore) -> None:
    engine = ScriptedEngine()
    run(store, engine, tries=2)
    assert len(engine.evaluated) == 2


def test_failed_replies_count_as_tries_so_a_mute_model_ends_the_run(store: SqliteStore) -> None:
    events = list(evolve(quest(tries=20), [], OnlyFailures(), ScriptedEngine(), store))
    assert len(events) == 20
    assert all(proposal.failure for proposal in store.find(Proposal))


def test_a_model_that_repeats_itself_ends_the_run_too(store: SqliteStore) -> None:
    engine = ScriptedEngine()
    list(evolve(quest(tries=5), [], Parrot(), engine, store))
    assert len(engine.evaluated) == 1


def test_no_evaluation_begins_after_the_deadline(store: SqliteStore) -> None:
    engine = ScriptedEngine()
    list(evolve(quest(seconds=-1), [SEED], OfflineProposer(), engine, store))
    assert engine.evaluated == []
    assert [kernel.id for kernel in selection.pending(store, "twice", CPU)] == [bad_kernels.twice_kernel().id]
