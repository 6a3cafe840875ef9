import io
import math
from dataclasses import replace

import pytest
from records import GPU
from rich.console import Console

from archive.proposals import Budget, Run
from evolve.cli.options import RunOptions, check_same, completed, options, raised, recorded, typed
from evolve.cli.session import say_proposer
from evolve.errors import UserError

NOTHING = (None, None, None, None, None)
WISHES = RunOptions(proposer="llm", models=("a", "b"), fresh=True, no_tune=True)
RUN = Run("r", "softmax", GPU.key, "a", 3, 1.0, "best-of-n", words=("softmax", *WISHES.options()))


def test_what_is_typed_becomes_a_budget() -> None:
    assert typed(0.5, 10, 2000, 1.5, 0.95) == Budget(10, 2000, 1.5, 30.0, 0.95)
    assert typed(*NOTHING) == Budget()


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400])
def test_nothing_but_positive_numbers_can_be_spent(position: int, value: float) -> None:
    with pytest.raises(UserError) as caught:
        typed(*[value if index == position else None for index in range(5)])  # type: ignore[arg-type]
    assert caught.value.hint


def test_nothing_is_faster_than_light() -> None:
    with pytest.raises(UserError, match="speed of light"):
        typed(None, None, None, None, 95)


@pytest.mark.parametrize(
    ("budget", "proposer", "seconds"),
    [
        (Budget(), "offline", 120.0),
        (Budget(), "a model", 600.0),
        (Budget(evals=5), "offline", None),
        (Budget(usd=5.0), "a model", None),
        (Budget(usd=5.0), "offline", 120.0),  # it will never spend any
        (Budget(until_light=0.9), "a model", 600.0),
        (Budget(seconds=7.0), "a model", 7.0),
    ],
)
def test_a_run_has_an_end_whatever_is_typed(budget: Budget, proposer: str, seconds: float | None) -> None:
    assert completed(budget, proposer) == replace(budget, seconds=seconds)


def test_what_is_given_with_a_resume_replaces_what_the_run_had() -> None:
    assert raised(Budget(evals=5, seconds=60.0), Budget(evals=9, usd=1.0)) == Budget(9, None, 1.0, 60.0)


def test_a_budget_can_be_typed_again() -> None:
    again = " ".join(options(Budget(10, 2000, 1.5, 30.0, 0.95)))
    assert again == "--minutes 0.5 --evals 10 --tokens 2000 --usd 1.5 --until-sol 0.95"


def test_a_run_knows_what_it_was_started_with() -> None:
    assert recorded(RUN) == replace(WISHES, device="cuda", strategy="best-of-n", seed=3)


def test_a_run_of_an_older_archive_was_started_with_nothing() -> None:
    assert recorded(replace(RUN, words=())) == RunOptions(device="cuda", strategy="best-of-n", seed=3)


def test_what_is_typed_again_may_not_differ() -> None:
    check_same(RUN, RunOptions(proposer="llm", seed=3, fresh=True))
    for other in (
        RunOptions(models=("a",)),
        RunOptions(seed=4),
        RunOptions(no_seeds=True),
        RunOptions(device="emulated"),
    ):
        with pytest.raises(UserError):
            check_same(RUN, other)


@pytest.mark.parametrize(
    ("proposer", "budget", "said"),
    [
        ("offline", Budget(usd=1.0), "no model is asked, so --usd cannot end the run"),
        ("offline", Budget(tokens=9, usd=1.0, evals=3), "so --tokens and --usd cannot"),
        ("offline", Budget(evals=3), ""),
        ("a model", Budget(usd=1.0), ""),
    ],
)
def test_limits_that_nobody_will_reach_are_named(proposer: str, budget: Budget, said: str) -> None:
    shown = Console(file=io.StringIO(), width=200)
    say_proposer(proposer, budget, shown)
    printed = shown.file.getvalue()  # type: ignore[attr-defined]
    assert said in printed
    assert ("budget" in printed) is bool(said)
