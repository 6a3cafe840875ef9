"""Families of kernels that differ in their knobs alone, and what each setting promises."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from archive.binding import Point
from archive.records import Measurement
from evolve.op_on_device import point
from evolve.proposers.tuner.space import Programs, Setting, Space, setting_of, space_of
from evolve.proposers.tuner.surrogate import Beliefs, Shape, beliefs, distances, expected_gain, fitted, likeness
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


TAME = 1.5  # beyond the best log time, differences count for less and less: nobody asks how slow the slow ones are
MOST_SEEN = 128  # programs that beliefs rest on; of more, some of the slow ones are left out
DOUBT = 0.5  # failures that it takes to be as sure as not that they have a cause in common
WORTHWHILE = 0.03  # gain in log time: who follows smaller ones stays in the first good region that was met
UNSURE = 1e-6  # what a setting is worth for being unknown, so that there is a choice where no gain is expected


@dataclass(frozen=True)
class View:
    """One workload: the programs that were seen there, with their log times."""

    programs: Programs
    choices: tuple[bool, ...]
    shape: Shape
    seen: torch.Tensor
    values: torch.Tensor
    cross: torch.Tensor  # how like each program is to each one that was seen
    bar: float  # the log time to beat
    room: float  # how far below it the speed of light lies

    @cached_property
    def beliefs(self) -> Beliefs:
        return beliefs(self.cross, self.seen, self.values, self.shape.noise)

    def worth(self) -> torch.Tensor:
        """By setting: how much it is expected to gain here beyond what is worthwhile, in log time."""
        held = self.beliefs
        gain = expected_gain(held, self.bar - WORTHWHILE).clamp_max(self.room) + UNSURE * held.spread
        gain[self.seen] = 0.0
        return torch.where(self.programs.of >= 0, gain[self.programs.of.clamp_min(0)], 0.0)

    def believing(self, setting: int) -> "View":
        """As if the setting had been measured, and had come out as it is expected to."""
        program = self.programs.of[setting : setting + 1]
        if program < 0 or program in self.seen:
            return self
        value = self.beliefs.mean[program]
        column = likeness(distances(self.programs.places, self.programs.places[program], self.choices), self.shape)
        return replace(
            self,
            seen=torch.cat([self.seen, program]),
            values=torch.cat([self.values, value]),
            cross=torch.cat([self.cross, column], 1),
            bar=min(self.bar, float(value)),
        )


@dataclass(frozen=True)
class Outlook:
    """A family's space with what is expected of it."""

    family: Family
    space: Space
    views: tuple[View, ...]
    sound: torch.Tensor  # by setting: how likely it is to pass at all
    taken: frozenset[int]

    @property
    def exhausted(self) -> bool:
        return len(self.taken) == len(self.space.settings)

    def worth(self) -> torch.Tensor:
        """By setting: the gain expected over all workloads, in log time; -inf for what was tried."""
        total = torch.zeros(len(self.space.settings), dtype=torch.float64)
        for view in self.views:
            total += view.worth()
        total *= self.sound
        total[list(self.taken)] = -math.inf
        return total

    def apartness(self) -> torch.Tensor:
        """By setting: the less it has in common with any that was tried, the higher; -inf for what was tried."""
        middles = self.space.middles
        common = torch.zeros(len(middles), dtype=torch.float64)
        for setting in self.taken:
            common += torch.isclose(middles, middles[setting]).sum(1, dtype=torch.float64).square()
        common[list(self.taken)] = math.inf
        return -common

    def without(self, setting: int) -> "Outlook":
        return replace(self, taken=self.taken | {setting})

    def believing(self, setting: int) -> "Outlook":
        return replace(self.without(setting), views=tuple(view.believing(setting) for view in self.views))


def space_for(family: Family, points: Mapping[str, Point]) -> Space:
    """The space of a family's settings; where it is too large to list, what lies near its fastest is part of it."""
    near = [setting_of(candidate.kernel) for candidate in family.leaders()]
    return space_of(family.tried[0].kernel, tuple(points.values()), family.settings, near)


def outlook(family: Family, space: Space, bars: Sequence[Measurement | None]) -> Outlook:
    """Fit what was seen; `bars` are the times to beat, in the order of the space's workloads."""
    tried = [space.numbers[setting] for setting in family.settings]
    views = [
        _view(family, space, tried, programs, bar) for bar, programs in zip(bars, space.programs, strict=True) if bar
    ]
    return Outlook(family, space, tuple(filter(None, views)), _sound(family, space, tried), frozenset(tried))


def _view(family: Family, space: Space, tried: list[int], programs: Programs, bar: Measurement) -> View | None:
    logs: dict[int, list[float]] = {}
    for setting, candidate in zip(tried, family.tried, strict=True):
        us = times_us(candidate).get(bar.workload)
        program = int(programs.of[setting])
        if us is not None and program >= 0:
            logs.setdefault(program, []).append(math.log(us))
    if not logs:
        return None
    fastest = sorted(logs, key=lambda program: min(logs[program]))
    kept = fastest[: MOST_SEEN // 2] + fastest[MOST_SEEN // 2 :][:: math.ceil(2 * len(fastest) / MOST_SEEN)]
    seen = torch.tensor(kept)
    values = _tamed(torch.tensor([sum(logs[p]) / len(logs[p]) for p in kept], dtype=torch.float64))
    apart = distances(programs.places, programs.places[seen], space.choices)
    shape = fitted(apart[:, seen], values)
    room = math.log(bar.median_us / bar.floor_us) if bar.floor_us else math.inf
    return View(
        programs, space.choices, shape, seen, values, likeness(apart, shape), math.log(bar.median_us), max(room, 0.0)
    )


def _tamed(values: torch.Tensor) -> torch.Tensor:
    limit = values.min() + TAME
    return torch.where(values > limit, limit + torch.log1p((values - limit).clamp_min(0)), values)


def _sound(family: Family, space: Space, tried: list[int]) -> torch.Tensor:
    """How likely each setting is to pass: what fails, fails mostly for the values of one knob or of two together."""
    places = space.places
    failed = torch.tensor([not candidate.evaluation.passed for candidate in family.tried], dtype=torch.float64)
    risk = torch.zeros(len(places), dtype=torch.float64)
    if failed.any():
        same = (places[:, None, :] == places[None, tried, :]).to(torch.float64)
        knobs = range(places.shape[1])
        for both in ((same[..., i] * same[..., j]) for i, j in itertools.combinations_with_replacement(knobs, 2)):
            risk = torch.maximum(risk, both @ failed / (both.sum(1) + DOUBT))
    return 1 - risk
