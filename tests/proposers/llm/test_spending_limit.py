"""Spending limit: the calls that it admits while others are in flight."""

from dataclasses import replace

from each import each

from archive.runs import Cost
from archive.summaries import Trial
from evolve.prompting.text import Message, estimated_tokens
from evolve.proposers.llm.chat import Call
from evolve.proposers.llm.models import Model, Prices
from evolve.proposers.llm.proposer import DEARER, LEAST_REPLY, LEAST_USEFUL, LONGEST_REPLY, MARGIN, SpendingLimit
from evolve.request import Left

MESSAGES = (Message("user", "x" * 3_000),)
PROMPT = estimated_tokens(MESSAGES)
BOUNDED = Call(Model("m", max_tokens=1_000, usd_per_million=Prices(1.0, 10.0)), "draft", MESSAGES)
ONE = PROMPT + 1_000
ONE_USD = (PROMPT * 1.0 + 1_000 * 10.0) / 1e6
OPEN = Call(Model("m"), "draft", MESSAGES)


def admitted(spending: SpendingLimit, call: Call) -> int:
    """Return the number of copies of the call that may be in flight at once."""
    flying = list[Call]()
    while len(flying) < 100 and spending.admits(call, flying):
        flying.append(call)
    return len(flying)


def test_without_a_limit_every_call_is_admitted() -> None:
    assert admitted(SpendingLimit(Left()), OPEN) == 100


@each({str(case): case for case in [(10 * ONE, 10), (10 * ONE - 1, 9), (ONE, 1), (ONE - 1, 0), (0, 0)]})
def test_calls_in_flight_stay_within_the_limit_of_tokens(tokens: int, count: int) -> None:
    assert admitted(SpendingLimit(Left(tokens=tokens)), BOUNDED) == count


@each({str(case): case for case in [(10.01 * ONE_USD, 10), (9.99 * ONE_USD, 9), (0.99 * ONE_USD, 0), (0.0, 0)]})
def test_calls_in_flight_stay_within_the_limit_of_usd(usd: float, count: int) -> None:
    assert admitted(SpendingLimit(Left(usd=usd)), BOUNDED) == count


def test_the_tighter_limit_applies() -> None:
    assert admitted(SpendingLimit(Left(tokens=100 * ONE, usd=2.5 * ONE_USD)), BOUNDED) == 2


def test_paid_replies_reduce_the_rest_of_the_budget() -> None:
    spending = SpendingLimit(Left(tokens=4 * ONE))
    spending.pay(BOUNDED, Cost(PROMPT, 1_000))
    assert admitted(spending, BOUNDED) == 3


def test_a_model_without_earlier_replies_gets_one_call_at_a_time() -> None:
    assert admitted(SpendingLimit(Left(tokens=10**9)), OPEN) == 1


def test_earlier_replies_bound_the_expected_length_of_the_next() -> None:
    spending = SpendingLimit(Left(tokens=int(3.5 * (PROMPT + MARGIN * 20_000))))
    spending.learn([Trial("draft", "m", Cost(500, 20_000), passed=True, gain=0.0)])
    assert admitted(spending, OPEN) == 3


def test_after_short_replies_a_long_one_is_still_expected() -> None:
    spending = SpendingLimit(Left(tokens=int(3.5 * (PROMPT + LEAST_REPLY))))
    spending.pay(OPEN, Cost(0, 1))
    assert admitted(spending, OPEN) == 3


def test_a_max_tokens_that_a_model_exceeds_is_ignored() -> None:
    spending = SpendingLimit(Left(tokens=10 * ONE))
    spending.learn([Trial("draft", "m", Cost(500, 5_000), passed=True, gain=0.0)])
    assert admitted(spending, BOUNDED) == 1


def test_the_price_is_learned_where_only_the_server_reports_it() -> None:
    spending = SpendingLimit(Left(usd=0.1))
    told = replace(BOUNDED, model=replace(BOUNDED.model, usd_per_million=None))
    assert admitted(spending, told) == 1
    spending.pay(told, Cost(500, 500, usd=0.001))  # this is a millionth of a dollar per token
    assert admitted(spending, told) == int((0.1 - 0.001) / (1e-6 * (PROMPT + DEARER * 1_000)))


@each({str(case): case for case in [(PROMPT + LEAST_USEFUL, 1), (PROMPT + LEAST_USEFUL - 1, 0)]})
def test_no_prompt_is_sent_that_leaves_too_few_tokens_for_a_useful_reply(tokens: int, count: int) -> None:
    assert admitted(SpendingLimit(Left(tokens=tokens)), OPEN) == count


def test_a_prompt_is_sent_only_if_a_reply_as_long_as_the_longest_fits() -> None:
    spending = SpendingLimit(Left(tokens=PROMPT + 5_000))
    spending.learn([Trial("draft", "m", Cost(500, 5_001), passed=True, gain=0.0)])
    assert admitted(spending, OPEN) == 0


def test_the_last_reply_may_have_as_many_tokens_as_are_left() -> None:
    spending = SpendingLimit(Left(tokens=PROMPT + 5_000))
    assert spending.reply_limit(OPEN, []) == 5_000
    priced = replace(OPEN, model=Model("m", usd_per_million=Prices(1.0, 10.0)))
    assert SpendingLimit(Left(usd=1.0001 * ONE_USD)).reply_limit(priced, []) == 1_000


def test_replies_are_not_limited_while_the_budget_is_large() -> None:
    assert SpendingLimit(Left(tokens=PROMPT + LONGEST_REPLY)).reply_limit(OPEN, []) is None
    assert SpendingLimit(Left()).reply_limit(OPEN, []) is None


def test_a_smaller_limit_of_the_models_own_is_kept() -> None:
    assert SpendingLimit(Left(tokens=PROMPT + 5_000)).reply_limit(BOUNDED, []) is None


def test_all_replies_in_flight_at_their_limits_stay_within_the_budget() -> None:
    spending, flying = SpendingLimit(Left(tokens=300_000)), list[Call]()
    spending.learn([Trial("draft", "m", Cost(500, 20_000), passed=True, gain=0.0)])
    limits = []
    while spending.admits(OPEN, flying):
        limits.append(spending.reply_limit(OPEN, flying))
        flying.append(OPEN)
    assert sum(PROMPT + (limit or 40_000) for limit in limits) <= 300_000
    assert len(limits) > 1


def test_prompts_with_more_tokens_than_estimated_are_learned() -> None:
    spending = SpendingLimit(Left(tokens=PROMPT + 4 * PROMPT + 2_000))
    spending.pay(OPEN, Cost(2 * PROMPT, 10))
    assert spending.reply_limit(OPEN, []) == PROMPT + 2_000 - 10


@each({str(case): case for case in [(Left(tokens=20_000), 1), (Left(usd=0.1), 1), (Left(evals=4), 100)]})
def test_half_of_a_small_budget_is_kept_for_prompts_after_the_first_verdicts(left: Left, first: int) -> None:
    model = Model("m", max_tokens=8_000, usd_per_million=Prices(1.0, 10.0))
    assert admitted(SpendingLimit(left, keeps_half=True), replace(OPEN, model=model)) == first
