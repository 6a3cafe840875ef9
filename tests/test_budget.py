"""Tests of budgets: the cost of a run is computed only from its records, however the run ended."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from records import GPU, brief_evaluation, brief_proposal, confirmed, failed_reply, kernel, passed, proposal

from archive.kernel import Kernel, Proposal
from archive.records import Evaluation, Leg
from archive.runs import Budget, Cost
from evolve.budget import IDLE_SECONDS, Ended, History, Spent, at_light, ended, left, nearest, spent, steps
from evolve.selection.population import champions

WORKLOADS = ("rows=8 cols=16 float32", "rows=2 cols=512 float32")


def proposed(number: int, at: float, run: str = "run", tokens: int = 0, usd: float = 0.0) -> Proposal:
    cost = Cost(prompt_tokens=tokens, usd=usd)
    return replace(proposal(kernel(number), run=run), created=at, cost=cost, call=f"{at}")


def judged(number: int, at: float, seconds: float = 0.5) -> Evaluation:
    return replace(passed(kernel(number).id, GPU, at, **{WORKLOADS[0]: 20.0}), seconds=seconds)


def history(*records: Leg | Proposal | Evaluation) -> History:
    return History(
        [record for record in records if isinstance(record, Leg)],
        [brief_proposal(record) for record in records if isinstance(record, Proposal)],
        [brief_evaluation(record) for record in records if isinstance(record, Evaluation)],
    )


def test_a_kernel_counts_once_it_is_evaluated() -> None:
    waiting: list[Leg | Proposal] = [Leg("run", 0.0), proposed(1, 1.0, tokens=150, usd=0.5)]
    assert spent("run", history(*waiting)) == Spent(evals=0, tokens=150, usd=0.5, seconds=1.0)
    assert spent("run", history(*waiting, judged(1, 2.0))) == Spent(evals=1, tokens=150, usd=0.5, seconds=2.5)


def test_a_reply_without_a_kernel_costs_its_tokens_but_no_evaluation() -> None:
    reply = replace(failed_reply(), run="run", created=1.0, cost=Cost(100, 50, usd=0.25))
    assert spent("run", history(Leg("run", 0.0), reply)) == Spent(0, 150, 0.25, 1.0)


def test_a_known_kernel_counts_as_a_try_without_a_second_evaluation() -> None:
    again = history(Leg("run", 0.0), proposed(1, 1.0), judged(1, 2.0), proposed(1, 3.0), proposed(1, 4.0))
    assert spent("run", again).evals == 3


def test_a_confirmation_takes_time_but_does_not_count_as_an_evaluation() -> None:
    again = replace(confirmed(kernel(1).id, GPU, 5.0, **{WORKLOADS[0]: 20.0}), seconds=2.0)
    assert spent("run", history(Leg("run", 0.0), proposed(1, 1.0), judged(1, 2.0), again)) == Spent(1, seconds=7.0)


def test_shipped_kernels_that_a_run_evaluated_count_for_the_run() -> None:
    seed = proposed(1, 0.5, run="")
    assert spent("run", history(Leg("run", 0.0), seed, judged(1, 1.0))).evals == 1


def test_pending_kernels_of_another_run_count_for_the_run_that_evaluates_them() -> None:
    past = history(Leg("old", 0.0), proposed(1, 1.0, run="old"), Leg("run", 100.0), judged(1, 101.0))
    assert spent("run", past).evals == 1
    assert spent("run", past).seconds == 1.5


def test_work_of_a_concurrent_run_counts_for_that_run() -> None:
    both = history(
        Leg("run", 0.0), Leg("other", 1.0),
        proposed(1, 2.0), proposed(2, 2.0, run="other"), judged(1, 3.0), judged(2, 3.0, seconds=9.0),
    )  # fmt: skip
    assert spent("run", both) == Spent(evals=1, seconds=3.5)
    assert spent("other", both) == Spent(evals=1, seconds=11.0)


def test_an_evaluation_counts_for_the_run_that_made_it_whichever_run_proposed_the_kernel() -> None:
    shared = history(
        Leg("run", 0.0, 9.0), Leg("other", 1.0, 9.0), proposed(1, 2.0), proposed(2, 2.0), proposed(3, 2.0, run="other"),
        replace(judged(1, 3.0), run="run"), replace(judged(2, 3.0), run="other"), replace(judged(3, 3.0), run="other"),
    )  # fmt: skip
    assert (spent("run", shared).evals, spent("other", shared).evals) == (1, 2)
    assert [step.kernel_id for step in steps("run", shared)][-2:] == [kernel(1).id, kernel(2).id]


def test_designs_in_words_cost_their_tokens_but_no_evaluation() -> None:
    ideas = replace(failed_reply(), operator="designs", failure="", run="run", created=1.0, cost=Cost(100, 50))
    assert spent("run", history(Leg("run", 0.0), ideas)) == Spent(0, 150, 0.0, 1.0)


def test_the_time_of_a_killed_run_ends_with_its_last_record() -> None:
    killed = history(Leg("run", 0.0), proposed(1, 10.0), Leg("run", 5000.0), judged(1, 5020.0, seconds=0.0))
    assert spent("run", killed).seconds == 10.0 + 20.0


def test_events_long_after_a_run_do_not_add_to_its_time() -> None:
    later = 10.0 + 2 * IDLE_SECONDS
    past = history(Leg("run", 0.0), proposed(1, 10.0), judged(1, 10.0, 0.0), proposed(2, 0.0, run=""), judged(2, later))
    assert spent("run", past) == Spent(evals=1, seconds=10.0)


def test_a_long_wait_for_a_reply_counts_as_time() -> None:
    slow = replace(proposed(1, 2 * IDLE_SECONDS), cost=Cost(seconds=2 * IDLE_SECONDS - 5))
    assert spent("run", history(Leg("run", 0.0), slow)).seconds == 2 * IDLE_SECONDS


def test_steps_are_sorted_by_time() -> None:
    past = history(
        Leg("run", 0.0), proposed(1, 1.0, tokens=5), proposed(2, 1.5, tokens=5), judged(2, 2.0), judged(1, 3.0)
    )
    assert [step.kernel_id for step in steps("run", past)] == ["", "", kernel(2).id, kernel(1).id]


def test_the_rest_of_a_budget_is_never_negative_and_a_missing_limit_remains_missing() -> None:
    assert left(Budget(evals=10, usd=1.0), Spent(evals=4, tokens=99, usd=1.5)) == Budget(evals=6, usd=0.0)


@pytest.mark.parametrize(
    ("budget", "reached"),
    [
        (Budget(), None),
        (Budget(evals=6, tokens=1001, usd=2.0, seconds=60.0), None),
        (Budget(evals=5), Ended.EVALS),
        (Budget(tokens=1000), Ended.TOKENS),
        (Budget(usd=0.5), Ended.USD),
        (Budget(seconds=30.0), Ended.SECONDS),
    ],
)
def test_a_limit_ends_a_run_when_it_is_reached(budget: Budget, reached: Ended | None) -> None:
    assert ended(budget, Spent(5, 1000, 0.5, 30.0)) is reached


def test_the_nearest_limit_is_the_one_with_the_largest_share_spent() -> None:
    assert nearest(Budget(evals=10, usd=1.0, seconds=100.0), Spent(5, 0, 0.75, 10.0)) == (Ended.USD, 0.75)
    assert nearest(Budget(), Spent(5)) is None


def test_all_workloads_must_be_near_the_speed_of_light() -> None:
    leading = champions([passed(kernel(1).id, GPU, **{WORKLOADS[0]: 10.5, WORKLOADS[1]: 12.5})])  # floor_us is 10
    assert at_light(leading, WORKLOADS, 0.8)
    assert not at_light(leading, WORKLOADS, 0.9)
    assert not at_light(leading, [*WORKLOADS, "a third"], 0.5)


def test_kernels_without_a_proposal_count_too() -> None:
    lone: Kernel = kernel(5)
    assert spent("run", history(Leg("run", 0.0), judged(5, 1.0))).evals == 1
    assert lone.id == judged(5, 1.0).kernel_id


def test_evaluations_after_the_end_of_a_run_do_not_count_for_the_run() -> None:
    told = proposed(2, 12.0, run="")
    past = history(Leg("run", 0.0, 10.0), proposed(1, 1.0), judged(1, 2.0), told, judged(2, 13.0))
    assert spent("run", past) == Spent(1, seconds=10.0)


def plain_evals(run: str, past: History) -> int:
    """Return the evaluations of a run according to the rules, with a search through all records for each."""
    firsts = {one.kernel_id: one for one in reversed(past.evaluations)}
    own = [one for one in past.proposals if one.run == run]
    evals = 0
    for place, offer in enumerate(own):
        first = firsts.get(offer.kernel_id)
        repeated = any(other.kernel_id == offer.kernel_id for other in own[:place])
        if offer.kernel_id and (repeated or (first and first.created + first.seconds < offer.created)):
            evals += 1
        elif offer.kernel_id and first:
            evals += first.run in {"", run}
    for first in firsts.values():
        if all(offer.kernel_id != first.kernel_id for offer in own):
            evals += first.run == run if first.run else sum(unnamed_counts(run, past, first.kernel_id, first.created))
    return evals


def unnamed_counts(run: str, past: History, kernel_id: str, created: float) -> Iterator[bool]:
    """Yield for each leg of a run whether a verdict without the name of a run falls into it and is not another's."""
    offers = [one for one in past.proposals if one.kernel_id == kernel_id]
    for leg in past.legs:
        if leg.run == run:
            over = min([leg.ended, *(other.started for other in past.legs if other.started > leg.started)])
            free = not offers or any(not one.run or one.created < leg.started for one in offers)
            yield leg.started <= created <= over and free


