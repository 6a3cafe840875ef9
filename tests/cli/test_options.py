"""Budgets and options: how they are parsed, recorded with a run and read back."""

import io
import math
from dataclasses import replace
from typing import Any

import pytest
from records import GPU
from rich.console import Console

from archive.runs import Budget, Run
from evolve.cli.options import (
    RunOptions,
    budget_arguments,
    check_unchanged,
    parse_budget,
    recorded,
    with_default_time,
    with_limits,
)
from evolve.cli.session import print_proposer
from evolve.errors import UserError

NOTHING = (None, None, None, None, None)
GIVEN = RunOptions(proposer="llm", models=("a", "b"), fresh=True, no_tune=True)
RUN = Run("r", "softmax", GPU.key, "a", 3, 1.0, "best-of-n", words=("softmax", *GIVEN.arguments()))


def test_options_become_a_budget() -> None:
    assert parse_budget(0.5, 10, 2000, 1.5, 0.95) == Budget(10, 2000, 1.5, 30.0, 0.95)
    assert parse_budget(*NOTHING) == Budget()


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (0, "--minutes must be greater than 0, got -3", "give a number of minutes such as 5 or 0.5"),
        (1, "--evals must be greater than 0, got -3", "give a number of evaluations such as 200"),
        (2, "--tokens must be greater than 0, got -3", "give a number of tokens such as 500000"),
        (3, "--usd must be greater than 0, got -3", "give an amount in US dollars such as 2.50"),
        (4, "--until-sol must be greater than 0, got -3", "give a share of the speed of light such as 0.95"),
    ],
)
def test_an_error_gives_the_option_its_value_and_an_example(number: int, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_budget(*[-3 if index == number else None for index in range(5)])
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400])
def test_a_limit_must_be_positive_and_finite(position: int, value: float) -> None:
    limits: list[Any] = [value if index == position else None for index in range(5)]
    with pytest.raises(UserError) as caught:
        parse_budget(*limits)
    assert caught.value.hint


def test_a_share_of_the_speed_of_light_above_one_is_rejected() -> None:
    message = "--until-sol must be at most 1, got 95: no kernel is faster than the speed of light"
    with pytest.raises(UserError, match=message):
        parse_budget(None, None, None, None, 95)


@pytest.mark.parametrize(
    ("budget", "proposer", "seconds"),
    [
        (Budget(), "offline", 120.0),
        (Budget(), "a model", 600.0),
        (Budget(evals=5), "offline", None),
        (Budget(usd=5.0), "a model", None),
        (Budget(usd=5.0), "offline", 120.0),  # the offline proposer never spends dollars
        (Budget(until_light=0.9), "a model", 600.0),
        (Budget(seconds=7.0), "a model", 7.0),
    ],
)
def test_every_budget_ends_a_run(budget: Budget, proposer: str, seconds: float | None) -> None:
    assert with_default_time(budget, proposer) == replace(budget, seconds=seconds)


def test_limits_given_with_resume_replace_those_of_the_run() -> None:
    assert with_limits(Budget(evals=5, seconds=60.0), Budget(evals=9, usd=1.0)) == Budget(9, None, 1.0, 60.0)


def test_a_budget_can_be_written_as_arguments() -> None:
    again = " ".join(budget_arguments(Budget(10, 2000, 1.5, 30.0, 0.95)))
    assert again == "--minutes 0.5 --evals 10 --tokens 2000 --usd 1.5 --until-sol 0.95"


def test_the_options_of_a_run_can_be_read_back() -> None:
    assert recorded(RUN) == replace(GIVEN, device="cuda", strategy="best-of-n", seed=3)


def test_a_run_from_an_older_archive_has_only_device_strategy_and_seed() -> None:
    assert recorded(replace(RUN, words=())) == RunOptions(device="cuda", strategy="best-of-n", seed=3)


def test_an_option_given_with_resume_may_not_differ() -> None:
    check_unchanged(RUN, RunOptions(proposer="llm", seed=3, fresh=True))
    for other, message in (
        (RunOptions(models=("a",)), "run r was started with --model a, b, got a"),
        (RunOptions(seed=4), "run r was started with --seed 3, got 4"),
        (RunOptions(no_seeds=True), "run r was started without --no-seeds"),
        (RunOptions(device="emulated"), "run r was started with --device cuda, got emulated"),
    ):
        with pytest.raises(UserError) as caught:
            check_unchanged(RUN, other)
        assert str(caught.value) == message


def test_an_error_about_models_shows_no_password() -> None:
    with pytest.raises(UserError) as caught:
        check_unchanged(RUN, RunOptions(models=("m@http://me:secret@host/v1",)))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("proposer", "budget", "note"),
    [
        ("offline", Budget(usd=1.0), "no model is asked, so --usd cannot end the run"),
        ("offline", Budget(tokens=9, usd=1.0, evals=3), "so --tokens and --usd cannot end the run"),
        ("offline", Budget(evals=3), ""),
        ("a model", Budget(usd=1.0), ""),
    ],
)
def test_limits_that_the_offline_proposer_cannot_reach_are_reported(proposer: str, budget: Budget, note: str) -> None:
    output = Console(file=io.StringIO(), width=200)
    print_proposer(proposer, budget, output)
    printed = output.file.getvalue()  # type: ignore[attr-defined]
    assert note in printed
    assert ("budget" in printed) is bool(note)
