import time

import pytest
from drawn import drawn

from archive.proposals import Budget
from evolve.budget import Ended, Spent
from evolve.report.live import Board, Row, rows_table
from evolve.report.progress import Meter, Progress, amounts, ending, without_answer
from evolve.report.standing import Standing


def progress(spent: Spent, standing: Standing) -> Progress:
    return Progress(standing, (), (), spent.evals, 1.0, spent)


@pytest.fixture
def standing() -> Standing:
    from records import GPU

    return Standing("softmax", GPU, (), (), {}, {}, {}, 0, {})


def metered(budget: Budget, spent: Spent, standing: Standing, seconds: float = 30.0, width: int = 120) -> str:
    meter = Meter(time.monotonic() - seconds, budget=budget)
    (line,) = drawn(meter.line([progress(spent, standing)], width), width)
    return line


def test_the_limit_that_is_nearest_to_its_end_is_shown(standing: Standing) -> None:
    budget = Budget(evals=100, tokens=50_000, usd=2.0, seconds=120.0)
    assert "0:30 of 2:00" in metered(budget, Spent(10, 5_000, 0.2), standing)
    assert "60 of 100 evaluations" in metered(budget, Spent(60, 5_000, 0.2), standing)
    assert "30,000 of 50,000 tokens" in metered(budget, Spent(10, 30_000, 0.2), standing)
    assert "$1.50 of $2.00" in metered(budget, Spent(10, 5_000, 1.5), standing)


def test_what_was_spent_stands_beside_it(standing: Standing) -> None:
    line = metered(Budget(evals=100), Spent(60, 5_000, 0.2), standing)
    assert "0:30, 60 evaluated, 1.0/s, 5,000 tokens, $0.2000" in line


def test_a_run_without_a_model_speaks_of_no_tokens(standing: Standing) -> None:
    assert "token" not in metered(Budget(seconds=60.0), Spent(60), standing)


def test_a_limit_that_is_reached_is_said_so(standing: Standing) -> None:
    assert "60 of 60 evaluations: finishing what is in hand" in metered(Budget(evals=60), Spent(60), standing)


def test_of_several_ops_the_sum_counts(standing: Standing) -> None:
    meter = Meter(time.monotonic(), budget=Budget(evals=100), before=Spent(evals=5))
    (line,) = drawn(meter.line([progress(Spent(10), standing), progress(Spent(20), standing)], 100), 100)
    assert "35 of 100 evaluations" in line


def test_amounts_leave_out_what_was_not_spent() -> None:
    assert amounts(Spent(1, seconds=61)) == "1:01, 1 evaluation"
    assert amounts(Spent(3, 1234, 0.05, 5)) == "0:05, 3 evaluations, 1,234 tokens, $0.0500"


@pytest.mark.parametrize(
    ("reason", "said", "more"),
    [
        (Ended.EVALS, "All 3 evaluations are used.", Budget(evals=6)),
        (Ended.TOKENS, "All 1,000 tokens are spent.", Budget(tokens=2000)),
        (Ended.USD, "All of $1.50 is spent.", Budget(usd=3.0)),
        (Ended.SECONDS, "The time is up.", Budget(seconds=120.0)),
        (Ended.NOTHING, "Nothing is left to try: every setting of the kernels alive has been evaluated.", None),
    ],
)
def test_the_end_is_explained_and_what_gives_more(reason: Ended, said: str, more: Budget | None) -> None:
    assert ending(reason, Budget(3, 1000, 1.5, 60.0), Spent(3, 1000, 1.5, 61.0)) == (said, more)


def test_one_evaluation_is_one() -> None:
    assert ending(Ended.EVALS, Budget(evals=1), Spent(1))[0] == "The one evaluation is used."


@pytest.mark.parametrize(("seconds", "offered"), [(60, 120), (89, 120), (121, 240), (500, 960)])
def test_what_is_offered_is_more_than_what_confirming_took_beyond_the_limit(seconds: float, offered: float) -> None:
    assert ending(Ended.SECONDS, Budget(seconds=60.0), Spent(seconds=seconds))[1] == Budget(seconds=offered)


def test_an_end_at_the_light_that_was_asked_for_offers_a_higher_one() -> None:
    said, more = ending(Ended.LIGHT, Budget(until_light=0.95), Spent())
    assert "0.95 of the speed of light" in said
    assert more == Budget(until_light=0.975)


def test_a_model_that_gave_nothing_had_too_little_left() -> None:
    assert without_answer(Budget(tokens=1000), Spent(tokens=900))[1] == Budget(tokens=2000)
    assert without_answer(Budget(evals=9), Spent(evals=9))[1] is None


def test_a_campaign_s_table_says_what_went_where() -> None:
    rows = [Row("softmax", Spent(8, 1000, 0.5, 60), 2.0, 1.0, 3.0), Row("gelu", Spent(4, 500, 0.25, 30), 1.0, 0.5, 2.0)]
    lines = drawn(rows_table(rows, total=Spent(12, 1500, 0.75, 90)), 80)
    assert lines[0].split() == ["op", "evals", "tokens", "usd", "time", "before", "now", "best"]
    assert lines[1].split() == ["softmax", "8", "1,000", "$0.5000", "1:00", "7.39x", "2.72x", "3.00x"]
    assert lines[3].split() == ["all", "12", "1,500", "$0.7500", "1:30"]


def test_a_campaign_s_table_has_no_figure_for_an_op_that_was_never_measured() -> None:
    lines = drawn(rows_table([Row("softmax", Spent(1, seconds=60), None, None, None)]), 80)
    assert lines[1].split() == ["softmax", "1", "1:00", "-", "-", "-"]


@pytest.mark.parametrize("height", [12, 16, 24])
def test_a_campaign_s_display_fits_the_terminal_and_shows_the_op_at_work(height: int) -> None:
    rows = {f"op{n}": Row(f"op{n}", Spent(n), 2.0, 1.0, None) for n in range(40)}
    board = Board("Some GPU", "a model", Meter(time.monotonic()), rows, {}, current="op33")
    lines = drawn(board, 80, height)
    assert len(lines) < height
    assert any("op33" in line and "at work" in line for line in lines)
