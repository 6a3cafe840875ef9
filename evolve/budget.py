"""A run's budget: the cost so far, the rest, and the limit that ends the run, computed from the archived records."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import TypeVar

from archive.records import Leg
from archive.runs import Budget, Cost, Run
from archive.store import Store
from archive.summaries import BriefEvaluation, BriefProposal
from evolve.selection.population import Champion

B = TypeVar("B", BriefProposal, BriefEvaluation)
IDLE_SECONDS = 900.0  # a leg without a recorded end counts as ended after this long without activity
# Fields of brief records. An op may have tens of thousands of records, and functions written in C read these fields
# twice as fast.
KERNEL_ID, RUN_OF_PROPOSAL, RUN_OF_VERDICT = itemgetter(0), itemgetter(1), itemgetter(5)
CREATED = attrgetter("created")


class Ended(StrEnum):
    """The reason why a run ends."""

    EVALS = "evals"
    TOKENS = "tokens"
    USD = "usd"
    SECONDS = "seconds"
    LIGHT = "light"  # every champion reaches the requested share of the speed of light
    NOTHING = "nothing"  # nothing is left to try


@dataclass(frozen=True)
class Spent:
    """The cost of a run, or of a part of it."""

    evals: int = 0  # number of evaluations, and of replies with kernels that were evaluated before
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def something(self) -> bool:
        """Whether anything was spent. A campaign's run that got no part of the budget takes less than a second."""
        return bool(self.evals or self.tokens) or self.seconds >= 1

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Spending:
    """The cost of a run at one moment, and the kernel whose verdict arrived then."""

    moment: float
    spent: Spent
    kernel_id: str = ""  # empty unless this run proposed the kernel


@dataclass(frozen=True)
class History:
    """The archived records of one op's runs on one device, each sequence from oldest to newest."""

    legs: Sequence[Leg]
    proposals: Sequence[BriefProposal]
    evaluations: Sequence[BriefEvaluation]

    @cached_property
    def judged(self) -> dict[str, BriefEvaluation]:
        """The first verdict on each kernel, by kernel id. Later verdicts are confirmations."""
        backwards = self.evaluations[::-1]
        return dict(zip(map(KERNEL_ID, backwards), backwards, strict=True))

    @cached_property
    def of_run(self) -> Mapping[str, Sequence[BriefProposal]]:
        """The proposals of each run, by run id."""
        return _grouped(self.proposals, RUN_OF_PROPOSAL)

    @cached_property
    def named(self) -> Mapping[str, Sequence[BriefEvaluation]]:
        """The first verdicts on kernels, by the run that gave them. Verdicts of earlier versions name no run."""
        return _grouped(self.judged.values(), RUN_OF_VERDICT)

    @cached_property
    def unnamed(self) -> Sequence[BriefEvaluation]:
        """The first verdicts on kernels that name no run, oldest first."""
        return sorted(self.named.get("", ()), key=CREATED)

    @cached_property
    def in_force(self) -> dict[str, BriefEvaluation]:
        """The latest verdict on each kernel, by kernel id."""
        return dict(zip(map(KERNEL_ID, self.evaluations), self.evaluations, strict=True))

    def is_of_another(self, verdict: BriefEvaluation, run: str, leg: Leg) -> bool:
        """Return whether another, concurrent run gave the verdict.

        Verdicts of earlier versions name no run: such a verdict counts as another run's if that run proposed the kernel
        and no proposal of it is older than this leg.
        """
        if verdict.run:
            return verdict.run != run
        proposals = self._of_unnamed.get(verdict.kernel_id, ())
        if any(not proposal.run or proposal.created < leg.started for proposal in proposals):
            return False
        return any(proposal.run != run for proposal in proposals)

    @cached_property
    def _of_unnamed(self) -> Mapping[str, Sequence[BriefProposal]]:
        """The proposals of each kernel with a verdict that names no run, by kernel id."""
        unnamed = {verdict.kernel_id for verdict in self.evaluations if not verdict.run}
        return _grouped((one for one in self.proposals if one.kernel_id in unnamed), KERNEL_ID)


def history(store: Store, op: str, device_key: str, elsewhere: History | None = None) -> History:
    """Return the records of an op on a device. The proposals are taken from `elsewhere`, another device, if given."""
    runs = {run.id for run in store.find(Run, op) if run.device == device_key}
    return History(
        [leg for leg in store.find(Leg, op) if leg.run in runs],
        elsewhere.proposals if elsewhere else store.find(BriefProposal, op),
        store.find(BriefEvaluation, op, device=device_key),
    )


def _grouped(records: Iterable[B], key: Callable[[B], str]) -> Mapping[str, Sequence[B]]:
    """Group records by key, and keep the given order within each group.

    Neighbouring records often have the same key.
    """
    found = defaultdict[str, list[B]](list)
    for value, some in groupby(records, key):
        found[value].extend(some)
    return found


def paid(cost: Cost) -> Spent:
    return Spent(tokens=cost.tokens, usd=cost.usd)


def given(verdict: BriefEvaluation) -> float:
    """Return the time at which an evaluation ended; `created` is the time at which it began."""
    return verdict.created + verdict.seconds


def steps(run: str, past: History) -> list[Spending]:
    """Return the cost of each proposal and each verdict of a run, in the order in which they arrived."""
    found = [
        Spending(moment, Spent(evals, tokens, usd), kernel_id)
        for moment, kernel_id, evals, tokens, usd in _steps(run, past)
    ]
    return sorted(found, key=lambda step: step.moment)


