"""The offline proposer: the knob tuner, used alone or on kernels that a language model wrote."""

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from archive.kernel import Kernel, Proposal
from archive.library import shipped
from evolve.proposers.tuner.acquisition import (
    Family,
    FamilyModel,
    all_candidates,
    best_measurements,
    families,
    fit_family,
    points,
    space_for,
)
from evolve.proposers.tuner.space import Space, setting_of
from evolve.request import Attempt, Proposer, Request


@dataclass(frozen=True)
class OfflineProposer:
    """A proposer of the settings with the highest expected improvement over all workloads. It needs no model.

    Its operators: `knobs` spreads settings over an unexplored family, `tune` follows the model of a family, and
    `crossover` transfers the fastest setting of another family.
    """

    name: str = "offline"

    def propose(self, request: Request) -> Iterator[Proposal]:
        """Yield settings of all families, or none if every setting has been tried."""
        yield from self.tune(request, None)

    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """Yield at most `most[family]` settings of each family in `most`, or settings of all families if it is None."""
        for choice in choices(request, most):
            yield Proposal(
                op=request.op.name,
                operator=choice.operator,
                proposer=self.name,
                kernel=choice.kernel,
                parents=tuple(dict.fromkeys(parent.kernel_id for parent in choice.parents)),
                run=request.run,
                created=time.time(),
            )


CLOSE = math.log(1.5)  # log ratio to a champion's time, on some workload, up to which a family is tuned
MIN_TUNED, MAX_TUNED = 4, 24  # limits on the settings tried in one family
SHARE_TUNED = 10  # one in this many settings of the space is tried


class Tuner(Protocol):
    def tune(self, request: Request, most: Mapping[str, int] | None) -> Iterator[Proposal]:
        """Yield at most `most[family]` settings of each family in `most`, or settings of all families if it is None."""


@dataclass(frozen=True)
class FinishingProposer:
    """A proposer that first tunes the models' kernels, and asks the models when no kernel is left to tune."""

    models: Proposer
    tuner: Tuner

    @property
    def name(self) -> str:
        return self.models.name

    def propose(self, request: Request) -> Iterator[Proposal]:
        waiting = unfinished(request)
        tuned = list(self.tuner.tune(request, waiting)) if waiting else []
        yield from tuned or self.models.propose(request)


