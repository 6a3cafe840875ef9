"""Survival of the fittest, per op and device: who lives, who wins where, who becomes a parent. All pure."""

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.records import Evaluation, Measurement

KEEP = 8


@dataclass(frozen=True)
class Champion:
    """The fastest correct kernel for one workload on one device."""

    workload: str
    kernel_id: str
    measurement: Measurement


def latest(evaluations: Iterable[Evaluation], device_key: str) -> dict[str, Evaluation]:
    """The verdict in force on each kernel: the last one made on this device."""
    verdicts = {e.kernel_id: e for e in evaluations if e.device.key == device_key}
    return dict(sorted(verdicts.items()))


def champions(evaluations: Iterable[Evaluation]) -> tuple[Champion, ...]:
    """The winner on every workload that some kernel passed, in the workloads' own order."""
    best: dict[str, Champion] = {}
    for evaluation in evaluations:
        for measurement in evaluation.measurements if evaluation.passed else ():
            held = best.get(measurement.workload)
            if held is None or measurement.median_us < held.measurement.median_us:
                best[measurement.workload] = Champion(measurement.workload, evaluation.kernel_id, measurement)
    return tuple(best.values())


def survivors(evaluations: Sequence[Evaluation], keep: int = KEEP) -> tuple[Evaluation, ...]:
    """Those alive, fittest first: the fastest on some workload, or among the best `keep` by geometric mean."""
    passed = [evaluation for evaluation in evaluations if evaluation.passed and evaluation.measurements]
    fitness = _fitness(passed)
    ranked = sorted(passed, key=lambda evaluation: (-fitness[evaluation.kernel_id], evaluation.kernel_id))
    winners = {champion.kernel_id for champion in champions(passed)}
    return tuple(e for rank, e in enumerate(ranked) if rank < keep or e.kernel_id in winners)


def parents(
    population: Sequence[Evaluation], used: Mapping[str, int], wanted: int, rng: random.Random
) -> tuple[Evaluation, ...]:
    """Draw parents, with replacement: the fitter the likelier, the more often used before the less so."""
    if not population:
        return ()
    weights = [1 / ((rank + 1) * (1 + used.get(e.kernel_id, 0))) for rank, e in enumerate(population)]
    return tuple(rng.choices(population, weights, k=wanted))


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
