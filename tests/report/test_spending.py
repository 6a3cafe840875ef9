"""The budget on the display, the end of a run, and the table of a campaign."""

import time

import pytest
from drawn import drawn
from records import GPU

from archive.runs import Budget
from evolve.budget import Ended, Spent
from evolve.report.live import CampaignDisplay, CampaignRow, campaign_table
from evolve.report.progress import BudgetMeter, Progress, ending, without_answer
from evolve.report.standing import Standing
from evolve.report.words import amounts


def progress(spent: Spent, standing: Standing) -> Progress:
    return Progress(standing, (), (), spent.evals, 1.0, spent)


@pytest.fixture
def standing() -> Standing:
    return Standing("softmax", GPU)


def metered(budget: Budget, spent: Spent, standing: Standing, seconds: float = 30.0, width: int = 120) -> str:
    meter = BudgetMeter(time.monotonic() - seconds, budget=budget)
    (line,) = drawn(meter.line([progress(spent, standing)], width), width)
    return line


def test_the_limit_closest_to_being_reached_is_shown(standing: Standing) -> None:
    budget = Budget(evals=100, tokens=50_000, usd=2.0, seconds=120.0)
    assert "0:30 of 2:00" in metered(budget, Spent(10, 5_000, 0.2), standing)
    assert "60 of 100 evaluations" in metered(budget, Spent(60, 5_000, 0.2), standing)
    assert "30,000 of 50,000 tokens" in metered(budget, Spent(10, 30_000, 0.2), standing)
    assert "$1.50 of $2.00" in metered(budget, Spent(10, 5_000, 1.5), standing)


def test_the_amounts_spent_are_shown_beside_the_bar(standing: Standing) -> None:
    line = metered(Budget(evals=100), Spent(60, 5_000, 0.2), standing)
    assert "0:30, 60 evaluated, 1.0/s, 5,000 tokens, $0.2000" in line


def test_a_run_without_a_model_shows_no_tokens(standing: Standing) -> None:
    assert "token" not in metered(Budget(seconds=60.0), Spent(60), standing)


def test_a_reached_limit_is_marked(standing: Standing) -> None:
    line = metered(Budget(evals=60), Spent(60), standing)
    assert "60 of 60 evaluations: finishing the evaluations in progress" in line


def test_the_spending_of_several_ops_is_summed(standing: Standing) -> None:
    meter = BudgetMeter(time.monotonic(), budget=Budget(evals=100), before=Spent(evals=5))
    (line,) = drawn(meter.line([progress(Spent(10), standing), progress(Spent(20), standing)], 100), 100)
    assert "35 of 100 evaluations" in line


def test_amounts_leave_out_zero_tokens_and_dollars() -> None:
    assert amounts(Spent(1, seconds=61)) == "1:01, 1 evaluation"
    assert amounts(Spent(3, 1234, 0.05, 5)) == "0:05, 3 evaluations, 1,234 tokens, $0.0500"


@pytest.mark.parametrize(
    ("reason", "words", "more"),
    [
        (Ended.EVALS, "All 3 evaluations are used.", Budget(evals=6)),
        (Ended.TOKENS, "All 1,000 tokens are spent.", Budget(tokens=2000)),
        (Ended.USD, "All of $1.50 is spent.", Budget(usd=3.0)),
        (Ended.SECONDS, "The time is up.", Budget(seconds=120.0)),
        (Ended.NOTHING, "Nothing is left to try: every setting of the population's knobs has been evaluated.", None),
    ],
)
def test_the_end_of_a_run_gives_a_reason_and_offers_a_larger_budget(
    reason: Ended, words: str, more: Budget | None
) -> None:
    assert ending(reason, Budget(3, 1000, 1.5, 60.0), Spent(3, 1000, 1.5, 61.0)) == (words, more)


def test_a_single_evaluation_is_not_plural() -> None:
    assert ending(Ended.EVALS, Budget(evals=1), Spent(1))[0] == "The one evaluation is used."


@pytest.mark.parametrize(("seconds", "offered"), [(60, 120), (89, 120), (121, 240), (500, 960)])
def test_the_offered_time_exceeds_the_time_spent(seconds: float, offered: float) -> None:
    assert ending(Ended.SECONDS, Budget(seconds=60.0), Spent(seconds=seconds))[1] == Budget(seconds=offered)


def test_reaching_the_requested_share_of_the_speed_of_light_offers_a_higher_one() -> None:
    words, more = ending(Ended.LIGHT, Budget(until_light=0.95), Spent())
    assert "0.95 of the speed of light" in words
    assert more == Budget(until_light=0.975)


def test_a_larger_budget_is_offered_when_a_model_gave_no_answer() -> None:
    assert without_answer(Budget(tokens=1000), Spent(tokens=900))[1] == Budget(tokens=2000)
    assert without_answer(Budget(evals=9), Spent(evals=9))[1] is None


def test_the_table_of_a_campaign_shows_the_share_of_each_op() -> None:
    rows = [
        CampaignRow("softmax", Spent(8, 1000, 0.5, 60), 2.0, 1.0, 3.0),
        CampaignRow("gelu", Spent(4, 500, 0.25, 30), 1.0, 0.5, 2.0),
    ]
    lines = drawn(campaign_table(rows, total=Spent(12, 1500, 0.75, 90)), 80)
    assert lines[0].split() == ["op", "evals", "tokens", "usd", "time", "before", "now", "best"]
    assert lines[1].split() == ["softmax", "8", "1,000", "$0.5000", "1:00", "7.39x", "2.72x", "3.00x"]
    assert lines[3].split() == ["all", "12", "1,500", "$0.7500", "1:30"]


def test_the_table_of_a_campaign_has_no_figure_for_an_op_without_measurements() -> None:
    lines = drawn(campaign_table([CampaignRow("softmax", Spent(1, seconds=60), None, None, None)]), 80)
    assert lines[1].split() == ["softmax", "1", "1:00", "-", "-", "-"]


@pytest.mark.parametrize("height", [12, 16, 24])
def test_the_display_of_a_campaign_fits_the_terminal_and_shows_the_running_op(height: int) -> None:
    rows = {f"op{n}": CampaignRow(f"op{n}", Spent(n), 2.0, 1.0, None) for n in range(40)}
    display = CampaignDisplay([GPU], "a model", BudgetMeter(time.monotonic()), rows, {}, current="op33")
    lines = drawn(display, 80, height)
    assert len(lines) < height
    assert any("op33" in line and "running" in line for line in lines)
