"""Bandit: the arms that it chooses, given the results so far."""

import random
from collections.abc import Callable, Iterable

from each import each

from archive.runs import Cost
from archive.summaries import Trial
from evolve.prompting.operators import OPERATORS
from evolve.proposers.llm.bandit import Arm, choose

ONE, OTHER = "m-1", "m-2"
ARMS = tuple((model, operator) for model in (ONE, OTHER) for operator in OPERATORS)
SEEDS, GENERATIONS, WANTED = 6, 40, 8
Judge = Callable[[Arm, random.Random], Trial]


def trial(arm: Arm, gain: float, *, passed: bool = True, tokens: int = 2_000, usd: float = 0.0) -> Trial:
    return Trial(arm[1], arm[0], Cost(tokens // 2, tokens // 2, usd=usd), passed, gain)


def played(judge: Judge, seed: int, arms: tuple[Arm, ...] = ARMS) -> list[Arm]:
    """Return the arms chosen in a run in which `judge` gives the result of each trial."""
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
    """Return the share of choices for which `is_meant` is true, in each half of a run, averaged over many runs."""
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


def test_the_same_seed_chooses_the_same_arms() -> None:
    assert played(usual, 5) == played(usual, 5)


def test_another_seed_chooses_other_arms() -> None:
    assert choose(ARMS, (), 20, random.Random(1)) != choose(ARMS, (), 20, random.Random(2))


def test_without_trials_every_arm_is_chosen_sometimes() -> None:
    assert set(choose(ARMS, (), 400, random.Random(0))) == set(ARMS)


def test_a_model_that_never_answers_is_chosen_less_and_less() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return Trial(arm[1], arm[0], Cost(), passed=False, gain=0.0) if of_other(arm) else usual(arm, rng)

    early, late = shares(judge, of_other)
    assert late < early < 0.2
    assert late < 0.1


def test_a_model_whose_paid_replies_never_pass_is_chosen_less_and_less() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.0, passed=False) if of_other(arm) else usual(arm, rng)

    early, late = shares(judge, of_other)
    assert late < early < 0.2
    assert late < 0.1


def test_an_operator_that_gains_more_often_is_chosen_more() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.1 if rng.random() < (0.2 if arm[1] == "improve" else 0.03) else 0.0)

    _, late = shares(judge, lambda arm: arm[1] == "improve", ARMS[: len(OPERATORS)])
    assert late > 2 / len(OPERATORS)


def test_an_operator_with_larger_gains_is_chosen_more() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, (0.5 if of_other(arm) else 0.02) if rng.random() < 0.15 else 0.0)

    assert shares(judge, of_other)[1] > 0.7


@each(
    {
        "in tokens": 0.0,
        "in dollars": 0.001,
    }
)
def test_the_cheaper_of_two_equal_models_is_chosen_more(usd: float) -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        dear = of_other(arm)
        found = usual(arm, rng)
        # The other model costs more: in dollars because of its price, in tokens because of its long replies.
        tokens = 2_000 if usd or not dear else 20_000
        return trial(arm, found.gain, passed=found.passed, tokens=tokens, usd=usd * (10 if dear else 1))

    assert shares(judge, of_other)[1] < 0.2


def test_a_kernel_that_passes_without_a_gain_counts() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        return trial(arm, 0.0, passed=not of_other(arm))

    assert shares(judge, of_other)[1] < 0.2


def test_requests_without_a_reply_do_not_lower_the_cost_of_a_model() -> None:
    def judge(arm: Arm, rng: random.Random) -> Trial:
        silent = of_other(arm) and rng.random() < 0.8
        return Trial(arm[1], arm[0], Cost(), False, 0.0) if silent else usual(arm, rng)

    assert shares(judge, of_other)[1] < 0.3


def test_a_new_model_is_chosen_too() -> None:
    trials = [trial((ONE, "improve"), 0.05 * (index % 5 == 0)) for index in range(100)]
    assert share(choose(ARMS, trials, 200, random.Random(3)), of_other) > 0.1


def test_the_order_of_the_arms_does_not_matter() -> None:
    trials = [trial(arm, 0.1) for arm in ARMS[:3]] * 5
    assert choose(ARMS, trials, 30, random.Random(7)) == choose(ARMS[::-1], trials, 30, random.Random(7))


def test_an_arm_that_is_never_chosen_does_not_affect_the_others() -> None:
    trials = [trial(arm, 0.1) for arm in ARMS[:3]] * 5
    chosen = choose(ARMS, trials, 6, random.Random(7))
    assert choose([arm for arm in ARMS if arm in chosen], trials, 6, random.Random(7)) == chosen


def test_trials_of_other_proposers_are_ignored() -> None:
    tuned = [Trial("knobs", "offline", Cost(), passed=True, gain=1.0)] * 50
    assert choose(ARMS, tuned, 20, random.Random(4)) == choose(ARMS, (), 20, random.Random(4))


def test_an_operator_is_chosen_at_most_as_often_as_allowed() -> None:
    chosen = choose(ARMS, (), 100, random.Random(6), {"repair": 2, "draft": 0})
    assert sum(operator == "repair" for _, operator in chosen) == 2
    assert not any(operator == "draft" for _, operator in chosen)


def test_no_arm_is_chosen_where_none_is_allowed() -> None:
    assert choose((), (), 5, random.Random(0)) == ()
