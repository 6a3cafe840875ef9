import random
from collections.abc import Callable, Iterable

import pytest

from archive.proposals import Cost
from evolve.prompting.operators import OPERATORS
from evolve.proposers.llm.bandit import Arm, choose
from evolve.request import Trial

ONE, OTHER = "m-1", "m-2"
ARMS = tuple((model, operator) for model in (ONE, OTHER) for operator in OPERATORS)
SEEDS, GENERATIONS, WANTED = 6, 40, 8
Judge = Callable[[Arm, random.Random], Trial]


def trial(arm: Arm, gain: float, *, passed: bool = True, tokens: int = 2_000, usd: float = 0.0) -> Trial:
    return Trial(arm[1], arm[0], Cost(tokens // 2, tokens // 2, usd=usd), passed, gain)


def played(judge: Judge, seed: int, arms: tuple[Arm, ...] = ARMS) -> list[Arm]:
    """What is chosen in a run whose trials turn out like this."""
    rng, trials, chosen = random.Random(seed), list[Trial](), list[Arm]()
    for _ in range(GENERATIONS):
        found = choose(arms, trials, WANTED, random.Random(rng.random()))
        chosen += found
        trials += [judge(arm, rng) for arm in found]
    return chosen


def share(chosen: Iterable[Arm], is_meant: Callable[[Arm], bool]) -> float:
    found = [is_meant(arm) for arm in chosen]
    return sum(found) / len(found)


def shares(judge: Judge, is_meant: Callable[[Arm], bool], arms: tuple[Arm, ...] = ARMS) -> tuple[float, float]:
    """The mean share over many runs, in the first and in the second half of a run."""
    half = GENERATIONS * WANTED // 2
    runs = [played(judge, seed, arms) for seed in range(SEEDS)]
    return (
        sum(share(run[:half], is_meant) for run in runs) / SEEDS,
        sum(share(run[half:], is_meant) for run in runs) / SEEDS,
    )


def usual(arm: Arm, rng: random.Random) -> Trial:
    passed = rng.random() < 0.6
    return trial(arm, 0.1 if passed and rng.random() < 0.15 else 0.0, passed=passed)


def of_other(arm: Arm) -> bool:
    return arm[0] == OTHER


def test_the_same_seed_chooses_the_same() -> None:
    assert played(usual, 5) == played(usual, 5)


def test_another_seed_chooses_something_else() -> None:
    assert choose(ARMS, (), 20, random.Random(1)) != choose(ARMS, (), 20, random.Random(2))


def test_without_trials_every_arm_has_its_chance() -> None:
    assert set(choose(ARMS, (), 400, random.Random(0))) == set(ARMS)


def test_a_model_that_answers_nothing_is_asked_less_and_less() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return Trial(arm[1], arm[0], Cost(), passed=False, gain=0.0) if of_other(arm) else usual(arm, rng)

    early, late = shares(judge, of_other)
    assert late < early < 0.2
    assert late < 0.1


def test_a_model_whose_replies_are_paid_for_and_useless_is_asked_less_and_less() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.0, passed=False) if of_other(arm) else usual(arm, rng)

    early, late = shares(judge, of_other)
    assert late < early < 0.2
    assert late < 0.1


def test_an_operator_that_gains_more_is_used_more() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.1 if rng.random() < (0.2 if arm[1] == "improve" else 0.03) else 0.0)

    _, late = shares(judge, lambda arm: arm[1] == "improve", ARMS[: len(OPERATORS)])
    assert late > 2 / len(OPERATORS)


def test_a_larger_gain_counts_for_more() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, (0.5 if of_other(arm) else 0.02) if rng.random() < 0.15 else 0.0)

    assert shares(judge, of_other)[1] > 0.7


@pytest.mark.parametrize("usd", [0.0, 0.001], ids=["in tokens", "in dollars"])
def test_of_equals_the_cheaper_one_is_asked(usd: float) -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        dear = of_other(arm)
        found = usual(arm, rng)
        # In dollars the other is dear by its price, otherwise by its length.
        tokens = 2_000 if usd or not dear else 20_000
        return trial(arm, found.gain, passed=found.passed, tokens=tokens, usd=usd * (10 if dear else 1))

    assert shares(judge, of_other)[1] < 0.2


def test_passing_is_worth_something() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.0, passed=not of_other(arm))

    assert shares(judge, of_other)[1] < 0.2


def test_requests_that_brought_nothing_do_not_make_a_model_look_cheap() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        silent = of_other(arm) and rng.random() < 0.8
        return Trial(arm[1], arm[0], Cost(), False, 0.0) if silent else usual(arm, rng)

    assert shares(judge, of_other)[1] < 0.3


def test_a_model_that_comes_new_gets_a_chance() -> None:
    trials = [trial((ONE, "improve"), 0.05 * (index % 5 == 0)) for index in range(100)]
    assert share(choose(ARMS, trials, 200, random.Random(3)), of_other) > 0.1


def test_the_order_of_the_arms_changes_nothing() -> None:
    trials = [trial(arm, 0.1) for arm in ARMS[:3]] * 5
    assert choose(ARMS, trials, 30, random.Random(7)) == choose(ARMS[::-1], trials, 30, random.Random(7))


def test_an_arm_that_is_never_chosen_changes_nothing_for_the_others() -> None:
    trials = [trial(arm, 0.1) for arm in ARMS[:3]] * 5
    chosen = choose(ARMS, trials, 6, random.Random(7))
    assert choose([arm for arm in ARMS if arm in chosen], trials, 6, random.Random(7)) == chosen


def test_trials_of_others_are_none_of_its_business() -> None:
    tuned = [Trial("knobs", "offline", Cost(), passed=True, gain=1.0)] * 50
    assert choose(ARMS, tuned, 20, random.Random(4)) == choose(ARMS, (), 20, random.Random(4))


def test_an_operator_is_used_no_more_often_than_it_may() -> None:
    chosen = choose(ARMS, (), 100, random.Random(6), {"repair": 2, "draft": 0})
    assert sum(operator == "repair" for _, operator in chosen) == 2
    assert not any(operator == "draft" for _, operator in chosen)


def test_where_nothing_may_be_asked_nothing_is() -> None:
    assert choose((), (), 5, random.Random(0)) == ()
