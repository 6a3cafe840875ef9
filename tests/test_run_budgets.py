"""Tests of how the loop keeps to its budgets, with a scripted model and engine."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from records import CPU
from scripted_runs import PRICE, TWICE, PricedModel, by_number, number_of, op, outcome, timed_engine

from archive.kernel import Proposal
from archive.records import Evaluation
from archive.runs import Budget, Run, Scope
from archive.sqlite import SqliteStore, open_archive
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.loop import evolve
from evolve.prompting.operators import DESIGNS
from evolve.request import MOST_WITHOUT_KERNEL, Left, Request
from evolve.search import GENERATION, Search
from evolve.selection import population
from evolve.selection.view import OpView


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return open_archive(tmp_path / "a.db")


SCOPE = Scope("run")


def run(store: SqliteStore, limits: Budget, model: PricedModel, engine: FakeEngine, scope: Scope = SCOPE) -> Ended:
    """Run one leg and return why it ended."""
    store.append(Run(scope.run, "twice", CPU.key, model.name, 7, time.time(), budget=limits))
    deadline = time.monotonic() + (limits.seconds or 60.0)
    events = evolve(Search(scope.run, op(), TWICE, 7, limits, deadline, scope), [], model, engine, store)
    return outcome(events)


def spent(store: SqliteStore, run: str = "run") -> Spent:
    return budget.spent(run, budget.history(store, "twice", CPU.key))


def test_the_run_keeps_its_budget_of_tokens(store: SqliteStore) -> None:
    assert run(store, Budget(tokens=20 * PRICE.tokens), PricedModel(), timed_engine()) is Ended.TOKENS
    assert spent(store).tokens == 20 * PRICE.tokens


def test_the_run_exceeds_its_budget_of_dollars_by_at_most_one_reply(store: SqliteStore) -> None:
    assert run(store, Budget(usd=0.105), PricedModel(), timed_engine()) is Ended.USD
    assert spent(store).usd == pytest.approx(0.11)


def test_replies_without_a_kernel_count_towards_the_budget(store: SqliteStore) -> None:
    assert run(store, Budget(tokens=20 * PRICE.tokens), PricedModel(prose=True), timed_engine()) is Ended.TOKENS
    assert len(store.find(Proposal)) == 20


def test_a_request_contains_the_rest_of_the_budget(store: SqliteStore) -> None:
    search = Search("run", op(), TWICE, 7, Budget(evals=9, tokens=100, usd=1.0), 123.0)
    assert search.request(OpView(store, "twice", CPU), Spent(2, 30, 0.25)).left == Left(70, 0.75, 7, 123.0)


def test_all_paid_kernels_are_evaluated_before_the_run_ends(store: SqliteStore) -> None:
    run(store, Budget(tokens=20 * PRICE.tokens), PricedModel(), timed_engine())
    assert len({evaluation.kernel_id for evaluation in store.find(Evaluation)}) == 20


def test_the_run_keeps_its_budget_of_evaluations(store: SqliteStore) -> None:
    engine = timed_engine()
    assert run(store, Budget(evals=11), PricedModel(), engine) is Ended.EVALS
    assert len(engine.evaluated) == 11


def test_a_model_that_makes_no_more_proposals_ends_the_run(store: SqliteStore) -> None:
    assert run(store, Budget(evals=100), PricedModel(most=5), timed_engine()) is Ended.NOTHING


def test_the_run_ends_when_the_champion_is_near_enough_to_the_speed_of_light(store: SqliteStore) -> None:
    engine = timed_engine(*(50.0,) * 10, 10.4)  # the speed of light is 10 us
    assert run(store, Budget(evals=1000, until_light=0.95), PricedModel(), engine) is Ended.LIGHT
    assert len(engine.evaluated) == 2 * GENERATION


def test_the_search_continues_if_the_champion_at_the_speed_of_light_fails_its_confirmation(store: SqliteStore) -> None:
    engine = FakeEngine(by_number({"twice": (10.2, *((50.0,) * 19), 10.3)}, 1))
    assert run(store, Budget(evals=1000, until_light=0.95), PricedModel(), engine) is Ended.LIGHT
    assert number_of(engine.confirmed[0]) == 1
    assert len(engine.evaluated) == 3 * GENERATION
    (champion,) = population.champions(population.latest(store.find(Evaluation), CPU.key).values())
    assert champion.measurement.median_us == 10.3


@pytest.mark.parametrize("killed_after", [1, 5, 8, 13, 19])
def test_a_killed_run_spends_exactly_the_rest_when_it_is_resumed(store: SqliteStore, killed_after: int) -> None:
    limits, model = Budget(evals=20, tokens=10**6), PricedModel()
    with pytest.raises(KeyboardInterrupt):
        run(store, limits, model, timed_engine(stop_after=killed_after))
    rest = budget.left(limits, spent(store))
    assert rest.evals == 20 - killed_after
    again = timed_engine()
    assert run(store, rest, model, again) is Ended.EVALS
    assert len(again.evaluated) == 20 - killed_after
    assert spent(store).evals == 20
    assert spent(store).tokens == 20 * PRICE.tokens


def test_replies_without_a_kernel_do_not_count_as_evaluations_and_end_the_run_if_there_is_nothing_else(
    store: SqliteStore,
) -> None:
    assert run(store, Budget(evals=12), PricedModel(prose=True), timed_engine()) is Ended.NOTHING
    assert spent(store).evals == 0
    assert len(store.find(Proposal)) >= MOST_WITHOUT_KERNEL


def test_a_run_that_has_spent_everything_only_confirms_when_it_is_resumed(store: SqliteStore) -> None:
    model = PricedModel()
    run(store, Budget(evals=8), model, timed_engine())
    again = timed_engine()
    assert run(store, Budget(evals=0), model, again) is Ended.EVALS
    assert (again.evaluated, model.written["twice"]) == ([], 8)


def test_a_fresh_run_does_not_evaluate_pending_kernels_of_other_runs(store: SqliteStore) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(store, Budget(evals=8), PricedModel(), timed_engine(stop_after=3))
    engine, model = timed_engine(), PricedModel(written={"twice": 100})
    run(store, Budget(evals=8), model, engine, Scope("second", fresh=True))
    assert len(engine.evaluated) == 8
    assert model.written["twice"] == 108
    assert spent(store, "second").evals == 8
    assert spent(store).evals == 3


@dataclass
class Silent:
    """A model whose requests never get a reply, and which never stops asking."""

    name: str = "a model"
    asked: int = 0

    def propose(self, request: Request) -> Iterator[Proposal]:
        for _ in range(request.wanted):
            self.asked += 1
            yield Proposal("twice", "draft", self.name, None, run=request.run, failure="500", call=str(self.asked))


def test_requests_without_a_reply_end_the_run_although_they_count_as_no_evaluation(store: SqliteStore) -> None:
    model = Silent()
    search = Search("run", op(), TWICE, 7, Budget(evals=1000), time.monotonic() + 60.0, SCOPE)
    assert outcome(evolve(search, [], model, timed_engine(), store)) is Ended.NOTHING
    assert MOST_WITHOUT_KERNEL <= model.asked < MOST_WITHOUT_KERNEL + GENERATION


@dataclass
class Planner(PricedModel):
    """A model whose first answer describes designs in words."""

    def propose(self, request: Request) -> Iterator[Proposal]:
        if not request.known:
            yield Proposal("twice", DESIGNS, self.name, None, run=request.run, reply="1. one 2. two", cost=PRICE)
        yield from super().propose(request)


def test_designs_in_words_use_up_no_evaluation(store: SqliteStore) -> None:
    engine = timed_engine()
    assert run(store, Budget(evals=8), Planner(), engine) is Ended.EVALS
    assert len(engine.evaluated) == 8
    assert spent(store).evals == 8


@pytest.mark.parametrize(("evals", "first"), [(1, 1), (2, 1), (5, 2), (8, 4), (15, 7), (16, 8), (1000, 8)])
def test_half_of_a_small_budget_of_evaluations_is_kept_for_kernels_after_the_first_verdicts(
    store: SqliteStore, evals: int, first: int
) -> None:
    search, view = Search("run", op(), TWICE, 7, Budget(evals=evals)), OpView(store, "twice", CPU)
    assert search.request(view, Spent()).wanted == first
    run(store, Budget(evals=1), PricedModel(), timed_engine())
    assert search.request(view, Spent(evals=1)).wanted == min(GENERATION, evals - 1)  # the population has a kernel


def test_the_first_questions_of_a_small_budget_leave_room_for_others(store: SqliteStore) -> None:
    """The second half is requested when the first verdicts are known."""
    events = list[object]()
    model, search = PricedModel(), Search("run", op(), TWICE, 7, Budget(evals=8), time.monotonic() + 60.0, SCOPE)
    outcome(evolve(search, [], model, timed_engine(), store), events)
    kinds = "".join("p" if isinstance(event, Proposal) else "e" for event in events)
    assert kinds.startswith("ppppeeeeppppeeee")
