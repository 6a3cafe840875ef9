"""The population of an op on a device: pure functions that choose survivors, champions and parents."""

import heapq
import math
import random
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from archive import ArchiveError
from archive.records import Confirmed, Duel, Evaluation, Measurement, Traits
from archive.summaries import EvaluationSummary, RankedTimes, packed, timing, traits_in

E = TypeVar("E", bound=Evaluation | EvaluationSummary | RankedTimes)

KEEP = 8
OF_A_KIND = 3
# positions among the figures of a workload, and the number of figures
MEDIAN, LOW, HIGH, BASELINE, FIGURES = 0, 1, 2, 3, 5
_rank = itemgetter(0, 1)  # slowness, and id as a tie-break
HOPELESS = 4.0  # a kernel that is this many times slower than the fittest is not kept for diversity


@dataclass(frozen=True)
class Champion:
    """The fastest correct kernel for one workload on one device."""

    workload: str
    kernel_id: str
    measurement: Measurement
    confirmed: Confirmed | None = None

    @property
    def duel(self) -> Duel | None:
        """The duel with PyTorch on this workload, if the champion is confirmed."""
        return self.confirmed.duel(self.workload) if self.confirmed else None

    @property
    def won(self) -> bool:
        return self.duel is not None and self.duel.won

    def replaces(self, held: "Champion | None") -> bool:
        """Return whether this kernel, which is not confirmed yet, replaces the current champion."""
        if held is None:
            return True
        bar_us = held.measurement.low_us if held.confirmed else held.measurement.median_us
        return (self.measurement.high_us if held.confirmed else self.measurement.median_us) < bar_us


def latest(evaluations: Iterable[Evaluation], device_key: str) -> dict[str, Evaluation]:
    """Return the last verdict on each kernel on this device, in the order of the kernels' ids."""
    verdicts = {e.kernel_id: e for e in evaluations if e.device.key == device_key}
    return dict(sorted(verdicts.items()))


def champions(evaluations: Iterable[Evaluation]) -> tuple[Champion, ...]:
    """Return the winner on every workload on which some kernel passed, in the order of the workloads."""
    return tuple(champion(workload, evaluation) for workload, evaluation in leaders(evaluations).items())


def champion(workload: str, evaluation: Evaluation) -> Champion:
    """Return the champion of a workload, with the measurement from its evaluation."""
    measurement = next(m for m in evaluation.measurements if m.workload == workload)
    return Champion(workload, evaluation.kernel_id, measurement, evaluation.confirmed)


def leaders(evaluations: Iterable[E]) -> dict[str, E]:
    """Return the evaluation that wins on each workload, in the order in which the workloads first appear.

    The fastest kernel wins. A confirmed kernel is replaced only by a kernel whose interval lies below its own: the
    lowest of many times is partly due to chance, and nearly equal kernels would be confirmed one after another without
    end.
    """
    return _leaders(_tables(evaluations))


def fittest(evaluations: Sequence[E], keep: int = KEEP) -> tuple[dict[str, E], tuple[E, ...]]:
    """Return the champions' evaluations by workload, and the evaluations of the kernels alive, fittest first."""
    tables = _tables(evaluations)
    winners, ranking = _leaders(tables), Ranking[E]()
    ranking.add_tables(tables)
    return winners, ranking.alive(winners.values(), keep)


def survivors(evaluations: Sequence[E], keep: int = KEEP) -> tuple[E, ...]:
    """Return the evaluations of the kernels alive, fittest first."""
    return fittest(evaluations, keep)[1]


class Ranking(Generic[E]):
    """A ranking of kernels by the geometric mean of their times over all workloads; the best of them are alive.

    A workload that the kernel does not accept counts with the slowest time there, so refusing workloads never improves
    the rank. The relative order of kernels that accept the same workloads does not change when others are added.
    """

    def __init__(self) -> None:
        # For each set of workloads: the sum of a kernel's log times, its id, and its evaluation.
        self._groups: dict[tuple[str, ...], list[tuple[float, str, E]]] = {}
        self._worst: dict[str, float] = {}  # the slowest time on each workload

    def add(self, evaluations: Iterable[E]) -> None:
        """Add the kernels that passed."""
        self.add_tables(_tables(evaluations))

    def add_tables(self, tables: Sequence["_Table[E]"]) -> None:
        for table in tables:
            columns = [table.column(workload) for workload in table.workloads]
            sums = map(sum, zip(*(map(math.log, column) for column in columns), strict=True))
            ids = (evaluation.kernel_id for evaluation in table.evaluations)
            self._groups.setdefault(table.workloads, []).extend(zip(sums, ids, table.evaluations, strict=True))
            for workload, column in zip(table.workloads, columns, strict=True):
                slowest = max(column)
                self._worst[workload] = max(self._worst.get(workload, slowest), slowest)

    def alive(self, winners: Iterable[E], keep: int = KEEP) -> tuple[E, ...]:
        """Return the champions and the best `keep` kernels, fittest first.

        The best include at most `OF_A_KIND` kernels of one niche, unless all alternatives are much slower.
        """
        niches = Counter[Niche]()
        novel: list[tuple[float, str, E]] = []
        others: list[tuple[float, str, E]] = []
        least: float | None = None
        for entry in self._ranked():
            slowness, _, evaluation = entry
            least = slowness if least is None else least
            hopeless = slowness - least > math.log(HOPELESS)
            if hopeless and len(novel) + len(others) >= keep:
                break
            kind = _niche_of(evaluation)
            if kind:
                niches[kind] += 1
            (others if hopeless or (kind and niches[kind] > OF_A_KIND) else novel).append(entry)
            if len(novel) == keep:
                break
        best = [*novel, *others][:keep]
        ids = {entry[1] for entry in best}
        for winner in winners:
            if winner.kernel_id not in ids:
                ids.add(winner.kernel_id)
                best.append(self._entry(winner))
        best.sort(key=_rank)
        return tuple([entry[2] for entry in best])

    def _entry(self, evaluation: E) -> tuple[float, str, E]:
        return self._slowness(evaluation), evaluation.kernel_id, evaluation

    def _ranked(self) -> Iterator[tuple[float, str, E]]:
        for group in self._groups.values():
            group.sort(key=_rank)  # fast, because only new entries are out of order
        groups = (self._means(workloads, group) for workloads, group in self._groups.items())
        return heapq.merge(*groups, key=_rank)

    def _means(
        self, workloads: tuple[str, ...], group: Iterable[tuple[float, str, E]]
    ) -> Iterator[tuple[float, str, E]]:
        refused = sum(math.log(us) for workload, us in self._worst.items() if workload not in workloads)
        return ((round((own + refused) / len(self._worst), 12), kernel_id, one) for own, kernel_id, one in group)

    def _slowness(self, evaluation: E) -> float:
        (table,) = _tables([evaluation])
        own = sum(math.log(table.column(workload)[0]) for workload in table.workloads)
        return next(self._means(table.workloads, [(own, "", evaluation)]))[0]


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


