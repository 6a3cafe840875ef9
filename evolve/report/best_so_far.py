"""Improvement of an op's best kernel, by evaluations, tokens and dollars, and as a small curve."""

import math
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, repeat
from operator import attrgetter, truediv

from archive.summaries import TIMES, BriefProposal, Judged, RankedTimes
from evolve.report.basis import Basis
from evolve.selection.population import BASELINE, FIGURES, MEDIAN

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"  # characters for terminals without Unicode
COLUMNS = 16  # width of a small curve
Curve = tuple[tuple[float, float], ...]  # the number of evaluations or proposals, and the best so far


@dataclass(frozen=True)
class Moment:
    """A kernel that passed: the cost up to it, its ratio to the basis, and the best so far."""

    kernel_id: str
    spent: tuple[float, float, float]  # evaluations, tokens and dollars
    ratio: float  # geometric mean over its workloads
    best: float  # geometric mean over all workloads of the best ratio so far, at least 1


def moments(
    ranked: Sequence[RankedTimes],
    verdicts: Sequence[Judged],
    proposals: Sequence[BriefProposal],
    basis: Basis,
    most: int,
) -> list[Moment]:
    """Return kernels that passed in the order of their evaluation, with the best so far after each.

    These are the first kernel, those that raised the best so far, and about `most` of the others, evenly spaced.
    """
    judged = [one.created for one in verdicts]
    asked = [one.created for one in proposals]
    tokens = [0, *accumulate(one.tokens for one in proposals)]
    usd = [0.0, *accumulate(one.usd for one in proposals)]
    timed, rose = _rises(ranked, basis)
    found, best = [], 1.0
    for place in sorted({*rose, *range(0, len(timed), math.ceil(len(ranked) / most) or 1)}):
        one, best = timed[place], rose.get(place, best)
        at = bisect_right(asked, one.created)
        spent = float(bisect_right(judged, one.created)), float(tokens[at]), usd[at]
        ratios = [ratio for _, ratio in ratios_of(one, basis)]
        found.append(Moment(one.kernel_id, spent, math.prod(ratios) ** (1 / len(ratios)), best))
    return found


def rises(ranked: Sequence[RankedTimes], verdicts: Sequence[Judged], basis: Basis) -> Curve:
    """Return the best so far after the first and the last kernel that passed, and whenever it rose.

    Each item is the number of evaluations up to the kernel and the geometric mean over all workloads, as in `moments`.
    """
    judged = [one.created for one in verdicts]
    timed, rose = _rises(ranked, basis)
    if timed:
        rose.setdefault(len(timed) - 1, next(reversed(rose.values())))
    return tuple((float(bisect_right(judged, timed[place].created)), best) for place, best in rose.items())


def _rises(ranked: Sequence[RankedTimes], basis: Basis) -> tuple[Sequence[RankedTimes], dict[int, float]]:
    """Return the kernels with times in the order of evaluation, and the best so far by the place of the kernel.

    The best so far is given for the first kernel and for those that raised it.
    """
    timed = sorted((one for one in ranked if one.times), key=attrgetter("created"))
    sets = dict.fromkeys(one.workloads for one in ranked if one.times)
    best = dict.fromkeys((workload for text in sets for workload in text.split("\n")), 1.0)
    rose = dict.fromkeys(range(len(timed[:1])), 1.0)
    for place in sorted(_best_of_their_sets(timed, basis)):
        ratios = dict(ratios_of(timed[place], basis))
        if any(ratio > best[workload] for workload, ratio in ratios.items()):
            best |= {workload: max(best[workload], ratio) for workload, ratio in ratios.items()}
            rose[place] = math.exp(sum(map(math.log, best.values())) / len(best))
    return timed, rose


def _best_of_their_sets(timed: Sequence[RankedTimes], basis: Basis) -> set[int]:
    """Return the places of the kernels that are faster than the basis and all earlier kernels on some workload.

    Kernels are compared with those that were timed on the same set of workloads.
    """
    found = set[int]()
    for places, ratios in _columns(timed, basis):
        best = 1.0
        for place, ratio in zip(places, ratios, strict=True):
            if ratio > best:
                best = ratio
                found.add(place)
    return found


def largest_ratio(ranked: Sequence[RankedTimes], basis: Basis) -> float:
    """Return the largest ratio that any of these kernels reaches on any workload, or 0."""
    return max((max(ratios) for _, ratios in _columns(ranked, basis)), default=0.0)


def _columns(ranked: Sequence[RankedTimes], basis: Basis) -> Iterator[tuple[Sequence[int], Iterable[float]]]:
    """Yield the places and the ratios of the kernels for each workload in each set of workloads.

    Whole columns of the packed times are divided, because there may be tens of thousands of kernels.
    """
    sets = defaultdict[str, list[int]](list)
    for place, one in enumerate(ranked):
        if one.times:
            sets[one.workloads].append(place)
    for text, places in sets.items():
        figures, workloads = array("d", b"".join([ranked[place].times for place in places])), text.split("\n")
        for number, workload in enumerate(workloads):
            start, step = FIGURES * number, FIGURES * len(workloads)
            first_us = basis.first_us and repeat(basis.first_us.get(workload, 0.0))
            yield places, map(truediv, first_us or figures[start + BASELINE :: step], figures[start + MEDIAN :: step])


def ratios_of(one: RankedTimes, basis: Basis) -> list[tuple[str, float]]:
    """Return the ratio on each workload, from the packed times, because there may be tens of thousands of kernels."""
    timed = zip(one.workloads.split("\n"), TIMES.iter_unpack(one.times), strict=bool(one.times))
    if basis.first_us is None:
        return [(workload, baseline_us / us) for workload, (us, _, _, baseline_us, _) in timed]
    first = basis.first_us
    return [(workload, first.get(workload, us) / us) for workload, (us, _, _, _, _) in timed]


def sparkline(points: Sequence[tuple[float, float]], columns: int = COLUMNS, *, unicode: bool = True) -> str:
    """Return a curve one line high: the last value at or before each of some evenly spaced places, low to high."""
    if not points:
        return ""
    blocks = BLOCKS if unicode else PLAIN
    places, values = [x for x, _ in points], [y for _, y in points]
    low, high = min(values), max(values)
    drawn = []
    for column in range(columns):
        at = places[0] + (places[-1] - places[0]) * column / max(1, columns - 1)
        value = values[bisect_right(places, at * (1 + 1e-12)) - 1]
        drawn.append(blocks[round((value - low) / (high - low) * (len(blocks) - 1)) if high > low else 0])
    return "".join(drawn)
