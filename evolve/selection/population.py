"""Population of one op on one device: which kernels survive, which win where, which become parents. Pure functions."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from archive.records import Confirmed, Duel, Evaluation, Measurement, Traits
from archive.summaries import EvaluationSummary

E = TypeVar("E", Evaluation, EvaluationSummary)

KEEP = 8
OF_A_KIND = 3
HOPELESS = 4.0  # times slower than the fittest: then a niche of its own is no merit


@dataclass(frozen=True)
class Champion:
    """The fastest correct kernel for one workload on one device."""

    workload: str
    kernel_id: str
    measurement: Measurement
    confirmed: Confirmed | None = None

    @property
    def duel(self) -> Duel | None:
        """With PyTorch on this workload, where it was confirmed."""
        return self.confirmed.duel(self.workload) if self.confirmed else None

    @property
    def won(self) -> bool:
        return self.duel is not None and self.duel.won

    def replaces(self, held: "Champion | None") -> bool:
        """Whether this kernel, which is not confirmed yet, takes the place of the champion so far."""
        if held is None:
            return True
        bar_us = held.measurement.low_us if held.confirmed else held.measurement.median_us
        return (self.measurement.high_us if held.confirmed else self.measurement.median_us) < bar_us


def latest(evaluations: Iterable[Evaluation], device_key: str) -> dict[str, Evaluation]:
    """Return the verdict in force on each kernel, in the order of the kernels' ids: the last one on this device."""
    verdicts = {e.kernel_id: e for e in evaluations if e.device.key == device_key}
    return dict(sorted(verdicts.items()))


def champions(evaluations: Iterable[Evaluation]) -> tuple[Champion, ...]:
    """Return the winner on every workload that some kernel passed, in the workloads' own order."""
    return tuple(champion(workload, evaluation) for workload, evaluation in leaders(evaluations).items())


def champion(workload: str, evaluation: Evaluation) -> Champion:
    """Return what a champion's evaluation says of the workload that it wins on."""
    measurement = next(m for m in evaluation.measurements if m.workload == workload)
    return Champion(workload, evaluation.kernel_id, measurement, evaluation.confirmed)


def leaders(evaluations: Iterable[E]) -> dict[str, E]:
    """Return the evaluation that wins on each workload, in the order in which the workloads come up.

    The fastest kernel wins. A confirmed one is replaced only by a kernel that is faster by more than both intervals:
    the least of many times was lucky, and near-equal kernels would be confirmed one after the other without end.
    """
    passed = [evaluation for evaluation in evaluations if evaluation.passed]
    fastest: dict[str, tuple[float, E]] = {}
    held: dict[str, tuple[float, float, E]] = {}  # the fastest confirmed kernel, with the lower end of its interval
    for evaluation in passed:
        for m in evaluation.measurements:
            if m.workload not in fastest or m.median_us < fastest[m.workload][0]:
                fastest[m.workload] = m.median_us, evaluation
            if evaluation.confirmed and (m.workload not in held or m.median_us < held[m.workload][0]):
                held[m.workload] = m.median_us, m.low_us, evaluation
    clearly: dict[str, tuple[float, E]] = {}
    contested = {workload for workload in held if fastest[workload][1] is not held[workload][2]}
    for evaluation in passed if contested else ():
        for m in evaluation.measurements:
            faster = m.workload in contested and m.high_us < held[m.workload][1]
            if faster and (m.workload not in clearly or m.median_us < clearly[m.workload][0]):
                clearly[m.workload] = m.median_us, evaluation
    return {
        workload: clearly[workload][1] if workload in clearly else held[workload][2] if workload in held else first
        for workload, (_, first) in fastest.items()
    }