class Rival(NamedTuple):
    """A time in a table. Rivals are sorted by time, then by place."""

    median_us: float
    place: int
    low_us: float
    row: int
    table: "_Table[Any]"


@dataclass(frozen=True, eq=False)
class _Table(Generic[E]):
    """The times of evaluations on the same workloads, in columns: an op may have tens of thousands of kernels."""

    workloads: tuple[str, ...]
    evaluations: Sequence[E]
    places: Sequence[int]  # places of the evaluations in the given order
    times: "array[float]"  # median, low, high, baseline and floor of each evaluation on each workload

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
        """Yield the fastest evaluation whose interval lies below that of `held`, if there is one."""
        low_us, medians = held.low_us, self.column(workload)
        clearly = [row for row, high in enumerate(self.column(workload, HIGH)) if high < low_us]
        return iter([self.rival(workload, min(clearly, key=medians.__getitem__))] if clearly else [])


def _tables(evaluations: Iterable[E]) -> list[_Table[E]]:
    """Return a table for each set of workloads. Evaluations that failed or have no times are left out."""
    groups: dict[str, tuple[list[int], list[E], array[float]]] = {}
    for place, evaluation in enumerate(evaluations):
        if evaluation.passed:
            workloads, times = _times(evaluation)
            if times:
                if workloads not in groups:
                    groups[workloads] = [], [], array("d")
                places, members, figures = groups[workloads]
                places.append(place)
                members.append(evaluation)
                figures.frombytes(times)
    return [_table(workloads, *columns) for workloads, columns in groups.items()]


def _table(workloads: str, places: Sequence[int], evaluations: Sequence[E], times: "array[float]") -> _Table[E]:
    table = _Table(tuple(workloads.split("\n")), evaluations, places, times)
    for workload in table.workloads:
        medians = table.column(workload)
        if not 0 < min(medians) <= max(medians) < math.inf:
            raise ArchiveError(f"a summary in the archive has a time at {workload} that is not positive and finite")
    return table


def _times(evaluation: Evaluation | EvaluationSummary | RankedTimes) -> tuple[str, bytes]:
    if isinstance(evaluation, Evaluation):
        return packed(map(timing, evaluation.measurements))
    return evaluation.workloads, evaluation.times


REGISTER_CLASSES = (32, 64, 128)  # upper limits; beyond the last, two blocks of 256 threads no longer fit
SHARED_CLASSES = (0, 16 * 1024, 64 * 1024)
MANY_LAUNCHES = 3


class Niche(NamedTuple):
    """A coarse description of how a kernel works. Kernels in the same niche work similarly."""

    load_bytes: int
    registers: int  # index into REGISTER_CLASSES
    shared: int  # index into SHARED_CLASSES
    launches: int  # at most MANY_LAUNCHES
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


def _niche_of(evaluation: Evaluation | EvaluationSummary | RankedTimes) -> Niche | None:
    if isinstance(evaluation, Evaluation):
        return niche(evaluation.traits) if evaluation.traits else None
    return _niche_in(evaluation.traits_json)


@lru_cache(maxsize=50_000)
def _niche_in(traits_json: str) -> Niche | None:
    traits = traits_in(traits_json)
    return niche(traits) if traits else None


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
    """Return the measurement on the workload with the most to gain."""
    return min(evaluation.measurements, key=standing, default=None)


def standing(measurement: Measurement) -> float:
    """Return the quality of a time: its share of the speed of light or, if that is unknown, the speedup."""
    share = measurement.share_of_light
    return measurement.speedup if share is None else share


def parents(population: Sequence[E], used: Mapping[str, int], wanted: int, rng: random.Random) -> tuple[E, ...]:
    """Draw parents with replacement.

    Fitter kernels are more likely, and kernels that were parents before are less likely.
    """
    if not population:
        return ()
    weights = [1 / ((rank + 1) * (1 + used.get(e.kernel_id, 0))) for rank, e in enumerate(population)]
    return tuple(rng.choices(population, weights, k=wanted))
