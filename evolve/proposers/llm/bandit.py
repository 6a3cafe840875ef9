"""A bandit that chooses a model and an operator for each question, by expected gain per cost.

It uses Thompson sampling: the gain per cost of each arm is drawn from its posterior, and the best draw wins. The prior
of an arm is derived from its model's results with other operators and its operator's results with other models. Draws
depend only on the arm and the seed, so an arm that is never chosen does not affect the others.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.summaries import Trial

Arm = tuple[str, str]  # the signature of a model, and the operator
DECAY = 0.996  # factor on a trial's weight per later trial, because gains become rarer during a run
PRIOR = 2.0  # weight of the prior, in trials
RELATED, MOST_RELATED = 0.3, 6.0  # extra weight of the prior per trial of the same model, and its maximum
PASSING = 0.02  # gain of a kernel that is correct but not faster
FIRST_GAIN = 0.1  # expected size of the first improvement
LEAST_CHANCE = 0.01


@dataclass(frozen=True)
class Tally:
    """Weighted sums over trials, in which newer trials have more weight."""

    count: float = 0.0
    passed: float = 0.0
    gained: float = 0.0  # number of trials that improved a time
    gain: float = 0.0
    paid: float = 0.0  # number of trials that had a cost
    cost: float = 0.0

    def expected_cost(self, elsewhere: float) -> float:
        """Return the expected cost of a trial. Trials without a cost are not counted, because they got no reply."""
        return (PRIOR * elsewhere + self.cost) / (PRIOR + self.paid)


@dataclass(frozen=True)
class ArmResults:
    """The results of earlier trials by arm. Costs are in USD if every reply has a price, else in tokens."""

    by_arm: Mapping[Arm, Sequence[float]]  # the fields of a Tally

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> "ArmResults":
        in_usd = all(trial.cost.usd for trial in trials if trial.cost.tokens)
        sums: dict[Arm, list[float]] = {}
        for age, trial in enumerate(reversed(trials)):
            weight = DECAY**age
            cost = trial.cost.usd if in_usd else trial.cost.tokens
            found = (1, trial.passed, trial.gain > 0, trial.gain, trial.cost.tokens > 0, cost)
            held = sums.setdefault((trial.proposer, trial.operator), [0.0] * len(found))
            for place, value in enumerate(found):
                held[place] += weight * value
        return cls(sums)

    def tally(self, includes: Callable[[Arm], bool]) -> Tally:
        """Return the sums over the included arms."""
        included = [fields for arm, fields in self.by_arm.items() if includes(arm)]
        return Tally(*(sum(column) for column in zip(*included, strict=True)))


def choose(
    arms: Sequence[Arm], trials: Iterable[Trial], wanted: int, rng: random.Random, most: Mapping[str, int] | None = None
) -> tuple[Arm, ...]:
    """Return an arm for each question. `most` limits how many questions may use an operator."""
    proposers = {proposer for proposer, _ in arms}
    results = ArmResults.of([trial for trial in trials if trial.proposer in proposers])
    overall = results.tally(lambda _: True)
    posteriors = {arm: _Posterior.of(arm, results, overall) for arm in arms}
    left = dict(most or {})
    chosen: list[Arm] = []
    for _ in range(wanted):
        seed = rng.getrandbits(64)
        open_arms = [arm for arm in arms if left.get(arm[1], 1) > 0]
        if not open_arms:
            break
        best = max(open_arms, key=lambda arm: posteriors[arm].drawn(random.Random(f"{seed} {arm}")))
        chosen.append(best)
        if best[1] in left:
            left[best[1]] -= 1
    return tuple(chosen)


@dataclass(frozen=True)
class _Posterior:
    """The posterior of an arm: Beta distributions of the probabilities, a Gamma distribution of the size of a gain."""

    passing: tuple[float, float]
    gaining: tuple[float, float]  # among kernels that pass
    size: tuple[float, float]
    cost: float

    @classmethod
    def of(cls, arm: Arm, results: ArmResults, overall: Tally) -> "_Posterior":
        own = results.tally(lambda other: other == arm)
        of_model = results.tally(lambda other: other[0] == arm[0] and other != arm)
        of_operator = results.tally(lambda other: other[1] == arm[1] and other != arm)
        others = overall, of_model, of_operator
        size = (FIRST_GAIN + overall.gain) / (1 + overall.gained)
        mean_cost = overall.cost / overall.paid if overall.paid else 1.0
        return cls(
            _beta((own.passed, own.count), [(tally.passed, tally.count) for tally in others]),
            _beta((own.gained, own.passed), [(tally.gained, tally.passed) for tally in others]),
            (PRIOR + own.gained + _related_weight(overall.gained), (PRIOR * size + own.gain) / (PRIOR + own.gained)),
            own.expected_cost(of_model.expected_cost(mean_cost)),
        )

    def drawn(self, rng: random.Random) -> float:
        """Draw a gain per cost."""
        shape, mean = self.size
        size = rng.gammavariate(shape, mean / shape)
        gaining, passing = rng.betavariate(*self.gaining), rng.betavariate(*self.passing)
        return passing * (gaining * size + PASSING) / self.cost


def _beta(own: tuple[float, float], others: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the Beta posterior of a rate from hits and tries: the arm's own, all, its model's and its operator's.

    The prior mean is the overall rate times two factors: the rates of the arm's model and of its operator in other
    arms, each divided by the overall rate.
    """
    (hits, tries), (all_hits, all_tries), *related = own, *others
    overall = (all_hits + 1) / (all_tries + 2)
    mean = overall
    for related_hits, related_tries in related:
        mean *= (related_hits + PRIOR * overall) / (related_tries + PRIOR) / overall
    mean = min(max(mean, LEAST_CHANCE), 1 - LEAST_CHANCE)
    weight = PRIOR + _related_weight(related[0][1])
    return weight * mean + hits, weight * (1 - mean) + tries - hits


def _related_weight(tries: float) -> float:
    return min(RELATED * tries, MOST_RELATED)
