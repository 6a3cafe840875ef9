"""Which settings to try next, and of which families: a few that differ, each worth trying beside the others."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from archive.kernel import Kernel
from evolve.proposers.tuner.outlook import Family, Outlook, bars, everyone, families, outlook, points, space_for
from evolve.proposers.tuner.space import Space, setting_of
from evolve.request import Candidate, Request

SPREAD_FIRST = 4  # settings of a family that are far apart, before anything is concluded from them
AT_ONCE = 4  # settings of one family before their times are looked at: more of them are worth less
MOST_FAMILIES = 4
FAR_BEHIND = math.log(4)  # of the champion, on every workload: nothing is tried only to get to know the family


@dataclass(frozen=True)
class Choice:
    """A setting to try, how it was found, and the kernels that it comes from."""

    kernel: Kernel
    operator: str
    parents: tuple[Candidate, ...]


@dataclass
class FamilySearch:
    """One family during one request."""

    outlook: Outlook
    most: int
    behind: float

    @property
    def open(self) -> bool:
        return self.most > 0 and not self.outlook.exhausted

    @property
    def close(self) -> bool:
        return self.behind < FAR_BEHIND

    @property
    def fresh(self) -> bool:
        """Whether too little is known of the family to conclude anything."""
        return len(self.outlook.taken) < SPREAD_FIRST and self.close

    @property
    def family(self) -> Family:
        return self.outlook.family


@dataclass(frozen=True)
class Pick:
    """A choice before anybody looked whether the archive holds it already."""

    bench: FamilySearch
    setting: int
    operator: str
    parents: tuple[Candidate, ...]


def choices(request: Request, most: Mapping[str, int] | None = None) -> list[Choice]:
    """At most as many as are wanted; `most` limits them to some families, and to so many of each."""
    with _one_thread():
        rng = random.Random(request.seed)
        benches = _benches(request, most)
        chosen: list[Choice] = []
        while len(chosen) < request.wanted and (pick := _pick(benches, len(chosen), rng)):
            bench, kernel = pick.bench, pick.bench.outlook.space.at(pick.setting)
            if kernel.id in request.known:
                bench.outlook = bench.outlook.without(pick.setting)  # it waits for its verdict
                continue
            bench.outlook = bench.outlook.believing(pick.setting)
            bench.most -= 1
            chosen.append(Choice(kernel, pick.operator, pick.parents))
        return chosen


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices so small gain nothing from several threads, and lose much to them where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _benches(request: Request, most: Mapping[str, int] | None) -> list[FamilySearch]:
    """The most promising families of which something is left to try."""
    places = points(request)
    times = bars(everyone(request))
    wanted = [family for family in families(request) if most is None or most.get(family.id, 0) > 0]
    benches: list[FamilySearch] = []
    for family in sorted(wanted, key=lambda family: (-family.promise(times), family.id)):
        if len(benches) == MOST_FAMILIES:
            break
        space = space_for(family, places)
        if set(space.settings) > set(family.settings):
            limit = AT_ONCE if most is None else min(AT_ONCE, most[family.id])
            found = outlook(family, space, [times.get(workload) for workload in places])
            benches.append(FamilySearch(found, limit, family.behind(times)))
    return benches


def _pick(benches: Sequence[FamilySearch], offered: int, rng: random.Random) -> Pick | None:
    """In turn: what is worth most, and whatever lets a new family show what it can do."""
    ready = [bench for bench in benches if bench.open]
    fresh = [bench for bench in ready if bench.fresh]
    if fresh and (offered % 2 == 0 or len(fresh) == len(ready)):
        bench = min(fresh, key=lambda bench: len(bench.outlook.taken))
        return _crossed(bench, benches) or _apart(bench, rng)
    if offered % AT_ONCE == AT_ONCE - 1:
        for bench in (bench for bench in ready if bench.close):
            if crossed := _crossed(bench, benches):
                return crossed
    return _worthiest([bench for bench in ready if not bench.fresh], rng) if ready else None


def _worthiest(benches: Sequence[FamilySearch], rng: random.Random) -> Pick:
    """Expected gains are in log time against the champions, so those of several families compare."""
    worths = [bench.outlook.worth() for bench in benches]
    best = max(range(len(benches)), key=lambda number: float(worths[number].max()))
    bench = benches[best]
    # What many settings come to counts for as many: chance would meet it as often, and mostly it is
    # where the workload has all that the knobs could give it.
    setting = _one_of_the_best(worths[best] * bench.outlook.space.names, bench.outlook.space, rng)
    return Pick(bench, setting, "tune", (_nearest(bench.outlook, setting),))


def _apart(bench: FamilySearch, rng: random.Random) -> Pick:
    setting = _one_of_the_best(bench.outlook.apartness(), bench.outlook.space, rng)
    return Pick(bench, setting, "knobs", (_nearest(bench.outlook, setting),))


def _crossed(bench: FamilySearch, benches: Sequence[FamilySearch]) -> Pick | None:
    """The fastest setting of another family, for the knobs that both have."""
    space = bench.outlook.space
    for donor in (donor for other in benches if other is not bench for donor in other.family.leaders()):
        given = donor.kernel.plan.settings
        for own in bench.family.leaders():
            kept = own.kernel.plan.settings
            if given.keys() & kept.keys():
                carried = own.kernel.with_knobs(
                    {name: given[name] for name, values in own.kernel.plan.knobs if given.get(name) in values}
                )
                setting = space.numbers.get(setting_of(carried))
                if setting is not None and setting not in bench.outlook.taken:
                    return Pick(bench, setting, "crossover", (own, donor))
    return None


def _nearest(held: Outlook, setting: int) -> Candidate:
    """Of the family's fastest the one that a setting is most like."""
    place = held.space.places[setting]

    def far(candidate: Candidate) -> float:
        other = held.space.places[held.space.numbers[setting_of(candidate.kernel)]]
        return float((place - other).abs().sum())

    return min(held.family.leaders(), key=far)


def _one_of_the_best(scores: torch.Tensor, space: Space, rng: random.Random) -> int:
    """Where several are equal, chance decides, as if it drew from all settings by their names."""
    best = torch.nonzero(scores == scores.max())[:, 0]
    return int(rng.choices(best.tolist(), space.names[best].tolist())[0])
