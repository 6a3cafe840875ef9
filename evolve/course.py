"""How good a run was at every moment, and what it had spent by then: what runs are compared by. All pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.proposals import Run
from archive.records import Evaluation
from evolve import budget
from evolve.budget import History, Spent

AXES = ("evals", "tokens", "usd")
SHARES = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Point:
    """What was spent up to a moment, and how good the best kernels were then."""

    spent: Spent
    # Geometric mean over the workloads of the speedup over PyTorch, 1 where PyTorch is faster; None until one passed.
    quality: float | None


@dataclass(frozen=True)
class Course:
    """One run from its beginning to its end."""

    run: Run
    points: tuple[Point, ...]  # in the order of time

    @property
    def spent(self) -> Spent:
        return self.points[-1].spent if self.points else Spent()

    def quality(self, axis: str, amount: float) -> float | None:
        """The best so far when so much was spent."""
        reached = [point.quality for point in self.points if getattr(point.spent, axis) <= amount]
        return reached[-1] if reached else None


def course(run: Run, past: History, goals: Mapping[str, float] | None = None) -> Course:
    """Only kernels that the run proposed count, and of those only the ones whose verdict still holds.

    `goals` stand for PyTorch's times where these are no measure: on the emulated device.
    """
    in_force = {evaluation.kernel_id: evaluation for evaluation in past.evaluations}
    keys, best = workloads(past.evaluations), dict[str, float]()
    spent, points = Spent(), []
    for step in budget.steps(run.id, past):
        spent += step.spent
        verdict = in_force.get(step.kernel_id)
        for m in verdict.measurements if verdict and verdict.passed else ():
            speedup = goals[m.workload] / m.median_us if goals else m.speedup
            best[m.workload] = max(best.get(m.workload, 1.0), speedup)
        mean = sum(math.log(best.get(key, 1.0)) for key in keys) / max(1, len(keys))
        points.append(Point(spent, math.exp(mean) if best else None))
    return Course(run, tuple(points))


def workloads(evaluations: Iterable[Evaluation]) -> list[str]:
    """All that kernels of the op were timed on, or refused."""
    # What was refused stands there with the reason behind it.
    refused = ([skipped.partition(": ")[0] for skipped in e.skipped] for e in evaluations if e.passed)
    timed = ([m.workload for m in e.measurements] for e in evaluations if e.passed)
    named = [*timed, *refused]
    return list(dict.fromkeys(key for keys in named for key in keys))


def slowest(past: History, runs: Iterable[str]) -> dict[str, float]:
    """The longest time on each workload that a kernel of these runs took."""
    wanted = set(runs)
    made = {proposal.kernel_id for proposal in past.proposals if proposal.run in wanted}
    found: dict[str, float] = {}
    for evaluation in past.evaluations:
        for m in evaluation.measurements if evaluation.kernel_id in made else ():
            found[m.workload] = max(found.get(m.workload, 0.0), m.median_us)
    return found


def common(courses: Sequence[Course], axis: str) -> float:
    """The most that every one of them has spent."""
    return min((float(getattr(one.spent, axis)) for one in courses), default=0.0)


def compared(courses: Sequence[Course], axis: str) -> list[tuple[float, list[float | None]]]:
    """The best so far of each run, at shares of the budget that all of them have spent."""
    most = common(courses, axis)
    amounts = [math.ceil(share * most) if axis != "usd" else share * most for share in SHARES]
    return [(amount, [one.quality(axis, amount) for one in courses]) for amount in amounts] if most > 0 else []


def thinned(one: Course, axis: str) -> list[tuple[float, float]]:
    """The points at which the quality changes, and both ends: for a plot."""
    points = [(float(getattr(point.spent, axis)), point.quality or 1.0) for point in one.points]
    kept = [(0.0, 1.0)]
    for amount, quality in points:
        if quality != kept[-1][1]:
            kept.append((amount, quality))
    return [*kept, points[-1]] if points else kept
