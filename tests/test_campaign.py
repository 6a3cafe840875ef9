"""Tests of several ops under one budget: ops with headroom get more of it, and the archive records the cost of each."""

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from records import CPU
from scripted_runs import PRICE, TWICE, PricedModel, by_number, kernel, op, outcome

from archive.kernel import Proposal
from archive.records import Evaluation, Leg
from archive.runs import Budget, Run, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.campaign import Slice, campaign, headroom, is_measured
from evolve.engines.engine import Job
from evolve.search import GENERATION, Search, generation
from evolve.selection.view import OpView

FAST, SLOW, LIGHT = (15.0,), (80.0,), (10.1,)  # the speed of light is 10 us


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


def searches(store: SqliteStore, names: Mapping[str, object], limits: Budget) -> list[Search]:
    for name in names:
        store.append(Run(f"run of {name}", name, CPU.key, "a model", 7, time.time(), campaign="all"))
    deadline = time.monotonic() + 60
    return [
        Search(f"run of {name}", op(name), TWICE, 7, limits, deadline, Scope(f"run of {name}")) for name in names
    ]  # fmt: skip


def run(
    store: SqliteStore, times: Mapping[str, tuple[float, ...]], limits: Budget, model: PricedModel | None = None
) -> tuple[Ended, FakeEngine, list[Slice]]:
    engine, seen = FakeEngine(by_number(times)), list[object]()
    ended = outcome(campaign(searches(store, times, limits), [], model or PricedModel(), engine, store), seen)
    return ended, engine, [event for event in seen if isinstance(event, Slice)]


def spent(store: SqliteStore, name: str) -> Spent:
    return budget.spent(f"run of {name}", budget.history(store, name, CPU.key))


def view(search: Search, store: SqliteStore) -> OpView:
    return OpView(store, search.op.name, CPU, search.scope)


def test_all_ops_share_one_budget(store: SqliteStore) -> None:
    ended, engine, _ = run(store, {"twice": SLOW, "thrice": FAST}, Budget(evals=50))
    assert ended is Ended.EVALS
    assert len(engine.evaluated) == 50


def test_the_larger_headroom_gets_the_larger_share(store: SqliteStore) -> None:
    run(store, {"twice": SLOW, "thrice": FAST}, Budget(evals=200))
    assert spent(store, "twice").evals > 2 * spent(store, "thrice").evals > 0


def test_an_op_gets_no_more_slices_once_it_is_at_the_speed_of_light(store: SqliteStore) -> None:
    run(store, {"twice": SLOW, "thrice": LIGHT}, Budget(evals=80))
    assert spent(store, "thrice").evals == GENERATION
    assert spent(store, "twice").evals == 80 - GENERATION


def test_an_op_at_the_speed_of_light_from_the_start_gets_nothing(store: SqliteStore) -> None:
    run(store, {"thrice": LIGHT}, Budget(evals=GENERATION))
    before = spent(store, "thrice")
    run(store, {"twice": SLOW, "thrice": LIGHT}, Budget(evals=40), PricedModel(written={"thrice": 99}))
    assert spent(store, "thrice").evals == before.evals
    assert spent(store, "twice").evals == 40


def test_the_campaign_ends_when_all_ops_are_at_the_speed_of_light(store: SqliteStore) -> None:
    ended, engine, _ = run(store, {"twice": LIGHT, "thrice": LIGHT}, Budget(evals=1000))
    assert ended is Ended.LIGHT
    assert len(engine.evaluated) == 2 * GENERATION


def test_an_op_with_nothing_left_to_try_leaves_its_budget_to_the_others(store: SqliteStore) -> None:
    ended, _, _ = run(store, {"twice": SLOW, "thrice": FAST}, Budget(evals=1000), PricedModel(most=20))
    assert ended is Ended.NOTHING
    assert (spent(store, "twice").evals, spent(store, "thrice").evals) == (20, 20)


def test_a_budget_in_dollars_is_shared_and_kept(store: SqliteStore) -> None:
    ended, _, _ = run(store, {"twice": SLOW, "thrice": FAST}, Budget(usd=0.4))
    assert ended is Ended.USD
    assert spent(store, "twice").usd + spent(store, "thrice").usd == pytest.approx(0.4)
    assert spent(store, "twice").tokens == spent(store, "twice").evals * PRICE.tokens


def test_the_champions_of_every_op_are_confirmed_at_the_end(store: SqliteStore) -> None:
    _, engine, slices = run(store, {"twice": SLOW, "thrice": FAST}, Budget(evals=40))
    assert len(engine.confirmed) == 2
    assert {evaluation.op for evaluation in store.find(Evaluation) if evaluation.confirmed} == {"twice", "thrice"}
    assert [part.search.op.name for part in slices if part.confirming] == ["twice", "thrice"]


def test_a_resumed_campaign_counts_the_earlier_cost_of_each_op(store: SqliteStore) -> None:
    times = {"twice": SLOW, "thrice": tuple(80 * 0.99**number for number in range(99))}
    run(store, {"twice": SLOW}, Budget(evals=64))
    run(store, times, Budget(evals=48), PricedModel(written={"twice": 64}))
    assert spent(store, "thrice").evals == 48  # the other op has nearly the same headroom and had spent nothing


