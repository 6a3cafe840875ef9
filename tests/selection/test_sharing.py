"""Tests of runs that share the work on one archive: loop, claims and archive are real, the engine is scripted."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import bad_kernels
import pytest
from fake_engine import FakeEngine, verdict
from records import CPU
from scripted_runs import TWICE, PricedModel, op, outcome

from archive.claims import claims_on
from archive.kernel import Proposal, parse
from archive.records import Evaluation, Measurement
from archive.runs import Budget, Run, Scope
from archive.sqlite import open_archive
from evolve import budget
from evolve.budget import Ended
from evolve.campaign import campaign
from evolve.engines.engine import Job
from evolve.loop import evolve
from evolve.proposers.tuner.proposer import OfflineProposer
from evolve.request import Proposer
from evolve.search import Search
from evolve.selection.sharing import OTHERS, Share
from evolve.selection.view import OpView

EVALUATION_SECONDS = 0.02
SETTINGS = 17
TEXT = bad_kernels.twice_kernel().text.replace("[128, 64, 256]", str([128 + 8 * number for number in range(SETTINGS)]))
SEED = Proposal("twice", "seed", "tell", parse(TEXT), created=1.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    open_archive(tmp_path / "a.db").close()
    return tmp_path / "a.db"


def slowly(job: Job) -> Evaluation:
    time.sleep(EVALUATION_SECONDS)
    return verdict(job, Measurement("n=4096 float32", 50.0, 50.0, 50.0, 9, 100.0))


@dataclass
class Party:
    """A run in a separate thread, as if it were a process."""

    path: Path
    name: str
    proposer: Proposer = field(default_factory=OfflineProposer)
    limits: Budget = field(default=Budget(evals=1000))
    scope: Scope | None = None
    seeds: tuple[Proposal, ...] = (SEED,)
    engine: FakeEngine = field(default_factory=lambda: FakeEngine(slowly))
    ended: Ended | None = None

    def run(self) -> None:
        store = open_archive(self.path)
        store.append(Run(self.name, "twice", CPU.key, self.proposer.name, 7, time.time(), budget=self.limits))
        deadline = time.monotonic() + (self.limits.seconds or 60.0)
        with claims_on(self.path) as claims:
            scope = self.scope or Scope(self.name)
            search = Search(self.name, op(), TWICE, 7, self.limits, deadline, scope, share=Share(claims))
            self.ended = outcome(evolve(search, self.seeds, self.proposer, self.engine, store))

    @property
    def evaluated(self) -> list[str]:
        return [kernel.id for kernel in self.engine.evaluated]


def together(*parties: Party) -> None:
    threads = [threading.Thread(target=party.run) for party in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def spent(path: Path, run: str) -> int:
    return budget.spent(run, budget.history(open_archive(path), "twice", CPU.key)).evals


def test_two_runs_judge_each_kernel_once_and_both_end(path: Path) -> None:
    first, second = Party(path, "first"), Party(path, "second")
    together(first, second)
    assert first.ended is second.ended is Ended.NOTHING
    judged = Counter(first.evaluated + second.evaluated)
    assert len(judged) == SETTINGS
    assert set(judged.values()) == {1}
    assert min(len(first.evaluated), len(second.evaluated)) > 0


def test_each_run_counts_the_evaluations_that_it_made(path: Path) -> None:
    first, second = Party(path, "first"), Party(path, "second")
    together(first, second)
    assert spent(path, "first") == len(first.evaluated)
    assert spent(path, "second") == len(second.evaluated)


def test_each_run_keeps_its_own_budget_of_evaluations(path: Path) -> None:
    first, second = Party(path, "first", limits=Budget(evals=5)), Party(path, "second", limits=Budget(evals=7))
    together(first, second)
    assert (first.ended, second.ended) == (Ended.EVALS, Ended.EVALS)
    assert (len(first.evaluated), len(second.evaluated)) == (5, 7)
    assert max(Counter(first.evaluated + second.evaluated).values()) == 1


def test_a_champion_is_confirmed_once(path: Path) -> None:
    first, second = Party(path, "first"), Party(path, "second")
    together(first, second)
    confirmed = Counter(kernel.id for party in (first, second) for kernel in party.engine.confirmed)
    assert set(confirmed.values()) == {1}
    assert OpView(open_archive(path), "twice", CPU).unconfirmed() == []


def test_no_setting_is_proposed_by_both_runs(path: Path) -> None:
    first, second = Party(path, "first"), Party(path, "second")
    together(first, second)
    proposed = Counter(one.kernel_id for one in open_archive(path).find(Proposal) if one.operator != "seed")
    assert set(proposed.values()) == {1}


def test_a_run_ends_when_its_time_is_over_although_another_still_works(path: Path) -> None:
    store = open_archive(path)
    store.append(SEED)
    with claims_on(path) as others:
        assert others.take(SEED.kernel_id, CPU.key)
        waiting = Party(path, "waiting", limits=Budget(seconds=1.0))
        began = time.monotonic()
        waiting.run()
    assert waiting.ended is Ended.SECONDS
    assert waiting.evaluated == []
    assert 1.0 <= time.monotonic() - began < 10.0


def test_a_waiting_run_takes_over_the_claims_that_another_ends(path: Path) -> None:
    open_archive(path).append(SEED)
    party = Party(path, "waiting", limits=Budget(evals=1))
    with claims_on(path) as others:
        assert others.take(SEED.kernel_id, CPU.key)
        thread = threading.Thread(target=party.run)
        thread.start()
        time.sleep(0.5)
        assert party.evaluated == []
        others.give_back(SEED.kernel_id, CPU.key)
        thread.join(60)
    assert party.evaluated == [SEED.kernel_id]


def test_runs_with_models_that_write_the_same_kernels_judge_each_once(path: Path) -> None:
    first = Party(path, "first", PricedModel(), Budget(evals=6), seeds=())
    second = Party(path, "second", PricedModel(), Budget(evals=6), seeds=())
    together(first, second)
    assert (first.ended, second.ended) == (Ended.EVALS, Ended.EVALS)
    judged = first.evaluated + second.evaluated
    assert len(judged) == len(set(judged)) >= 6


def test_fresh_runs_share_only_equal_kernels(path: Path) -> None:
    """Each run counts a kernel that both propose, although only one of them judges it."""
    parties = [
        Party(path, name, PricedModel(most=4), scope=Scope(name, fresh=True), seeds=()) for name in ("first", "second")
    ]
    together(*parties)
    judged = [kernel_id for party in parties for kernel_id in party.evaluated]
    assert len(judged) == len(set(judged)) == 4
    for party in parties:
        view = OpView(open_archive(path), "twice", CPU, party.scope or Scope())
        assert len(view.alive()) == 4


def test_campaigns_share_the_work_on_each_of_their_ops(path: Path) -> None:
    engines = [FakeEngine(slowly), FakeEngine(slowly)]
    ended = [run_campaign_in_thread(path, name, engine) for name, engine in zip("ab", engines, strict=True)]
    for thread in ended:
        thread.join(60)
        assert not thread.is_alive()
    judged = [kernel.id for engine in engines for kernel in engine.evaluated]
    assert len(judged) == len(set(judged)) == 2 * SETTINGS


OPS = ("one", "two")


def run_campaign_in_thread(path: Path, name: str, engine: FakeEngine) -> threading.Thread:
    """Start a campaign over two ops that have the same kernels under other names."""

    def run() -> None:
        store = open_archive(path)
        with claims_on(path) as claims:
            searches = [
                Search(f"{name}{of}", op(of), TWICE, 7, Budget(evals=1000), time.monotonic() + 60, Scope(f"{name}{of}"),
                       share=Share(claims))
                for of in OPS
            ]  # fmt: skip
            seeds = [replace(SEED, op=of, kernel=parse(TEXT.replace('op = "twice"', f'op = "{of}"'))) for of in OPS]
            outcome(campaign(searches, seeds, OfflineProposer(), engine, store))

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_run_without_claims_evaluates_everything_itself(path: Path) -> None:
    store, engine = open_archive(path), FakeEngine(slowly)
    outcome(evolve(Search("run", op(), TWICE, 7, Budget(evals=3)), [SEED], OfflineProposer(), engine, store))
    assert len(engine.evaluated) == 3
    assert {evaluation.run for evaluation in store.find(Evaluation)} == {""}


def test_a_wait_for_other_runs_is_reported_with_its_end(path: Path) -> None:
    store, told = open_archive(path), list[str]()
    store.append(SEED)
    with claims_on(path) as others, claims_on(path) as mine:
        share, view = Share(mine, lambda _key, reason: told.append(reason)), OpView(store, "twice", CPU)
        assert others.take(SEED.kernel_id, CPU.key)
        assert share.free(view, view.pending()) == []
        assert share.others_work(view, deadline=time.monotonic() + 0.1)
        assert not share.others_work(view, deadline=time.monotonic() + 0.1)
    assert told[:2] == [OTHERS, ""]
