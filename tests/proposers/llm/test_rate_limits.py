"""Limits per minute, with a clock that only waiting advances."""

import random
from dataclasses import dataclass, field

from each import each

from evolve.proposers.llm.chat import WINDOW_SECONDS, RateLimit
from evolve.proposers.llm.models import Model


@dataclass
class Clock:
    now: float = 1000.0
    moments: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def moments(model: Model, tokens: list[int], between: float = 0.0) -> list[float]:
    """Return the times at which the requests are allowed."""
    clock = Clock()
    window = RateLimit(clock)
    found = []
    for count in tokens:
        window.acquire(model, count, clock.pause)
        found.append(clock.now)
        clock.now += between
    return found


def test_without_limits_no_request_waits() -> None:
    assert set(moments(Model("m"), [10**6] * 50)) == {1000.0}


@each({str(between): between for between in [0.0, 1.7, 30.0]})
def test_no_minute_holds_more_requests_than_are_allowed(between: float) -> None:
    found = moments(Model("m", requests_per_minute=7), [1] * 60, between)
    assert all(later - earlier >= WINDOW_SECONDS for earlier, later in zip(found, found[7:], strict=False))


def test_no_minute_holds_more_tokens_than_are_allowed() -> None:
    tokens = random.Random(3).choices(range(100, 3_000), k=60)
    found = moments(Model("m", tokens_per_minute=10_000), tokens)
    for start in found:
        assert (
            sum(t for moment, t in zip(found, tokens, strict=True) if start <= moment < start + WINDOW_SECONDS)
            <= 10_000
        )


def test_requests_within_the_limit_are_sent_at_once() -> None:
    assert set(moments(Model("m", requests_per_minute=7), [1] * 7)) == {1000.0}


def test_a_request_larger_than_the_limit_is_sent_alone() -> None:
    assert moments(Model("m", tokens_per_minute=100), [500, 500]) == [1000.0, 1000.0 + WINDOW_SECONDS]


def test_tokens_that_a_reply_did_not_use_are_available_again() -> None:
    clock = Clock()
    window, model = RateLimit(clock), Model("m", tokens_per_minute=1_000)
    window.acquire(model, 900, clock.pause).tokens = 100
    window.acquire(model, 900, clock.pause)
    assert clock.now == 1000.0


def test_after_hold_no_request_is_sent_until_the_longest_hold_has_passed() -> None:
    clock = Clock()
    window = RateLimit(clock)
    window.hold(90.0)
    window.hold(20.0)
    window.acquire(Model("m"), 1, clock.pause)
    assert clock.now == 1090.0
