"""What a request tells about each family of kernels: which settings were tried, and what came of them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from archive.binding import Point
from archive.records import Measurement
from evolve.op_on_device import point
from evolve.proposers.tuner.space import Setting, setting_of
from evolve.request import Candidate, Request

CURIOSITY = 0.5  # how much faster, in log time, a family may become that was tried once; less the more it was


@dataclass(frozen=True)
class Family:
    """All that was tried of one genome, oldest first."""

    id: str
    tried: tuple[Candidate, ...]

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(setting_of(candidate.kernel) for candidate in self.tried)

    def best(self, workload: str) -> Candidate | None:
        """The fastest on a workload."""
        passed = (candidate for candidate in self.tried if workload in times_us(candidate))
        return min(passed, key=lambda candidate: times_us(candidate)[workload], default=None)

    def leaders(self) -> tuple[Candidate, ...]:
        """The fastest on any workload."""
        workloads = dict.fromkeys(workload for candidate in self.tried for workload in times_us(candidate))
        best = (self.best(workload) for workload in workloads)
        return tuple({candidate.kernel.id: candidate for candidate in best if candidate}.values())

    def behind(self, bars: Mapping[str, Measurement]) -> float:
        """How far off the champion it stays, in log time, where it comes nearest."""
        return min(
            (
                math.log(us / bars[workload].median_us)
                for candidate in self.tried
                for workload, us in times_us(candidate).items()
            ),
            default=math.inf,
        )

    def promise(self, bars: Mapping[str, Measurement]) -> float:
        return CURIOSITY / math.sqrt(len(self.tried)) - self.behind(bars)


def times_us(candidate: Candidate) -> dict[str, float]:
    """By workload; nothing where it failed."""
    verdict = candidate.evaluation
    return {m.workload: m.median_us for m in verdict.measurements} if verdict.passed else {}


def everyone(request: Request) -> tuple[Candidate, ...]:
    """Every kernel that the request shows, oldest first."""
    shown = (*request.tried, *request.population, *request.parents, *request.failures)
    return tuple({candidate.kernel.id: candidate for candidate in shown}.values())


def families(request: Request) -> tuple[Family, ...]:
    """Those with knobs of which some setting passed."""
    grouped: dict[str, list[Candidate]] = {}
    for candidate in everyone(request):
        if candidate.kernel.plan.knobs:
            grouped.setdefault(candidate.kernel.family, []).append(candidate)
    passed = {name: tried for name, tried in grouped.items() if any(map(times_us, tried))}
    return tuple(Family(name, tuple(tried)) for name, tried in passed.items())


def bars(candidates: Iterable[Candidate]) -> dict[str, Measurement]:
    """The best known on each workload."""
    best: dict[str, Measurement] = {}
    for candidate in candidates:
        for measurement in candidate.evaluation.measurements if candidate.evaluation.passed else ():
            held = best.get(measurement.workload)
            if held is None or measurement.median_us < held.median_us:
                best[measurement.workload] = measurement
    return best


def points(request: Request) -> dict[str, Point]:
    """Every workload of the op as a plan sees it."""
    device = request.device
    return {w.key: point(request.op, w, device) for w in request.op.workloads(device.kind)}