@pytest.mark.parametrize("seed", range(40))
def test_the_costs_of_runs_of_a_random_archive_follow_from_the_rules(seed: int) -> None:
    rng, names = random.Random(seed), ("one", "two", "three")
    legs = [Leg(rng.choice(names), start, start + rng.uniform(5, 30)) for start in (0.0, 20.0, 40.0, 60.0)]
    offers = [
        proposed(rng.randrange(12), rng.uniform(0, 90), rng.choice((*names, "")), rng.randrange(99), rng.random())
        for _ in range(30)
    ]
    replies = [replace(failed_reply(), run=rng.choice(names), created=rng.uniform(0, 90)) for _ in range(3)]
    verdicts = [
        replace(judged(rng.randrange(14), rng.uniform(0, 90), rng.uniform(0, 9)), run=rng.choice((*names, "", "")))
        for _ in range(25)
    ]
    past = history(*legs, *sorted([*offers, *replies], key=lambda one: one.created),
                   *sorted(verdicts, key=lambda one: one.created))  # fmt: skip
    for name in names:
        own = [one for one in past.proposals if one.run == name]
        gone, tokens, usd = spent(name, past), sum(one.tokens for one in own), sum(one.usd for one in own)
        assert (gone.evals, gone.tokens) == (plain_evals(name, past), tokens)
        assert gone.usd == pytest.approx(usd)
        assert gone.seconds == pytest.approx(sum(leg.ended - leg.started for leg in legs if leg.run == name))
        assert sum(step.spent.evals for step in steps(name, past)) == gone.evals
