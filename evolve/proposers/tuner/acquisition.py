"""Acquisition: families of kernels that differ only in their knobs, and the expected improvement of each setting."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from archive.binding import Point
from archive.kernel import Kernel
from archive.records import Measurement
from archive.summaries import Timing
from evolve.op_on_device import point
from evolve.proposers.tuner.space import Programs, Setting, Space, setting_of, space_of
from evolve.proposers.tuner.surrogate import (
    Covariance,
    Posterior,
    correlation,
    distances,
    expected_improvement,
    fit_covariance,
    posterior,
)
from evolve.request import Attempt, Candidate, ReadsKernels, Request

EXPLORATION = 0.5  # assumed gain in log time after one trial; divided by the root of the number of trials
# difference of log times from the best above which they are compressed, because differences between slow settings do
# not matter
TAME = 1.5
MAX_SEEN = 128  # largest number of programs in a surrogate model; if there are more, some of the slow ones are left out
DOUBT = 0.5  # number of failures at which a common cause has a probability of one half
WORTHWHILE = 0.03  # smallest improvement in log time; a smaller one would keep the search in the first good region
UNSURE = 1e-6  # value of one standard deviation, which decides if no improvement is expected

Timed = Measurement | Timing


@dataclass(frozen=True)
class Family:
    """The tried settings of kernels that differ only in their knobs, oldest first."""

    id: str
    tried: tuple[Attempt, ...]
    read: ReadsKernels = field(repr=False, compare=False)

    @cached_property
    def kernel(self) -> Kernel:
        """One kernel of the family."""
        known = next((candidate.kernel for candidate in self.tried if isinstance(candidate, Candidate)), None)
        return known or next(iter(self.read([self.tried[0].kernel_id]).values()))

    @property
    def settings(self) -> tuple[Setting, ...]:
        return tuple(map(setting_of, self.tried))

    def fastest(self, workload: str) -> Attempt | None:
        """Return the fastest setting on a workload."""
        passed = (candidate for candidate in self.tried if workload in times_us(candidate))
        return min(passed, key=lambda candidate: times_us(candidate)[workload], default=None)

    def leaders(self) -> tuple[Attempt, ...]:
        """Return the settings that are the fastest on at least one workload."""
        workloads = dict.fromkeys(workload for candidate in self.tried for workload in times_us(candidate))
        fastest = (self.fastest(workload) for workload in workloads)
        return tuple({candidate.kernel_id: candidate for candidate in fastest if candidate}.values())

    def gap(self, best: Mapping[str, Timed]) -> float:
        """Return the log ratio of the family's time to the best time, on the workload where the ratio is smallest."""
        return min(
            (
                math.log(us / best[workload].median_us)
                for candidate in self.tried
                for workload, us in times_us(candidate).items()
            ),
            default=math.inf,
        )

    def upper_confidence_bound(self, best: Mapping[str, Timed]) -> float:
        """Return an optimistic estimate of the family's improvement over the best time, in log time."""
        return EXPLORATION / math.sqrt(len(self.tried)) - self.gap(best)


def times_us(candidate: Attempt) -> dict[str, float]:
    """Return the times by workload; empty for a kernel that failed."""
    evaluation = candidate.evaluation
    return {m.workload: m.median_us for m in evaluation.measurements} if evaluation.passed else {}


def all_candidates(request: Request) -> tuple[Attempt, ...]:
    """Return all kernels in the request, oldest first."""
    shown = (*request.tried, *request.population, *request.parents, *request.failures)
    return tuple({candidate.kernel_id: candidate for candidate in shown}.values())


def families(request: Request) -> tuple[Family, ...]:
    """Return the families that have knobs and at least one setting that passed."""
    grouped: dict[str, list[Attempt]] = {}
    for candidate in all_candidates(request):
        if candidate.settings:
            grouped.setdefault(candidate.family, []).append(candidate)
    passed = {name: tried for name, tried in grouped.items() if any(map(times_us, tried))}
    return tuple(Family(name, tuple(tried), request.kernels) for name, tried in passed.items())


def best_measurements(candidates: Iterable[Attempt]) -> dict[str, Timed]:
    """Return the measurement with the shortest time on each workload."""
    best: dict[str, Timed] = {}
    for candidate in candidates:
        for measurement in candidate.evaluation.measurements if candidate.evaluation.passed else ():
            held = best.get(measurement.workload)
            if held is None or measurement.median_us < held.median_us:
                best[measurement.workload] = measurement
    return best


def points(request: Request) -> dict[str, Point]:
    """Return the values at which a plan is evaluated, by workload of the op."""
    device = request.device
    return {w.key: point(request.op, w, device) for w in request.op.workloads(device.kind)}


def space_for(family: Family, points: Mapping[str, Point]) -> Space:
    """Return the space of a family's settings. If it is too large to list, it includes the leaders' neighbours."""
    near = [setting_of(candidate) for candidate in family.leaders()]
    return space_of(family.kernel, tuple(points.values()), family.settings, near)


