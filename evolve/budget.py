"""Budget: what a run has spent, what is left, and which limit ends it, computed from the records in the archive."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cached_property

from archive.proposals import Budget, Cost, Leg, Run
from archive.store import Store
from archive.summaries import BriefEvaluation, BriefProposal
from evolve.selection.population import Champion

IDLE_SECONDS = 900.0  # a leg without any record for longer than this had ended


class Ended(StrEnum):
    """The reason why a run ends."""

    EVALS = "evals"
    TOKENS = "tokens"
    USD = "usd"
    SECONDS = "seconds"
    LIGHT = "light"  # every champion is as near to the speed of light as requested
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
        """Whether anything was spent. A run of a campaign whose budget went to other ops takes less than a second."""
        return bool(self.evals or self.tokens) or self.seconds >= 1

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


@dataclass(frozen=True)
class Spending:
    """A moment at which a run spent something, and the kernel whose verdict the run has since then."""

    moment: float
    spent: Spent
    kernel_id: str = ""  # only a kernel that this run proposed


@dataclass(frozen=True)
class History:
    """All that the archive holds of one op's runs on one device, each part oldest first."""

    legs: Sequence[Leg]
    proposals: Sequence[BriefProposal]
    evaluations: Sequence[BriefEvaluation]

    @cached_property
    def judged(self) -> dict[str, BriefEvaluation]:
        """The first verdict on each kernel: the later ones are confirmations."""
        return {evaluation.kernel_id: evaluation for evaluation in reversed(self.evaluations)}

    @cached_property
    def of_run(self) -> Mapping[str, Sequence[BriefProposal]]:
        """The proposals of each run."""
        found = defaultdict[str, list[BriefProposal]](list)
        for proposal in self.proposals:
            found[proposal.run].append(proposal)
        return found

    @cached_property
    def in_force(self) -> dict[str, BriefEvaluation]:
        """The last verdict on each kernel."""
        return {evaluation.kernel_id: evaluation for evaluation in self.evaluations}

    def began_between(self, start: float, end: float) -> Sequence[BriefEvaluation]:
        """Return the evaluations that began then, both moments included."""
        first = bisect_left(self.evaluations, start, key=_created)
        return self.evaluations[first : bisect_right(self.evaluations, end, key=_created)]

    def is_of_another(self, kernel_id: str, run: str, leg: Leg) -> bool:
        """Return whether a kernel came up after this leg had begun, in another run beside it."""
        proposals = self._of_kernel.get(kernel_id, ())
        if any(not proposal.run or proposal.created < leg.started for proposal in proposals):
            return False
        return any(proposal.run != run for proposal in proposals)

    @cached_property
    def _of_kernel(self) -> Mapping[str, Sequence[BriefProposal]]:
        found = defaultdict[str, list[BriefProposal]](list)
        for proposal in self.proposals:
            found[proposal.kernel_id].append(proposal)
        return found


def history(store: Store, op: str, device_key: str) -> History:
    runs = {run.id for run in store.find(Run, op) if run.device == device_key}
    return History(
        [leg for leg in store.find(Leg, op) if leg.run in runs],
        store.find(BriefProposal, op),
        store.find(BriefEvaluation, op, device=device_key),
    )


def paid(cost: Cost) -> Spent:
    return Spent(tokens=cost.tokens, usd=cost.usd)


def given(verdict: BriefEvaluation) -> float:
    """The moment at which an evaluation ended; `created` is when it began."""
    return verdict.created + verdict.seconds


def steps(run: str, past: History) -> list[Spending]:
    """Every proposal when it came, and every verdict when it was given, in the order of these moments."""
    found = [
        Spending(moment, Spent(evals, tokens, usd), kernel_id)
        for moment, kernel_id, evals, tokens, usd in _steps(run, past)
    ]
    return sorted(found, key=lambda step: step.moment)


def spent(run: str, past: History) -> Spent:
    """What a run has spent. The time of a run that was killed ends with the last record in each leg."""
    evals, tokens, usd = 0, 0, 0.0
    for _, _, more_evals, more_tokens, more_usd in _steps(run, past):
        evals, tokens, usd = evals + more_evals, tokens + more_tokens, usd + more_usd
    return Spent(evals, tokens, usd, sum(end - leg.started for leg, end in _stretches(run, past)))


def _steps(run: str, past: History) -> Iterator[tuple[float, str, int, int, float]]:
    """Yield the moment, the kernel whose verdict is there, and the evaluations, tokens and dollars of each step."""
    known = set[str]()
    for proposal in past.of_run.get(run, ()):
        kernel_id = proposal.kernel_id
        first = past.judged.get(kernel_id)
        if kernel_id and kernel_id not in known and not _before(first, proposal):
            yield proposal.created, "", 0, proposal.tokens, proposal.usd  # and an evaluation, once it is made
            if first:
                yield given(first), kernel_id, 1, 0, 0.0
        else:
            yield proposal.created, kernel_id if first else "", 1, proposal.tokens, proposal.usd
        known.add(kernel_id)
    for verdict in _not_proposed(run, past, known):
        yield given(verdict), "", 1, 0, 0.0


def left(budget: Budget, gone: Spent) -> Budget:
    """The same limits, less what is spent."""
    return replace(budget, **{name: max(0, limit - getattr(gone, name)) for name, limit in _limits(budget).items()})


def ended(budget: Budget, gone: Spent) -> Ended | None:
    """Return the limit that is reached, or None."""
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


def _created(record: BriefEvaluation) -> float:
    return record.created


def _before(verdict: BriefEvaluation | None, proposal: BriefProposal) -> bool:
    return verdict is not None and given(verdict) < proposal.created


def _not_proposed(run: str, past: History, own: set[str]) -> Iterator[BriefEvaluation]:
    """Yield verdicts that this run gave on kernels it did not propose: shipped ones, and those left by other runs."""
    for leg, end in _stretches(run, past):
        for verdict in past.began_between(leg.started, min(end, _next(leg, past.legs))):
            first = past.judged[verdict.kernel_id] is verdict
            if first and verdict.kernel_id not in own and not past.is_of_another(verdict.kernel_id, run, leg):
                yield verdict


def _stretches(run: str, past: History) -> list[tuple[Leg, float]]:
    """Return each leg of a run with its end. Where that was not recorded, it is the last activity of the leg."""
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
    """Yield the beginning and the end of each wait for a reply or a verdict since this leg began."""
    mine = past.of_run.get(run, ())
    own, over = {proposal.kernel_id for proposal in mine}, _next(leg, past.legs)
    for proposal in mine:
        if proposal.created >= leg.started:
            yield proposal.created - proposal.seconds, proposal.created
    for verdict in past.began_between(leg.started, math.inf):
        kernel_id = verdict.kernel_id
        if kernel_id in own or (verdict.created < over and not past.is_of_another(kernel_id, run, leg)):
            yield verdict.created, given(verdict)


def _next(leg: Leg, legs: Iterable[Leg]) -> float:
    return min((other.started for other in legs if other.started > leg.started), default=math.inf)
