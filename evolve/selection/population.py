"""Population of one op on one device: which kernels survive, which win where, which become parents. Pure functions."""

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archive.records import Confirmed, Duel, Evaluation, Measurement, Traits

REGISTER_CLASSES = (32, 64, 128)  # the upper ends; above the last, two blocks of 256 threads no longer fit
SHARED_CLASSES = (0, 16 * 1024, 64 * 1024)
MANY_LAUNCHES = 3


class Niche(NamedTuple):
    """Two kernels with equal niches work in much the same way."""

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


KEEP = 8
OF_A_KIND = 3
HOPELESS = 4.0  # times slower than the fittest: being different is no merit then


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


def latest(evaluations: Iterable[Evaluation], device_key: str) -> dict[str, Evaluation]:
    """The verdict in force on each kernel: the last one made on this device."""
    verdicts = {e.kernel_id: e for e in evaluations if e.device.key == device_key}
    return dict(sorted(verdicts.items()))


def champions(evaluations: Iterable[Evaluation]) -> tuple[Champion, ...]:
    """The winner on every workload that some kernel passed, in the workloads' own order."""
    rivals: dict[str, list[Champion]] = {}
    for evaluation in evaluations:
        for measurement in evaluation.measurements if evaluation.passed else ():
            rival = Champion(measurement.workload, evaluation.kernel_id, measurement, evaluation.confirmed)
            rivals.setdefault(measurement.workload, []).append(rival)
    return tuple(winner(of_one) for of_one in rivals.values())


def winner(rivals: Sequence[Champion]) -> Champion:
    """The fastest; but who was confirmed gives way only to who is faster by more than both intervals.

    Of many times the least was lucky: without this, one near-equal kernel after the other would be confirmed.
    """
    held = min((rival for rival in rivals if rival.confirmed), key=_median_us, default=None)
    if held is None:
        return min(rivals, key=_median_us)
    clearly_faster = [rival for rival in rivals if rival.measurement.high_us < held.measurement.low_us]
    return min(clearly_faster, key=_median_us, default=held)


def survivors(evaluations: Sequence[Evaluation], keep: int = KEEP) -> tuple[Evaluation, ...]:
    """Those alive, fittest first: the fastest on some workload, or among the best `keep` by geometric mean.

    Of one kind no more than a few are among the best while there are others that are not hopeless.
    """
    passed = [evaluation for evaluation in evaluations if evaluation.passed and evaluation.measurements]
    fitness = _fitness(passed)
    ranked = sorted(passed, key=lambda evaluation: (-fitness[evaluation.kernel_id], evaluation.kernel_id))
    crowd = Counter[Niche]()
    novel, others = list[str](), list[str]()
    for evaluation in ranked:
        kind = niche(evaluation.traits) if evaluation.traits else None
        hopeless = fitness[evaluation.kernel_id] * HOPELESS < fitness[ranked[0].kernel_id]
        if kind:
            crowd[kind] += 1
        (others if hopeless or (kind and crowd[kind] > OF_A_KIND) else novel).append(evaluation.kernel_id)
    chosen = {*[*novel, *others][:keep], *(champion.kernel_id for champion in champions(passed))}
    return tuple(evaluation for evaluation in ranked if evaluation.kernel_id in chosen)


def weakest(evaluation: Evaluation) -> Measurement | None:
    """The workload with most to gain."""
    return min(evaluation.measurements, key=standing, default=None)


def standing(measurement: Measurement) -> float:
    """How good a time is: its share of the speed of light, or where nobody knows that, the speedup."""
    share = measurement.share_of_light
    return measurement.speedup if share is None else share


def parents(
    population: Sequence[Evaluation], used: Mapping[str, int], wanted: int, rng: random.Random
) -> tuple[Evaluation, ...]:
    """Draw parents, with replacement: the fitter the likelier, the more often used before the less so."""
    if not population:
        return ()
    weights = [1 / ((rank + 1) * (1 + used.get(e.kernel_id, 0))) for rank, e in enumerate(population)]
    return tuple(rng.choices(population, weights, k=wanted))


def _median_us(champion: Champion) -> float:
    return champion.measurement.median_us


def _fitness(passed: Sequence[Evaluation]) -> dict[str, float]:
    """The geometric mean over all workloads of best time / own time.

    Where a kernel has no time of its own it counts as the slowest there, so refusing work never pays.
    """
    times = {e.kernel_id: {m.workload: m.median_us for m in e.measurements} for e in passed}
    workloads = sorted({workload for own in times.values() for workload in own})
    best = {w: min(own[w] for own in times.values() if w in own) for w in workloads}
    worst = {w: max(own[w] for own in times.values() if w in own) for w in workloads}
    return {
        kernel_id: math.exp(sum(math.log(best[w] / own.get(w, worst[w])) for w in workloads) / len(workloads))
        for kernel_id, own in times.items()
    }
