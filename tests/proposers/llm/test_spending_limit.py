"""Spending limit: which calls it admits while others are in flight."""

from dataclasses import replace

from each import each

from archive.proposals import Cost
from evolve.prompting.text import Message, estimated_tokens
from evolve.proposers.llm.chat import Call
from evolve.proposers.llm.models import Model, Prices
from evolve.proposers.llm.proposer import DEARER, LEAST_REPLY, MARGIN, SpendingLimit
from evolve.request import Left, Trial

MESSAGES = (Message("user", "x" * 3_000),)
PROMPT = estimated_tokens(MESSAGES)
BOUNDED = Call(Model("m", max_tokens=1_000, usd_per_million=Prices(1.0, 10.0)), "draft", MESSAGES)
ONE = PROMPT + 1_000
ONE_USD = (PROMPT * 1.0 + 1_000 * 10.0) / 1e6
OPEN = Call(Model("m"), "draft", MESSAGES)


def admitted(spending: SpendingLimit, call: Call) -> int:
    """Return how many copies of the call may be in flight at once."""
    flying = list[Call]()
    while len(flying) < 100 and spending.admits(call, flying):
        flying.append(call)
    return len(flying)


def test_without_a_limit_every_call_is_admitted() -> None:
    assert admitted(SpendingLimit(Left()), OPEN) == 100


@each({str(case): case for case in [(10 * ONE, 10), (10 * ONE - 1, 9), (ONE, 1), (1, 1), (0, 0)]})
def test_calls_in_flight_stay_within_the_limit_of_tokens(tokens: int, count: int) -> None:
    assert admitted(SpendingLimit(Left(tokens=tokens)), BOUNDED) == count


@each({str(case): case for case in [(10.01 * ONE_USD, 10), (9.99 * ONE_USD, 9), (1e-9, 1), (0.0, 0)]})
def test_calls_in_flight_stay_within_the_limit_of_usd(usd: float, count: int) -> None:
    assert admitted(SpendingLimit(Left(usd=usd)), BOUNDED) == count


def test_the_tighter_limit_applies() -> None:
    assert admitted(SpendingLimit(Left(tokens=100 * ONE, usd=2.5 * ONE_USD)), BOUNDED) == 2


def test_paid_replies_reduce_what_is_left() -> None:
    spending = SpendingLimit(Left(tokens=4 * ONE))
    spending.pay("m", Cost(PROMPT, 1_000))
    assert admitted(spending, BOUNDED) == 3


def test_a_model_without_earlier_replies_gets_one_call_at_a_time() -> None:
    assert admitted(SpendingLimit(Left(tokens=10**9)), OPEN) == 1


def test_earlier_replies_bound_the_expected_length_of_the_next() -> None:
    spending = SpendingLimit(Left(tokens=int(3.5 * (PROMPT + MARGIN * 20_000))))
    spending.learn([Trial("draft", "m", Cost(500, 20_000), passed=True, gain=0.0)])
    assert admitted(spending, OPEN) == 3


def test_after_short_replies_a_long_one_is_still_expected() -> None:
    spending = SpendingLimit(Left(tokens=int(3.5 * (PROMPT + LEAST_REPLY))))
    spending.pay("m", Cost(0, 1))
    assert admitted(spending, OPEN) == 3


def test_a_max_tokens_that_a_model_exceeds_is_ignored() -> None:
    spending = SpendingLimit(Left(tokens=10 * ONE))
    spending.learn([Trial("draft", "m", Cost(500, 5_000), passed=True, gain=0.0)])
    assert admitted(spending, BOUNDED) == 1


def test_the_price_is_learned_where_only_the_server_reports_it() -> None:
    spending = SpendingLimit(Left(usd=0.1))
    told = replace(BOUNDED, model=replace(BOUNDED.model, usd_per_million=None))
    assert admitted(spending, told) == 1
    spending.pay("m", Cost(500, 500, usd=0.001))  # a millionth of a dollar per token on average
    assert admitted(spending, told) == int((0.1 - 0.001) / (1e-6 * (PROMPT + DEARER * 1_000)))
