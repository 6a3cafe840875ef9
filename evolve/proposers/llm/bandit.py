"""Which model to ask by which operator: whatever promises most gain for its cost, by chance in step with what is known.

Thompson sampling: each arm's chances and gains are drawn from what its trials leave open, and the best draw is asked.
What an arm has not shown itself is expected of it by what its model and its operator have shown elsewhere. Draws
depend on the arm and the seed alone, so an arm that is never asked changes nothing for the others.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from evolve.request import Trial

Arm = tuple[str, str]  # who signs the proposals, and the operator
MEMORY = 0.996  # what a trial still counts for when the next one has come: gains grow rarer as a run goes on
PRIOR = 2.0  # the trials that an expectation is worth to begin with
KINSHIP, MOST_KINSHIP = 0.3, 6.0  # and for each trial of the same model that many more, up to so many
PASSING = 0.02  # the gain that a kernel is worth which is right but no faster
FIRST_GAIN = 0.1  # expected of an improvement before there has been any
LEAST_CHANCE = 0.01


@dataclass(frozen=True)
class Tally:
    """How some trials went together, the newest counting most."""

    count: float = 0.0
    passed: float = 0.0
    gained: float = 0.0  # how many of them made something faster
    gain: float = 0.0
    paid: float = 0.0  # how many of them cost anything
    cost: float = 0.0

    def expected_cost(self, elsewhere: float) -> float:
        """Of one trial. Requests that cost nothing brought nothing: they say nothing about what a reply costs."""
        return (PRIOR * elsewhere + self.cost) / (PRIOR + self.paid)


@dataclass(frozen=True)
class Past:
    """What became of earlier questions, by arm. Costs are in USD where every reply has a price, else in tokens."""

    by_arm: Mapping[Arm, Sequence[float]]  # the fields of a Tally

    @classmethod
    def of(cls, trials: Sequence[Trial]) -> "Past":
        in_usd = all(trial.cost.usd for trial in trials if trial.cost.tokens)
        sums: dict[Arm, list[float]] = {}
        for age, trial in enumerate(reversed(trials)):
            weight = MEMORY**age
            cost = trial.cost.usd if in_usd else trial.cost.tokens
            found = (1, trial.passed, trial.gain > 0, trial.gain, trial.cost.tokens > 0, cost)
            held = sums.setdefault((trial.proposer, trial.operator), [0.0] * len(found))
            for place, value in enumerate(found):
                held[place] += weight * value
        return cls(sums)

    def tally(self, counts: Callable[[Arm], bool]) -> Tally:
        """Of all arms that count, together."""
        meant = [fields for arm, fields in self.by_arm.items() if counts(arm)]
        return Tally(*(sum(column) for column in zip(*meant, strict=True)))


def choose(
    arms: Sequence[Arm], trials: Iterable[Trial], wanted: int, rng: random.Random, most: Mapping[str, int] | None = None
) -> tuple[Arm, ...]:
    """An arm for each question; `most` bounds how many may use an operator."""
    proposers = {proposer for proposer, _ in arms}
    past = Past.of([trial for trial in trials if trial.proposer in proposers])
    everybody = past.tally(lambda _: True)
    expectations = {arm: _Expected.of(arm, past, everybody) for arm in arms}
    left = dict(most or {})
    chosen: list[Arm] = []
    for _ in range(wanted):
        seed = rng.getrandbits(64)
        open_arms = [arm for arm in arms if left.get(arm[1], 1) > 0]
        if not open_arms:
            break
        best = max(open_arms, key=lambda arm: expectations[arm].drawn(random.Random(f"{seed} {arm}")))
        chosen.append(best)
        if best[1] in left:
            left[best[1]] -= 1
    return tuple(chosen)


@dataclass(frozen=True)
class _Expected:
    """What is open about an arm: chances as Beta distributions, the size of a gain as a Gamma distribution."""

    passing: tuple[float, float]
    gaining: tuple[float, float]  # of those that pass
    size: tuple[float, float]
    cost: float

    @classmethod
    def of(cls, arm: Arm, past: Past, all_: Tally) -> "_Expected":
        own = past.tally(lambda other: other == arm)
        of_model = past.tally(lambda other: other[0] == arm[0] and other != arm)
        of_operator = past.tally(lambda other: other[1] == arm[1] and other != arm)
        all_and_kin = all_, of_model, of_operator
        size = (FIRST_GAIN + all_.gain) / (1 + all_.gained)
        usual = all_.cost / all_.paid if all_.paid else 1.0
        return cls(
            _beta((own.passed, own.count), [(tally.passed, tally.count) for tally in all_and_kin]),
            _beta((own.gained, own.passed), [(tally.gained, tally.passed) for tally in all_and_kin]),
            (PRIOR + own.gained + _worth(all_.gained), (PRIOR * size + own.gain) / (PRIOR + own.gained)),
            own.expected_cost(of_model.expected_cost(usual)),
        )

    def drawn(self, rng: random.Random) -> float:
        """A gain per cost that may well be so."""
        shape, mean = self.size
        size = rng.gammavariate(shape, mean / shape)
        gaining, passing = rng.betavariate(*self.gaining), rng.betavariate(*self.passing)
        return passing * (gaining * size + PASSING) / self.cost


def _beta(own: tuple[float, float], all_and_kin: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """From hits among tries: an arm's own, and before those count what is expected of it.

    That is the common chance, by as much better or worse as its model and its operator are elsewhere.
    """
    (hits, tries), (all_hits, all_tries), *kin = own, *all_and_kin
    common = (all_hits + 1) / (all_tries + 2)
    chance = common
    for its_hits, its_tries in kin:
        chance *= (its_hits + PRIOR * common) / (its_tries + PRIOR) / common
    chance = min(max(chance, LEAST_CHANCE), 1 - LEAST_CHANCE)
    worth = PRIOR + _worth(kin[0][1])
    return worth * chance + hits, worth * (1 - chance) + tries - hits


def _worth(tries: float) -> float:
    return min(KINSHIP * tries, MOST_KINSHIP)
