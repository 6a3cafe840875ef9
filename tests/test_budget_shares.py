import math
from collections.abc import Iterable

import pytest
from records import GPU, failed, kernel, passed

from archive.records import Evaluation, Measurement
from archive.runs import Budget
from evolve.budget import Spent
from evolve.campaign import AT_LIGHT, GENEROUS, PATIENCE, Account, cost, mean_headroom, next_run

W, V = "rows=8 cols=16 float32", "rows=2 cols=512 float32"


def times(evaluations: Iterable[Evaluation]) -> dict[str, Measurement]:
    return {m.workload: m for evaluation in evaluations for m in evaluation.measurements}


def shares(accounts: list[Account], slices: int) -> dict[str, int]:
    """Return how many slices each account gets if every slice costs 1 and headroom does not change."""
    counts = dict.fromkeys((account.run for account in accounts), 0)
    for _ in range(slices):
        chosen = next_run(accounts)
        assert chosen
        counts[chosen] += 1
        accounts = [
            Account(a.run, a.headroom, a.spent + 1, a.idle) if a.run == chosen else a for a in accounts
        ]  # fmt: skip
    return counts


def test_slices_are_proportional_to_headroom() -> None:
    assert shares([Account("a", 3.0), Account("b", 1.0)], 40) == {"a": 30, "b": 10}


def test_the_first_slice_goes_to_the_largest_headroom() -> None:
    assert next_run([Account("a", 1.0), Account("b", 2.0)]) == "b"


def test_an_account_that_received_more_than_its_share_waits() -> None:
    assert next_run([Account("a", 2.0, spent=100.0), Account("b", 1.0, spent=10.0)]) == "b"


def test_an_account_at_the_speed_of_light_gets_no_slices() -> None:
    assert shares([Account("a", AT_LIGHT / 2), Account("b", 0.5)], 10) == {"a": 0, "b": 10}
    assert next_run([Account("a", 0.0)]) is None


def test_an_account_that_stopped_improving_gets_fewer_slices_but_still_some() -> None:
    counts = shares([Account("a", 1.0, idle=PATIENCE + 1), Account("b", 1.0)], 50)
    assert counts == {"a": 10, "b": 40}


def test_an_improvement_resets_the_count_of_idle_slices() -> None:
    account = Account("a", 1.0)
    for _ in range(3):
        account = account.after(8.0, 1.0)
    assert (account.idle, account.spent) == (3, 24.0)
    assert account.after(8.0, 0.5).idle == 0


def test_headroom_is_the_mean_logarithm_of_time_over_speed_of_light() -> None:
    made = [passed(kernel(1).id, GPU, **{W: 20.0, V: 80.0})]  # the speed of light is 10 us
    assert mean_headroom([W, V], times(made), {}) == pytest.approx((math.log(2) + math.log(8)) / 2)


def test_headroom_without_a_champion_uses_pytorch_s_time_or_else_a_guess() -> None:
    fell = [passed(kernel(1).id, GPU, **{W: 20.0}), failed(kernel(1).id, created=2.0)]
    assert mean_headroom([W], {}, times(fell)) == pytest.approx(math.log(100 / 10))  # PyTorch takes 100 us
    assert mean_headroom([W], {}, {}) == pytest.approx(math.log(GENEROUS))


def test_cost_is_measured_in_the_most_expensive_limited_resource() -> None:
    spent = Spent(evals=3, tokens=400, usd=0.5, seconds=60.0)
    assert cost(Budget(evals=9, tokens=1000, usd=1.0, seconds=99.0), spent) == 0.5
    assert cost(Budget(evals=9, tokens=1000, seconds=99.0), spent) == 400
    assert cost(Budget(evals=9, seconds=99.0), spent) == 3
    assert cost(Budget(seconds=99.0), spent) == 60
    assert cost(Budget(), spent) == 3