def unfinished(request: Request) -> dict[str, int]:
    """Return the number of settings to try of each family that is close to a champion, except shipped families."""
    tuned_before = _shipped(request.op.name)
    best = best_measurements(all_candidates(request))
    at = points(request)
    waiting = {}
    for family in families(request):
        tuned = len(set(family.settings)) - 1
        if family.id in tuned_before or tuned >= MAX_TUNED or family.gap(best) > CLOSE:
            continue
        others = len(space_for(family, at).settings) - 1
        if (left := min(MAX_TUNED, max(MIN_TUNED, others // SHARE_TUNED), others) - tuned) > 0:
            waiting[family.id] = left
    return waiting


@lru_cache(maxsize=64)
def _shipped(op: str) -> frozenset[str]:
    """Return the shipped families, which were tuned before they were shipped."""
    return frozenset(kernel.family for kernel in shipped(op))


SPREAD_FIRST = 4  # number of settings spread over a family's space before its model is used
AT_ONCE = 4  # number of settings of one family per request; more would be poor choices before these are timed
MAX_FAMILIES = 4
# log ratio to the best time from which a family is not explored, if it is that slow on every workload
FAR_BEHIND = math.log(4)


@dataclass(frozen=True)
class ChosenSetting:
    """A kernel to try, the operator that chose its setting, and its parents."""

    kernel: Kernel
    operator: str
    parents: tuple[Attempt, ...]


@dataclass
class FamilySearch:
    """The search in one family during one request."""

    model: FamilyModel
    most: int  # number of settings still to choose
    gap: float

    @property
    def open(self) -> bool:
        return self.most > 0 and not self.model.exhausted

    @property
    def competitive(self) -> bool:
        return self.gap < FAR_BEHIND

    @property
    def unexplored(self) -> bool:
        """Whether too few settings were tried to use the model."""
        return len(self.model.tried) < SPREAD_FIRST and self.competitive

    @property
    def family(self) -> Family:
        return self.model.family


@dataclass(frozen=True)
class Suggestion:
    """A suggested setting of a family. Its kernel may be in the archive already."""

    search: FamilySearch
    setting: int
    operator: str
    parents: tuple[Attempt, ...]


def choices(request: Request, most: Mapping[str, int] | None = None) -> list[ChosenSetting]:
    """Return up to `request.wanted` choices. `most` limits the families, and the number of choices in each."""
    with _one_thread():
        rng = random.Random(request.seed)
        searches = _searches(request, most)
        chosen: list[ChosenSetting] = []
        while len(chosen) < request.wanted and (suggestion := _suggest(searches, len(chosen), rng)):
            search, kernel = suggestion.search, suggestion.search.model.space.kernel_at(suggestion.setting)
            if kernel.id in request.known:
                search.model = search.model.without(suggestion.setting)  # the kernel is already waiting for evaluation
                continue
            search.model = search.model.assuming_mean(suggestion.setting)
            search.most -= 1
            chosen.append(ChosenSetting(kernel, suggestion.operator, suggestion.parents))
        return chosen


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch in one thread. For such small matrices, more threads do not help, and are slow on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _searches(request: Request, most: Mapping[str, int] | None) -> list[FamilySearch]:
    """Return a search for each of the most promising families that have untried settings."""
    at = points(request)
    best = best_measurements(all_candidates(request))
    allowed = [family for family in families(request) if most is None or most.get(family.id, 0) > 0]
    searches: list[FamilySearch] = []
    for family in sorted(allowed, key=lambda family: (-family.upper_confidence_bound(best), family.id)):
        if len(searches) == MAX_FAMILIES:
            break
        space = space_for(family, at)
        if set(space.settings) > set(family.settings):
            limit = AT_ONCE if most is None else min(AT_ONCE, most[family.id])
            model = fit_family(family, space, [best.get(workload) for workload in at])
            searches.append(FamilySearch(model, limit, family.gap(best)))
    return searches


def _suggest(searches: Sequence[FamilySearch], offered: int, rng: random.Random) -> Suggestion | None:
    """Suggest a setting: alternately explore a new family, cross two families, or use the most promising family."""
    ready = [search for search in searches if search.open]
    unexplored = [search for search in ready if search.unexplored]
    if unexplored and (offered % 2 == 0 or len(unexplored) == len(ready)):
        search = min(unexplored, key=lambda search: len(search.model.tried))
        return _crossover(search, searches) or _most_novel(search, rng)
    if offered % AT_ONCE == AT_ONCE - 1:
        for search in (search for search in ready if search.competitive):
            if crossed := _crossover(search, searches):
                return crossed
    return _most_improvement([search for search in ready if not search.unexplored], rng) if ready else None


def _most_improvement(searches: Sequence[FamilySearch], rng: random.Random) -> Suggestion:
    """Suggest the setting with the highest expected improvement, in log time, of all families."""
    improvements = [search.model.expected_improvement() for search in searches]
    best = max(range(len(searches)), key=lambda number: float(improvements[number].max()))
    search = searches[best]
    # Settings that compile to the same program are drawn in proportion to their number, as in random sampling. Usually
    # their knobs exceed the sizes of the workload.
    weighted = improvements[best] * search.model.space.multiplicity
    setting = _one_of_the_best(weighted, search.model.space, rng)
    return Suggestion(search, setting, "tune", (_nearest(search.model, setting),))


def _most_novel(search: FamilySearch, rng: random.Random) -> Suggestion:
    setting = _one_of_the_best(search.model.novelty(), search.model.space, rng)
    return Suggestion(search, setting, "knobs", (_nearest(search.model, setting),))


def _crossover(search: FamilySearch, searches: Sequence[FamilySearch]) -> Suggestion | None:
    """Suggest a setting that takes the knobs shared with another family from that family's fastest setting."""
    space = search.model.space
    for donor in (donor for other in searches if other is not search for donor in other.family.leaders()):
        given = donor.settings
        for own in search.family.leaders():
            if given.keys() & own.settings.keys():
                carried = {name: given[name] for name, values in space.kernel.plan.knobs if given.get(name) in values}
                setting = space.index_of.get(tuple({**own.settings, **carried}.values()))
                if setting is not None and setting not in search.model.tried:
                    return Suggestion(search, setting, "crossover", (own, donor))
    return None


def _nearest(model: FamilyModel, setting: int) -> Attempt:
    """Return the family's leader whose setting is nearest."""
    space = model.space
    target = space.coordinates[setting]

    def distance(candidate: Attempt) -> float:
        other = space.coordinates[space.index_of[setting_of(candidate)]]
        return float((target - other).abs().sum())

    return min(model.family.leaders(), key=distance)


def _one_of_the_best(scores: torch.Tensor, space: Space, rng: random.Random) -> int:
    """Return a setting with the highest score, drawn in proportion to multiplicity if there are several."""
    best = torch.nonzero(scores == scores.max())[:, 0]
    return int(rng.choices(best.tolist(), space.multiplicity[best].tolist())[0])