@dataclass(frozen=True)
class WorkloadModel:
    """A surrogate model of one workload, fitted to the log times of the programs measured there."""

    programs: Programs
    categorical: tuple[bool, ...]
    covariance: Covariance
    seen: torch.Tensor
    values: torch.Tensor
    cross: torch.Tensor  # correlation of each program with each seen program
    best: float  # log time to improve on
    room: float  # distance from the best time to the speed of light, in log time

    @cached_property
    def posterior(self) -> Posterior:
        return posterior(self.cross, self.seen, self.values, self.covariance.noise)

    def expected_improvement(self) -> torch.Tensor:
        """Return the expected improvement of each setting in log time, beyond the least improvement."""
        gain = expected_improvement(self.posterior, self.best - WORTHWHILE).clamp_max(self.room)
        gain += UNSURE * self.posterior.deviation
        gain[self.seen] = 0.0
        return torch.where(self.programs.of >= 0, gain[self.programs.of.clamp_min(0)], 0.0)

    def assuming_mean(self, setting: int) -> "WorkloadModel":
        """Return the model as if the setting had been measured at its predicted mean (the kriging believer)."""
        program = self.programs.of[setting : setting + 1]
        if program < 0 or program in self.seen:
            return self
        value = self.posterior.mean[program]
        apart = distances(self.programs.coordinates, self.programs.coordinates[program], self.categorical)
        return replace(
            self,
            seen=torch.cat([self.seen, program]),
            values=torch.cat([self.values, value]),
            cross=torch.cat([self.cross, correlation(apart, self.covariance)], 1),
            best=min(self.best, float(value)),
        )


@dataclass(frozen=True)
class FamilyModel:
    """The space of a family, with a surrogate model for each workload."""

    family: Family
    space: Space
    workloads: tuple[WorkloadModel, ...]
    feasible: torch.Tensor  # probability that each setting passes
    tried: frozenset[int]

    @property
    def exhausted(self) -> bool:
        return len(self.tried) == len(self.space.settings)

    def expected_improvement(self) -> torch.Tensor:
        """Return the expected improvement of each setting over all workloads, in log time; -inf for tried settings."""
        total = torch.zeros(len(self.space.settings), dtype=torch.float64)
        for model in self.workloads:
            total += model.expected_improvement()
        total *= self.feasible
        total[list(self.tried)] = -math.inf
        return total

    def novelty(self) -> torch.Tensor:
        """Return the distance of each setting from the tried settings; -inf for tried settings."""
        centroids = self.space.centroids
        shared = torch.zeros(len(centroids), dtype=torch.float64)
        for setting in self.tried:
            shared += torch.isclose(centroids, centroids[setting]).sum(1, dtype=torch.float64).square()
        shared[list(self.tried)] = math.inf
        return -shared

    def without(self, setting: int) -> "FamilyModel":
        """Return the model with one setting excluded."""
        return replace(self, tried=self.tried | {setting})

    def assuming_mean(self, setting: int) -> "FamilyModel":
        """Return the model as if the setting had been measured at its predicted mean."""
        models = tuple(model.assuming_mean(setting) for model in self.workloads)
        return replace(self.without(setting), workloads=models)


def fit_family(family: Family, space: Space, best: Sequence[Timed | None]) -> FamilyModel:
    """Fit the surrogate models. `best` holds the measurements to improve on, one per workload of the space."""
    tried = [space.index_of[setting] for setting in family.settings]
    models = [
        _fit_workload(family, space, tried, programs, measurement)
        for measurement, programs in zip(best, space.programs, strict=True)
        if measurement
    ]
    return FamilyModel(family, space, tuple(filter(None, models)), _feasibility(family, space, tried), frozenset(tried))


def _fit_workload(
    family: Family, space: Space, tried: list[int], programs: Programs, best: Timed
) -> WorkloadModel | None:
    log_us: dict[int, list[float]] = {}
    for setting, candidate in zip(tried, family.tried, strict=True):
        us = times_us(candidate).get(best.workload)
        program = int(programs.of[setting])
        if us is not None and program >= 0:
            log_us.setdefault(program, []).append(math.log(us))
    if not log_us:
        return None
    fastest = sorted(log_us, key=lambda program: min(log_us[program]))
    kept = fastest[: MAX_SEEN // 2] + fastest[MAX_SEEN // 2 :][:: math.ceil(2 * len(fastest) / MAX_SEEN)]
    seen = torch.tensor(kept)
    values = _compressed(torch.tensor([sum(log_us[p]) / len(log_us[p]) for p in kept], dtype=torch.float64))
    apart = distances(programs.coordinates, programs.coordinates[seen], space.categorical)
    covariance = fit_covariance(apart[:, seen], values)
    room = math.log(best.median_us / best.floor_us) if best.floor_us else math.inf
    return WorkloadModel(
        programs,
        space.categorical,
        covariance,
        seen,
        values,
        cross=correlation(apart, covariance),
        best=math.log(best.median_us),
        room=max(room, 0.0),
    )


def _compressed(values: torch.Tensor) -> torch.Tensor:
    limit = values.min() + TAME
    return torch.where(values > limit, limit + torch.log1p((values - limit).clamp_min(0)), values)


def _feasibility(family: Family, space: Space, tried: list[int]) -> torch.Tensor:
    """Return the probability that each setting passes. Failures are attributed to the values of one or two knobs."""
    coordinates = space.coordinates
    failed = torch.tensor([not candidate.evaluation.passed for candidate in family.tried], dtype=torch.float64)
    risk = torch.zeros(len(coordinates), dtype=torch.float64)
    if failed.any():
        same = (coordinates[:, None, :] == coordinates[None, tried, :]).to(torch.float64)
        knobs = range(coordinates.shape[1])
        for both in ((same[..., i] * same[..., j]) for i, j in itertools.combinations_with_replacement(knobs, 2)):
            risk = torch.maximum(risk, both @ failed / (both.sum(1) + DOUBT))
    return 1 - risk
