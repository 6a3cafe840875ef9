"""How the best kernel of an op improved: after how many evaluations, tokens and dollars, and as a small curve."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import gt, truediv

from archive.summaries import TIMES, BriefEvaluation, BriefProposal, RankedTimes
from evolve.report.basis import Basis
from evolve.selection.population import BASELINE, FIGURES, MEDIAN

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-=+*#@"  # for terminals without Unicode
COLUMNS = 16  # of a small curve


@dataclass(frozen=True)
class Moment:
    """A kernel that passed: what had been spent by then, its ratio to the basis, and the best so far."""

    kernel_id: str
    spent: tuple[float, float, float]  # evaluations, tokens and dollars
    ratio: float  # geometric mean over its workloads
    best: float  # geometric mean over all workloads of the best ratio so far, at least 1


def moments(
    ranked: Sequence[RankedTimes],
    evaluations: Sequence[BriefEvaluation],
    proposals: Sequence[BriefProposal],
    basis: Basis,
    most: int,
) -> list[Moment]:
    """Return kernels that passed in the order of their evaluation, with the best so far after each.

    These are the first, all with which the best so far rose, and of the others at most about `most`, evenly spaced.
    """
    evaluated = [one.created for one in evaluations]
    asked = [one.created for one in proposals]
    tokens = [0, *accumulate(one.tokens for one in proposals)]
    usd = [0.0, *accumulate(one.usd for one in proposals)]
    found = []
    apart = math.ceil(len(ranked) / most)
    for place, (one, best, rose) in enumerate(_best_after_each(ranked, basis)):
        if rose or place % apart == 0:
            at = bisect_right(asked, one.created)
            spent = float(bisect_right(evaluated, one.created)), float(tokens[at]), usd[at]
            ratios = [ratio for _, ratio in ratios_of(one, basis)]
            found.append(Moment(one.kernel_id, spent, math.prod(ratios) ** (1 / len(ratios)), best))
    return found


def rises(
    ranked: Sequence[RankedTimes], evaluations: Sequence[BriefEvaluation], basis: Basis
) -> list[tuple[float, float]]:
    """Return the best so far after the first and the last kernel that passed, and whenever it rose.

    Each is a pair of the number of evaluations by then and the geometric mean over all workloads, as in `moments`.
    """
    evaluated = [one.created for one in evaluations]
    found: list[tuple[float, float]] = []
    last: tuple[RankedTimes, float, bool] | None = None
    for last in _best_after_each(ranked, basis):
        one, best, rose = last
        if rose:
            found.append((float(bisect_right(evaluated, one.created)), best))
    if last and not last[2]:
        found.append((float(bisect_right(evaluated, last[0].created)), last[1]))
    return found


def _best_after_each(ranked: Sequence[RankedTimes], basis: Basis) -> Iterator[tuple[RankedTimes, float, bool]]:
    """Yield each kernel with times in the order of evaluation, the best so far, and whether it is the first or rose.

    Compares whole columns of the packed times, because there may be tens of thousands of kernels.
    """
    keys = {one.workloads: one.workloads.split("\n") for one in ranked if one.times}
    ratios_to_basis = _divided(ranked, basis)
    best = dict.fromkeys((workload for own in keys.values() for workload in own), 1.0)
    held = {text: [1.0] * len(own) for text, own in keys.items()}  # the best on the workloads of each set
    mean, rose = 1.0, True
    for one in sorted((one for one in ranked if one.times), key=lambda one: one.created):
        ratios = ratios_to_basis(one)
        if any(map(gt, ratios, held[one.workloads])):
            best |= {key: max(best[key], ratio) for key, ratio in zip(keys[one.workloads], ratios, strict=True)}
            held = {text: [best[workload] for workload in own] for text, own in keys.items()}
            mean, rose = math.exp(sum(map(math.log, best.values())) / len(best)), True
        yield one, mean, rose
        rose = False


def largest_ratios(ranked: Sequence[RankedTimes], basis: Basis) -> dict[str, float]:
    """Return the largest ratio of each kernel with times, by kernel id."""
    ratios_to_basis = _divided(ranked, basis)
    return {one.kernel_id: max(ratios_to_basis(one)) for one in ranked if one.times}


def _divided(ranked: Sequence[RankedTimes], basis: Basis) -> Callable[[RankedTimes], list[float]]:
    """Return what divides the basis by the times of one of these kernels, on each of its workloads in order."""
    first = basis.first_us or {}
    firsts = {
        text: array("d", [first.get(workload, 0.0) for workload in text.split("\n")])
        for text in {one.workloads for one in ranked if one.times}
    }

    def divide(one: RankedTimes) -> list[float]:
        figures = array("d", one.times)
        basis_us = figures[BASELINE::FIGURES] if basis.first_us is None else firsts[one.workloads]
        return list(map(truediv, basis_us, figures[MEDIAN::FIGURES]))

    return divide


def ratios_of(one: RankedTimes, basis: Basis) -> list[tuple[str, float]]:
    """Return the ratio on each workload. Reads the packed times, because there may be tens of thousands."""
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