def test_headroom_shrinks_as_times_do(store: SqliteStore) -> None:
    (search,) = searches(store, {"twice": ()}, Budget(evals=40))
    before = headroom(search, view(search, store))
    run(store, {"twice": (15.0,)}, Budget(evals=40))
    assert headroom(search, view(search, store)) < before


def test_headroom_is_a_guess_until_something_is_measured(store: SqliteStore) -> None:
    (search,) = searches(store, {"twice": ()}, Budget(evals=8))
    assert not is_measured(search, view(search, store))
    run(store, {"twice": (15.0,)}, Budget(evals=8))
    assert is_measured(search, view(search, store))


@dataclass
class TwoCards(FakeEngine):
    """Engine with two cards: it takes a job for each card before it yields the verdict on the older job."""

    cards: int = 2
    together: list[frozenset[str]] = field(default_factory=list)  # the ops of current jobs at each verdict
    idle: int = 0  # number of verdicts at which a card had no job although more jobs followed

    def evaluate(self, jobs: Iterable[Job | None]) -> Iterator[Evaluation]:
        incoming, held, ended = iter(jobs), deque[Job](), False
        while True:
            while len(held) < self.cards and not ended:
                job = next(incoming, self)  # `self` if there are no more jobs
                ended = job is self
                if not isinstance(job, Job):
                    break
                self.jobs.append(job)
                held.append(job)
            if not held:
                return
            if not any(job.confirm for job in held):
                self.together.append(frozenset(job.kernel.op for job in held))
                self.idle += len(held) < self.cards and not ended
            yield self.judge(held.popleft())


def run_side_by_side(
    store: SqliteStore, times: Mapping[str, tuple[float, ...]], limits: Budget, model: PricedModel | None = None
) -> tuple[Ended, TwoCards]:
    engine = TwoCards(by_number(times))
    return outcome(campaign(searches(store, times, limits), [], model or PricedModel(), engine, store)), engine


def test_an_idle_card_takes_the_next_op(store: SqliteStore) -> None:
    _, engine = run_side_by_side(store, {"twice": SLOW, "thrice": SLOW}, Budget(evals=64))
    assert frozenset({"twice", "thrice"}) in engine.together
    assert engine.idle <= 1  # a card is idle only during the last kernel of the budget


def test_a_single_op_leaves_the_other_card_idle_only_at_the_end_of_its_rounds(store: SqliteStore) -> None:
    _, engine = run_side_by_side(store, {"twice": SLOW}, Budget(evals=64))
    assert engine.idle == 64 // GENERATION


@pytest.mark.parametrize("evals", [1, 7, 50])
def test_ops_side_by_side_keep_the_budget(store: SqliteStore, evals: int) -> None:
    ended, engine = run_side_by_side(store, {"twice": SLOW, "thrice": FAST}, Budget(evals=evals))
    assert ended is Ended.EVALS
    assert len(engine.evaluated) == evals
    assert spent(store, "twice").evals + spent(store, "thrice").evals == evals


def test_side_by_side_the_larger_headroom_gets_the_larger_share(store: SqliteStore) -> None:
    run_side_by_side(store, {"twice": SLOW, "thrice": FAST, "half": FAST, "light": LIGHT}, Budget(evals=240))
    assert spent(store, "light").evals == GENERATION
    others = spent(store, "thrice").evals, spent(store, "half").evals
    assert spent(store, "twice").evals > 1.5 * max(others) > 0


def test_side_by_side_ops_with_nothing_left_to_try_end_the_campaign(store: SqliteStore) -> None:
    times = {"twice": SLOW, "thrice": FAST}
    ended, engine = run_side_by_side(store, times, Budget(evals=1000), PricedModel(most=20))
    assert ended is Ended.NOTHING
    assert (spent(store, "twice").evals, spent(store, "thrice").evals) == (20, 20)
    assert len(engine.confirmed) == 2


def test_side_by_side_dollars_are_kept(store: SqliteStore) -> None:
    ended, _ = run_side_by_side(store, {"twice": SLOW, "thrice": FAST}, Budget(usd=0.4))
    assert ended is Ended.USD
    assert spent(store, "twice").usd + spent(store, "thrice").usd == pytest.approx(0.4)


def test_side_by_side_pending_kernels_are_judged_first(store: SqliteStore) -> None:
    store.append(*(Proposal("twice", "draft", "a person", kernel(number)) for number in range(100, 103)))
    _, engine = run_side_by_side(store, {"twice": SLOW, "thrice": SLOW}, Budget(evals=30))
    assert len(engine.evaluated) == len({one.id for one in engine.evaluated}) == 30


def test_enough_kernels_are_requested_for_many_cards() -> None:
    assert [generation(TwoCards(cards=cards)) for cards in (1, 2, 100)] == [GENERATION, GENERATION, 2 * 100]
    assert generation(FakeEngine()) == GENERATION


def test_a_campaign_that_is_stopped_side_by_side_ends_its_legs(store: SqliteStore) -> None:
    engine = TwoCards(by_number({"twice": SLOW, "thrice": SLOW}))
    events = campaign(searches(store, {"twice": (), "thrice": ()}, Budget(evals=64)), [], PricedModel(), engine, store)
    for _ in range(30):
        next(events)
    events.close()
    assert all(leg.ended for leg in store.find(Leg))