def survivors(evaluations: Sequence[E], keep: int = KEEP, leading: Mapping[str, E] | None = None) -> tuple[E, ...]:
    """Return the kernels alive, fittest first: the champions, and the best `keep` by geometric mean over the workloads.

    At most `OF_A_KIND` kernels of one niche are among the best, as long as there are others that are not hopeless.
    `leading` spares finding the champions again.
    """
    passed = [evaluation for evaluation in evaluations if evaluation.passed and evaluation.measurements]
    ranked, workloads = _ranked(passed)
    niches = Counter[Niche]()
    novel: list[str] = []
    others: list[str] = []
    for slowness, _, evaluation in ranked:
        hopeless = slowness - ranked[0][0] > math.log(HOPELESS) * workloads
        if len(novel) == keep or (hopeless and len(novel) + len(others) >= keep):
            break
        kind = niche(evaluation.traits) if evaluation.traits else None
        if kind:
            niches[kind] += 1
        (others if hopeless or (kind and niches[kind] > OF_A_KIND) else novel).append(evaluation.kernel_id)
    winners = leaders(passed) if leading is None else leading
    chosen = {*[*novel, *others][:keep], *(evaluation.kernel_id for evaluation in winners.values())}
    return tuple(evaluation for _, _, evaluation in ranked if evaluation.kernel_id in chosen)


def _ranked(passed: Sequence[E]) -> tuple[list[tuple[float, str, E]], int]:
    """Return the evaluations by the sum of their log times, least first, and the number of workloads.

    A workload without a time of the kernel's own counts as the slowest time there, so refusing work never pays.
    """
    worst: dict[str, float] = {}
    for evaluation in passed:
        for m in evaluation.measurements:
            if m.median_us > worst.get(m.workload, 0.0):
                worst[m.workload] = m.median_us
    log_worst = {workload: math.log(us) for workload, us in worst.items()}
    found = []
    for evaluation in passed:
        measured = evaluation.measurements
        slowness = sum([math.log(m.median_us) for m in measured])
        if len(measured) < len(worst):
            own = {m.workload for m in measured}
            slowness += sum(log for workload, log in log_worst.items() if workload not in own)
        found.append((round(slowness, 12), evaluation.kernel_id, evaluation))
    found.sort(key=lambda one: one[:2])
    return found, len(worst)


REGISTER_CLASSES = (32, 64, 128)  # the upper ends; above the last, two blocks of 256 threads no longer fit
SHARED_CLASSES = (0, 16 * 1024, 64 * 1024)
MANY_LAUNCHES = 3


class Niche(NamedTuple):
    """How a kernel works, coarsely. Two kernels with equal niches work in much the same way."""

    load_bytes: int
    registers: int  # a class, not a number: the index into the upper ends
    shared: int  # a class
    launches: int  # up to MANY_LAUNCHES
    tensor_cores: bool
    atomics: bool

    def __str__(self) -> str:
        launches = "one launch" if self.launches == 1 else f"{self.launches} launches"
        shared = f"{_class(self.shared, SHARED_CLASSES)} bytes of" if self.shared else "no"
        said = [
            f"{self.load_bytes}-byte loads",
            f"{MANY_LAUNCHES} or more launches" if self.launches == MANY_LAUNCHES else launches,
            f"{shared} shared memory",
            f"{_class(self.registers, REGISTER_CLASSES)} registers",
        ]
        return ", ".join(said + ["tensor cores"] * self.tensor_cores + ["atomics"] * self.atomics)


def niche(traits: Traits) -> Niche:
    return Niche(
        traits.load_bytes,
        _index(traits.registers, REGISTER_CLASSES),
        _index(traits.shared_bytes, SHARED_CLASSES),
        min(traits.launches, MANY_LAUNCHES),
        traits.tensor_cores,
        traits.atomics,
    )


def _index(value: int, ends: tuple[int, ...]) -> int:
    return next((index for index, end in enumerate(ends) if value <= end), len(ends))


def _class(index: int, ends: tuple[int, ...]) -> str:
    return f"up to {ends[index]}" if index < len(ends) else f"over {ends[-1]}"


def weakest(evaluation: Evaluation) -> Measurement | None:
    """Return the time on the workload with most to gain."""
    return min(evaluation.measurements, key=standing, default=None)


def standing(measurement: Measurement) -> float:
    """Return how good a time is: its share of the speed of light, or the speedup where that is unknown."""
    share = measurement.share_of_light
    return measurement.speedup if share is None else share


def parents(population: Sequence[E], used: Mapping[str, int], wanted: int, rng: random.Random) -> tuple[E, ...]:
    """Draw parents with replacement: fitter kernels more often, kernels used as parents before less often."""
    if not population:
        return ()
    weights = [1 / ((rank + 1) * (1 + used.get(e.kernel_id, 0))) for rank, e in enumerate(population)]
    return tuple(rng.choices(population, weights, k=wanted))
