"""What a run has spent, what is left of its budget, and which limit ends it: all told from the archive's records."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum

from archive.proposals import Budget, Cost, Leg, Proposal, Run
from archive.records import Evaluation
from archive.store import Store
from evolve.selection.population import Champion

IDLE_SECONDS = 900.0  # a leg in which nothing happened for longer than this was over by then


class Ended(StrEnum):
    """Why a run does not go on."""

    EVALS = "evals"
    TOKENS = "tokens"
    USD = "usd"
    SECONDS = "seconds"
    LIGHT = "light"  # every champion is as near to the speed of light as was asked for
    NOTHING = "nothing"  # nothing is left to try


@dataclass(frozen=True)
class Spent:
    """What a run, or a part of it, has cost."""

    evals: int = 0  # evaluations, and proposals that gave nothing to evaluate
    tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0

    @property
    def something(self) -> bool:
        """Not so where a run was begun and the budget went elsewhere: that takes less than a second."""
        return bool(self.evals or self.tokens) or self.seconds >= 1

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Spending:
    """A moment at which a run spent something, and the kernel whose verdict it has known since."""

    moment: float
    spent: Spent
    kernel_id: str = ""  # only one that this run proposed


@dataclass(frozen=True)
class History:
    """All that the archive holds of one op's runs on one device, each part oldest first."""

    legs: Sequence[Leg]
    proposals: Sequence[Proposal]
    evaluations: Sequence[Evaluation]

    def judged(self) -> dict[str, Evaluation]:
        """The first verdict on each kernel: the later ones are confirmations."""
        return {evaluation.kernel_id: evaluation for evaluation in reversed(self.evaluations)}


def history(store: Store, op: str, device_key: str) -> History:
    runs = {run.id for run in store.find(Run, op) if run.device == device_key}
    return History(
        [leg for leg in store.find(Leg, op) if leg.run in runs],
        store.find(Proposal, op),
        [evaluation for evaluation in store.find(Evaluation, op) if evaluation.device.key == device_key],
    )


def paid(cost: Cost) -> Spent:
    return Spent(tokens=cost.tokens, usd=cost.usd)


def given(verdict: Evaluation) -> float:
    """The moment; `created` is when the evaluation began."""
    return verdict.created + verdict.seconds


def steps(run: str, past: History) -> list[Spending]:
    """Every proposal when it came, and every verdict when it was given, in the order of these moments."""
    judged, known = past.judged(), set[str]()
    found = []
    for proposal in (proposal for proposal in past.proposals if proposal.run == run):
        first, cost = judged.get(proposal.kernel_id), paid(proposal.cost)
        if proposal.kernel and proposal.kernel_id not in known and not _before(first, proposal):
            found.append(Spending(proposal.created, cost))  # and a try, once it is evaluated
            found += [Spending(given(first), Spent(evals=1), proposal.kernel_id)] if first else []
        else:
            found.append(Spending(proposal.created, cost + Spent(evals=1), proposal.kernel_id if first else ""))
        known.add(proposal.kernel_id)
    found += [Spending(given(verdict), Spent(evals=1)) for verdict in _strangers(run, past, judged, known)]
    return sorted(found, key=lambda step: step.moment)


def spent(run: str, past: History) -> Spent:
    """Also of a run that was killed: its time ends with the last thing that happened in each leg."""
    seconds = sum(end - leg.started for leg, end in _stretches(run, past))
    return sum((step.spent for step in steps(run, past)), Spent(seconds=seconds))


def left(budget: Budget, gone: Spent) -> Budget:
    """The same limits, less what is spent."""
    return replace(budget, **{name: max(0, limit - getattr(gone, name)) for name, limit in _limits(budget).items()})


def ended(budget: Budget, gone: Spent) -> Ended | None:
    """The limit that is reached, if any."""
    return next((Ended(name) for name, limit in _limits(budget).items() if getattr(gone, name) >= limit), None)


def nearest(budget: Budget, gone: Spent) -> tuple[Ended, float] | None:
    """The limit that is nearest to its end, and the share of it that is gone."""
    shares = [(Ended(name), getattr(gone, name) / max(limit, 1e-9)) for name, limit in _limits(budget).items()]
    return max(shares, key=lambda share: share[1], default=None)


def at_light(champions: Iterable[Champion], workloads: Iterable[str], share: float) -> bool:
    """Whether every workload has a champion that is as near to the speed of light as this."""
    reached = {champion.workload: champion.measurement.share_of_light or 0.0 for champion in champions}
    return all(reached.get(workload, 0.0) >= share for workload in workloads)


def _limits(budget: Budget) -> dict[str, float]:
    limits: Mapping[str, float | None] = {name.name: getattr(budget, name.name) for name in fields(Spent)}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _before(verdict: Evaluation | None, proposal: Proposal) -> bool:
    return verdict is not None and given(verdict) < proposal.created


def _strangers(run: str, past: History, judged: Mapping[str, Evaluation], own: set[str]) -> Iterator[Evaluation]:
    """Verdicts that this run gave on kernels it did not propose: the shipped ones, and what others had left over."""
    for leg, end in _stretches(run, past):
        theirs = _since(run, leg, past)
        for kernel_id, verdict in judged.items():
            if kernel_id not in own | theirs and leg.started <= verdict.created <= min(end, _next(leg, past.legs)):
                yield verdict


def _stretches(run: str, past: History) -> list[tuple[Leg, float]]:
    """From when to when a run was alive: each leg, and where nobody says when it ended, the last thing in it."""
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
    """From when to when a reply or a verdict was waited for, since this leg began."""
    mine = [proposal for proposal in past.proposals if proposal.run == run]
    own, theirs, over = {proposal.kernel_id for proposal in mine}, _since(run, leg, past), _next(leg, past.legs)
    for proposal in mine:
        if proposal.created >= leg.started:
            yield proposal.created - proposal.cost.seconds, proposal.created
    for verdict in past.evaluations:
        stranger = verdict.kernel_id not in theirs and verdict.created < over
        if verdict.created >= leg.started and (verdict.kernel_id in own or stranger):
            yield verdict.created, given(verdict)


def _since(run: str, leg: Leg, past: History) -> set[str]:
    """Kernels that came up after this leg had begun, in other runs beside it: their verdicts are none of ours."""
    before = {p.kernel_id for p in past.proposals if not p.run or p.created < leg.started}
    return {p.kernel_id for p in past.proposals if p.run not in ("", run)} - before


def _next(leg: Leg, legs: Iterable[Leg]) -> float:
    return min((other.started for other in legs if other.started > leg.started), default=math.inf)
