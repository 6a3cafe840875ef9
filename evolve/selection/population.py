"""Population of one op on one device: which kernels survive, which win where, which become parents. Pure functions."""

import heapq
import math
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

from archive.records import Confirmed, Duel, Evaluation, Measurement, Traits
from archive.store import ArchiveError
from archive.summaries import EvaluationSummary, RankedTimes, packed, timing

E = TypeVar("E", Evaluation, EvaluationSummary, RankedTimes)

KEEP = 8
OF_A_KIND = 3
MEDIAN, LOW, HIGH, FIGURES = 0, 1, 2, 5  # places in the times of a workload, and their number
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
    return _leaders(_tables(evaluations))


def fittest(evaluations: Sequence[E], keep: int = KEEP) -> tuple[dict[str, E], tuple[E, ...]]:
    """Return the champions' evaluations by workload, and those of the kernels alive, fittest first.

    Alive are the champions, and the best `keep` by geometric mean over the workloads. At most `OF_A_KIND` kernels of
    one niche are among the best, as long as there are others that are not hopeless.
    """
    tables = _tables(evaluations)
    winners: dict[str, E] = _leaders(tables)
    slowness: list[tuple[float, E]] = _slowness(tables)
    chosen = {*_best(slowness, keep), *(evaluation.kernel_id for evaluation in winners.values())}
    alive = [(slow, one.kernel_id, one) for slow, one in slowness if one.kernel_id in chosen]
    return winners, tuple(one for _, _, one in sorted(alive, key=lambda found: found[:2]))


def survivors(evaluations: Sequence[E], keep: int = KEEP) -> tuple[E, ...]:
    """Return the evaluations of the kernels alive, fittest first."""
    return fittest(evaluations, keep)[1]


def _leaders(tables: Sequence["_Table[E]"]) -> dict[str, E]:
    found = {}
    for workload in dict.fromkeys(workload for table in tables for workload in table.workloads):
        own = [table for table in tables if workload in table.workloads]
        fastest = min(table.fastest(workload) for table in own)
        held = min((rival for table in own for rival in table.confirmed(workload)), default=None)
        if held and held != fastest:
            clearly = [rival for table in own for rival in table.faster_than(workload, held)]
            fastest = min(clearly, default=held)
        found[workload] = fastest.table.evaluations[fastest.row]
    return found


def _best(slowness: Sequence[tuple[float, E]], keep: int) -> list[str]:
    """Return the kernels that are among the best, of which no niche has more than its share."""
    ranked = [(slow, evaluation.kernel_id, evaluation) for slow, evaluation in slowness]
    heapq.heapify(ranked)
    least = ranked[0][0] if ranked else 0.0
    niches = Counter[Niche]()
    novel: list[str] = []
    others: list[str] = []
    while ranked and len(novel) < keep:
        slow, kernel_id, evaluation = heapq.heappop(ranked)
        hopeless = slow - least > math.log(HOPELESS)
        if hopeless and len(novel) + len(others) >= keep:
            break
        kind = niche(evaluation.traits) if evaluation.traits else None
        if kind:
            niches[kind] += 1
        (others if hopeless or (kind and niches[kind] > OF_A_KIND) else novel).append(kernel_id)
    return [*novel, *others][:keep]


class Rival(NamedTuple):
    """A time in a table. Rivals compare by their times, and then by their places."""

    median_us: float
    place: int
    low_us: float
    row: int
    table: "_Table[Any]"


@dataclass(frozen=True, eq=False)
class _Table(Generic[E]):
    """The times of evaluations on the same workloads, in columns: an op may have ten thousands of kernels."""

    workloads: tuple[str, ...]
    evaluations: Sequence[E]
    places: Sequence[int]  # in the order in which the evaluations were given
    times: "array[float]"  # of each evaluation, on each workload: median, low, high, baseline, floor

    def column(self, workload: str, part: int = MEDIAN) -> "array[float]":
        return self.times[FIGURES * self.workloads.index(workload) + part :: FIGURES * len(self.workloads)]

    @cached_property
    def confirmed_rows(self) -> Sequence[int]:
        return [row for row, evaluation in enumerate(self.evaluations) if evaluation.confirmed]

    def rival(self, workload: str, row: int) -> Rival:
        median, low = (self.column(workload, part)[row] for part in (MEDIAN, LOW))
        return Rival(median, self.places[row], low, row, self)

    def fastest(self, workload: str) -> Rival:
        medians = self.column(workload)
        return self.rival(workload, medians.index(min(medians)))

    def confirmed(self, workload: str) -> Iterator[Rival]:
        return (self.rival(workload, row) for row in self.confirmed_rows)

    def faster_than(self, workload: str, held: Rival) -> Iterator[Rival]:
        """The fastest evaluation whose interval lies below that of `held`, if there is any."""
        clearly = (
            (median, row)
            for row, (median, high) in enumerate(zip(self.column(workload), self.column(workload, HIGH), strict=True))
            if high < held.low_us
        )
        found = min(clearly, default=None)
        return iter([self.rival(workload, found[1])] if found else [])


def _tables(evaluations: Iterable[E]) -> list[_Table[E]]:
    """Return a table for each set of workloads. Evaluations without times are left out, and those that failed."""
    groups: dict[str, list[tuple[int, E, bytes]]] = {}
    for place, evaluation in enumerate(evaluations):
        if evaluation.passed:
            workloads, times = _times(evaluation)
            if times:
                groups.setdefault(workloads, []).append((place, evaluation, times))
    return [_table(workloads, members) for workloads, members in groups.items()]


def _table(workloads: str, members: Sequence[tuple[int, E, bytes]]) -> _Table[E]:
    places, evaluations, times = zip(*members, strict=True)
    table = _Table(tuple(workloads.split("\n")), evaluations, places, array("d", b"".join(times)))
    for workload in table.workloads:
        medians = table.column(workload)
        if not 0 < min(medians) <= max(medians) < math.inf:
            raise ArchiveError(f"a summary of the archive has a time at {workload} that is not above 0 and finite")
    return table


def _times(evaluation: Evaluation | EvaluationSummary | RankedTimes) -> tuple[str, bytes]:
    if isinstance(evaluation, Evaluation):
        return packed(map(timing, evaluation.measurements))
    return evaluation.workloads, evaluation.times


def _slowness(tables: Sequence[_Table[E]]) -> list[tuple[float, E]]:
    """Return each evaluation with the mean of the logarithms of its times.

    A workload without a time of the kernel's own counts as the slowest time there, so refusing work never pays.
    """
    worst: dict[str, float] = {}
    for table in tables:
        for workload in table.workloads:
            worst[workload] = max(worst.get(workload, 0.0), *table.column(workload))
    found: list[tuple[float, E]] = []
    for table in tables:
        refused = sum(math.log(us) for workload, us in worst.items() if workload not in table.workloads)
        columns = [map(math.log, table.column(workload)) for workload in table.workloads]
        slowness = map(sum, zip(*columns, strict=True))
        found += [
            (round((slow + refused) / len(worst), 12), one)
            for slow, one in zip(slowness, table.evaluations, strict=True)
        ]
    return found


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