def spent(run: str, past: History) -> Spent:
    """Return the cost of a run. The time of a leg that was killed ends with its last record."""
    proposals = past.of_run.get(run, ())
    evals = sum([evals for *_, evals in _counted(run, past)]) + sum(1 for _ in _not_proposed(run, past))
    seconds = sum(end - leg.started for leg, end in _stretches(run, past))
    return Spent(evals, sum([one.tokens for one in proposals]), sum([one.usd for one in proposals]), seconds)


def _steps(run: str, past: History) -> Iterator[tuple[float, str, int, int, float]]:
    """Yield the time, the id of the judged kernel, and the evaluations, tokens and dollars of each step."""
    for proposal, first, known, evals in _counted(run, past):
        if first and not known:  # its evaluation counts when it is made
            yield proposal.created, "", 0, proposal.tokens, proposal.usd
            yield given(first), first.kernel_id, evals, 0, 0.0
        else:
            yield proposal.created, first.kernel_id if first else "", evals, proposal.tokens, proposal.usd
    for verdict in _not_proposed(run, past):
        yield given(verdict), "", 1, 0, 0.0


def _counted(run: str, past: History) -> Iterator[tuple[BriefProposal, BriefEvaluation | None, bool, int]]:
    """Yield each proposal of a run, the first verdict on its kernel, whether the kernel was known, and the evaluations.

    A kernel that was known before counts as an evaluation, but a kernel that another run judged does not.
    """
    judged, own, mine = past.judged, set[str](), {"", run}
    for proposal in past.of_run.get(run, ()):
        kernel_id = proposal.kernel_id
        first = judged.get(kernel_id)
        if not kernel_id:
            yield proposal, None, True, 0
        elif kernel_id in own or (first and first.created + first.seconds < proposal.created):
            yield proposal, first, True, 1
        else:
            own.add(kernel_id)
            yield proposal, first, False, 1 if first and first.run in mine else 0


def left(budget: Budget, gone: Spent) -> Budget:
    """Return the rest of a budget after this cost."""
    return replace(budget, **{name: max(0, limit - getattr(gone, name)) for name, limit in _limits(budget).items()})


def ended(budget: Budget, gone: Spent) -> Ended | None:
    """Return the limit that has been reached, or None."""
    return next((Ended(name) for name, limit in _limits(budget).items() if getattr(gone, name) >= limit), None)


def nearest(budget: Budget, gone: Spent) -> tuple[Ended, float] | None:
    """Return the limit that is closest to being reached, and the fraction of it that is spent."""
    shares = [(Ended(name), getattr(gone, name) / max(limit, 1e-9)) for name, limit in _limits(budget).items()]
    return max(shares, key=lambda share: share[1], default=None)


def at_light(champions: Iterable[Champion], workloads: Iterable[str], share: float) -> bool:
    """Return whether every workload has a champion that reaches this share of the speed of light."""
    reached = {champion.workload: champion.measurement.share_of_light or 0.0 for champion in champions}
    return all(reached.get(workload, 0.0) >= share for workload in workloads)


def _limits(budget: Budget) -> dict[str, float]:
    limits: Mapping[str, float | None] = {name.name: getattr(budget, name.name) for name in fields(Spent)}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _began_between(verdicts: Sequence[BriefEvaluation], start: float, end: float) -> Sequence[BriefEvaluation]:
    """Return the verdicts that began between two times, inclusive, oldest first."""
    first = bisect_left(verdicts, start, key=CREATED)
    return verdicts[first : bisect_right(verdicts, end, key=CREATED)]


def _not_proposed(run: str, past: History) -> Iterator[BriefEvaluation]:
    """Yield this run's verdicts on kernels that it did not propose: shipped kernels, and kernels of other runs."""
    own = set(map(KERNEL_ID, past.of_run.get(run, ())))
    yield from (verdict for verdict in past.named.get(run, ()) if verdict.kernel_id not in own)
    for leg, end in _stretches(run, past) if past.unnamed else ():
        for verdict in _began_between(past.unnamed, leg.started, min(end, _next(leg, past.legs))):
            if verdict.kernel_id not in own and not past.is_of_another(verdict, run, leg):
                yield verdict


def _stretches(run: str, past: History) -> list[tuple[Leg, float]]:
    """Return each leg of a run with its end. If no end was recorded, the leg's last activity counts as its end."""
    own = [leg for leg in past.legs if leg.run == run]
    found = []
    for leg in own:
        if leg.ended:
            found.append((leg, leg.ended))
            continue
        last, over = leg.started, _next(leg, own)
        for begin, end in sorted(_activity(run, leg, past)):
            if end < over and begin <= last + IDLE_SECONDS:
                last = max(last, end)
        found.append((leg, last))
    return found


def _activity(run: str, leg: Leg, past: History) -> Iterator[tuple[float, float]]:
    """Yield the start and the end of each wait for a reply or a verdict since this leg began."""
    mine = past.of_run.get(run, ())
    own, over = {proposal.kernel_id for proposal in mine}, _next(leg, past.legs)
    for proposal in mine:
        if proposal.created >= leg.started:
            yield proposal.created - proposal.seconds, proposal.created
    for verdict in _began_between(past.evaluations, leg.started, math.inf):
        ours = verdict.run == run or (not verdict.run and verdict.kernel_id in own)
        if ours or (verdict.created < over and not past.is_of_another(verdict, run, leg)):
            yield verdict.created, given(verdict)


def _next(leg: Leg, legs: Iterable[Leg]) -> float:
    return min((other.started for other in legs if other.started > leg.started), default=math.inf)
