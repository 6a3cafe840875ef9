"""Lessons from earlier attempts at an op, as sentences for the next prompt."""

import heapq
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from archive.kernel import Kernel
from archive.records import Outcome
from archive.summaries import EvaluationSummary, ProposalSummary
from evolve.prompting.text import one_line

MOST = 10  # maximum number of sentences
MOST_GAINS, MOST_LOSSES, MOST_KNOBS, MOST_REASONS, MOST_HOPELESS = 3, 2, 2, 2, 1
GAINED, LOST = 1.1, 0.9  # speedups over the parent above which a gain counts, and below which a loss counts
TELLING = 1.1  # smallest speedup of a knob's value that is reported
LEAST_SETTINGS = 4  # minimum number of measured settings before a design's knobs are judged
AGAIN = 2  # number of occurrences from which a failure is not an accident
MAX_NOTE, MAX_REASON, MAX_WORKLOAD = 140, 160, 120
PLACE = re.compile(r"^(?:\S*kernel\.cu\S*:|[\w.]+=\S+(?: [\w.]+=\S+)* \w+:|line \d+:|(?:fatal )?error:|launch \d+:)\s*")
NO_KERNEL = "no kernel in the answer"
Times = Mapping[str, float]  # times in us by workload


@dataclass(frozen=True)
class Change:
    """The speedup of a design, at its best setting, over the designs from which it was made."""

    kernel_id: str
    workload: str
    ratio: float  # speedup over the best of its parents on that workload
    created: float


@dataclass(frozen=True)
class Effect:
    """The effect of a knob, averaged over the settings of the other knobs."""

    name: str
    best: int
    worst: int
    ratio: float  # speedup of the best value over the worst


class Lessons:
    """The lessons from proposals and verdicts, which are added in chronological order.

    `families` names the family of every kernel that counts; `verdicts` has the verdicts on kernels, at least those that
    were added; both belong to the caller. `kernels` reads kernels by their ids.
    """

    def __init__(
        self,
        families: Mapping[str, str],
        verdicts: Mapping[str, EvaluationSummary],
        kernels: Callable[[Sequence[str]], Mapping[str, Kernel]],
    ) -> None:
        self._families, self._verdicts, self._kernels = families, verdicts, kernels
        self._best: dict[str, dict[str, float]] = {}  # family -> its best time on each workload
        self._overall: dict[str, float] = {}  # the best time of all families on each workload
        self._places: dict[str, tuple[int, float, str]] = {}  # family -> its place among the tuned families
        self._tuned: set[str] = set()  # families with enough settings
        self._sound: set[str] = set()  # families with a setting that has passed
        self._passed = defaultdict[str, list[str]](list)  # family -> its kernels with times
        self._births = defaultdict[str, list[ProposalSummary]](list)  # family -> the proposals of its kernels
        self._offspring: dict[str, tuple[str, ...]] = {}  # kernel -> the families that were made from it
        self._changed: set[str] = set()  # families whose change and effects must be recomputed
        self._changes: dict[str, Change] = {}
        self._effects: dict[str, list[Effect]] = {}
        # kind of reason -> number of cases, and the first case
        self._reasons: dict[tuple[str, str], tuple[int, tuple[float, str, str, str]]] = {}
        self._roots: dict[str, str] = {}  # repaired kernel -> the kernel that it repairs, through any number of repairs
        self._repairs = defaultdict[str, list[EvaluationSummary]](list)  # verdicts on repairs by root
        self._without_effect: tuple[float, str, str] | None = None  # negated time, proposal and kernel

    def propose(self, proposal: ProposalSummary) -> None:
        """Add the next proposal."""
        kernel_id = proposal.kernel_id
        if not kernel_id:
            if proposal.failure:
                self._fail(proposal.created, proposal.id, NO_KERNEL, proposal.failure)
            return
        family = self._families[kernel_id]
        if proposal.operator == "repair" and proposal.parents and not self._is_born(kernel_id, family):
            root = proposal.parents[0]
            self._roots[kernel_id] = self._roots.get(root, root)
        self._births[family].append(proposal)
        self._changed.add(family)
        for parent in proposal.parents:
            known = self._offspring.get(parent, ())
            self._offspring[parent] = known if family in known else (*known, family)
        verdict = self._verdicts.get(kernel_id)
        if verdict and verdict.outcome is Outcome.DUPLICATE:
            self._note_without_effect([proposal])

    def judge(self, verdict: EvaluationSummary) -> None:
        """Add the first verdict on a kernel."""
        kernel_id = verdict.kernel_id
        family = self._families.get(kernel_id)
        if family is None:
            return
        self._changed |= {family, *self._offspring.get(kernel_id, ())}
        if verdict.outcome is Outcome.DUPLICATE:
            self._note_without_effect([born for born in self._births.get(family, ()) if born.kernel_id == kernel_id])
            return
        if root := self._roots.get(kernel_id):
            self._repairs[root].append(verdict)
        if not verdict.passed:
            self._fail(verdict.created, kernel_id, str(verdict.outcome), verdict.log)
            return
        self._sound.add(family)
        if verdict.workloads:
            self._passed[family].append(kernel_id)
            times = _times(verdict)
            _lower(self._best.setdefault(family, {}), times)
            if _lower(self._overall, times):
                self._places.clear()

    def has_passed(self, family: str) -> bool:
        """Return whether a setting of the design has passed."""
        return family in self._sound

    def sentences(self, *, timed: bool = True) -> tuple[str, ...]:
        """Return the most important sentences first: gains, the best knobs, losses, causes of failures and others.

        Without `timed`, lessons from times are left out, because a gain on the emulator says nothing about a GPU.
        """
        for family in self._changed:
            self._effects.pop(family, None)
            self._places.pop(family, None)
            if len(self._passed.get(family, ())) >= LEAST_SETTINGS:
                self._tuned.add(family)
            self._changes.pop(family, None)
            if change := self._change(family):
                self._changes[family] = change
        self._changed.clear()
        gains = (*self._gains(), *self._knobs(), *self._losses()) if timed else ()
        return (*gains, *self._failures(), *self._hopeless(), *self._no_effect())[:MOST]

    def _change(self, family: str) -> Change | None:
        """Return the change by the design's first proposal whose parents passed and share a workload with it."""
        for born in sorted(self._births.get(family, ()), key=lambda p: (p.created, p.id)):
            parents = [parent for parent in born.parents if parent in self._verdicts]
            if not parents or any(self._families[parent] == family for parent in parents):
                continue
            before: dict[str, float] = {}
            for parent in parents:
                _lower(before, _times(self._verdicts[parent]))
            ratios = {w: before[w] / us for w, us in self._best.get(family, {}).items() if w in before}
            if ratios:
                workload = max(sorted(ratios), key=lambda w: ratios[w])
                return Change(born.kernel_id, workload, ratios[workload], born.created)
        return None

    def _gains(self) -> Iterator[str]:
        gains = (change for change in self._changes.values() if change.ratio >= GAINED)
        first = heapq.nsmallest(MOST_GAINS, gains, key=lambda c: (-round(c.ratio, 1), c.created, c.kernel_id))
        for change in first:
            idea = self._idea(change.kernel_id)
            yield f"This helped: {idea}: {change.ratio:.1f} times as fast as its parent at {_at(change)}."

    def _losses(self) -> Iterator[str]:
        """Yield sentences on designs that are slower than their parents on every workload that both have."""
        losses = (change for change in self._changes.values() if change.ratio <= LOST)
        first = heapq.nsmallest(MOST_LOSSES, losses, key=lambda c: (round(c.ratio, 1), c.created, c.kernel_id))
        for change in first:
            share, idea = max(change.ratio, 0.01), self._idea(change.kernel_id)
            yield f"This was harmful: {idea}: {share:.1g} of its parent's speed, at best, at {_at(change)}."

    def _knobs(self) -> Iterator[str]:
        """Yield the most influential knobs of the tuned designs and their best values, fastest designs first."""
        told = 0
        for family in self._tuned:
            if family not in self._places:
                best = self._best[family]
                self._places[family] = -len(best), round(_slowness(best, self._overall), 2), family
        order = sorted(self._places[family] for family in self._tuned)
        for _, _, family in order:
            if family not in self._effects:
                self._effects[family] = self._effects_of(family)
            for effect in self._effects[family]:
                yield (
                    f"In {self._idea(min(self._passed[family]))}, {effect.name} = {effect.best} is about "
                    f"{effect.ratio:.1f} times as fast as {effect.name} = {effect.worst}, whatever the other knobs."
                )
                told += 1
                if told == MOST_KNOBS:
                    return

    def _effects_of(self, family: str) -> list[Effect]:
        members = sorted(self._passed[family])
        settings = {kernel_id: kernel.settings for kernel_id, kernel in self._kernels(members).items()}
        scores = {one: _slowness(_times(self._verdicts[one]), self._best[family]) for one in members}
        effects = (_effect(name, settings, scores) for name in settings[members[0]])
        return sorted((e for e in effects if e and e.ratio >= TELLING), key=lambda e: (-e.ratio, e.name))

    def _failures(self) -> Iterator[str]:
        """Yield the reasons for repeated failures of kernels and replies, most frequent first."""
        often = [(kind, number, first) for kind, (number, first) in self._reasons.items() if number >= AGAIN]
        for (outcome, _), number, first in heapq.nsmallest(MOST_REASONS, often, key=lambda one: (-one[1], one[0])):
            reason = reason_in(first[3])
            yield f"Failed {number} times in the same way: {outcome}{f': {reason}' if reason else ''}."

    def _hopeless(self) -> Iterator[str]:
        """Yield sentences on designs that were tried more than once, including repairs, and never passed."""
        tried = ((root, self._tries(root)) for root in self._repairs if root in self._families)
        never = (one for one in tried if len(one[1]) >= AGAIN and not any(verdict.passed for verdict in one[1]))
        for root, tries in heapq.nsmallest(MOST_HOPELESS, never, key=lambda one: (-len(one[1]), one[0])):
            in_order = sorted(tries, key=lambda verdict: (verdict.created, verdict.kernel_id))
            ends = ", ".join(dict.fromkeys(str(verdict.outcome) for verdict in in_order))
            yield f"Never passed, in {len(tries)} attempts: {self._idea(root)} ({ends})."

    def _tries(self, root: str) -> list[EvaluationSummary]:
        """Return the verdicts on a kernel and its repairs except duplicates."""
        own = self._verdicts.get(root)
        return [*([own] if own and own.outcome is not Outcome.DUPLICATE else []), *self._repairs[root]]

    def _is_born(self, kernel_id: str, family: str) -> bool:
        return any(born.kernel_id == kernel_id for born in self._births.get(family, ()))

    def _no_effect(self) -> Iterator[str]:
        if self._without_effect:
            yield f"This makes no difference to the compiled code: {self._idea(self._without_effect[2])}."

    def _note_without_effect(self, proposals: Iterable[ProposalSummary]) -> None:
        """Record the newest change, other than of knobs, that compiled to the machine code of another kernel."""
        for proposal in proposals:
            family = self._families[proposal.kernel_id]
            if all(self._families.get(parent) != family for parent in proposal.parents):
                found = -proposal.created, proposal.id, proposal.kernel_id
                self._without_effect = min(self._without_effect or found, found)

    def _fail(self, created: float, subject: str, outcome: str, log: str) -> None:
        kind = outcome, _normalised(reason_in(log))
        found = created, subject, outcome, log
        number, first = self._reasons.get(kind, (0, found))
        self._reasons[kind] = number + 1, min(first, found)

    def _idea(self, kernel_id: str) -> str:
        plan = self._kernels([kernel_id])[kernel_id].plan
        return f'"{one_line(plan.note or plan.launches[0].entry, MAX_NOTE)}"'


def _effect(name: str, settings: Mapping[str, Mapping[str, int]], scores: Mapping[str, float]) -> Effect | None:
    by_value = defaultdict[int, list[float]](list)
    for kernel_id, values in settings.items():
        by_value[values[name]].append(scores[kernel_id])
    means = {value: sum(own) / len(own) for value, own in by_value.items() if len(own) >= AGAIN}
    if len(means) < 2:
        return None
    best, worst = (choose(sorted(means), key=lambda value: means[value]) for choose in (min, max))
    return Effect(name, best, worst, round(math.exp(means[worst] - means[best]), 1))


def _times(verdict: EvaluationSummary) -> dict[str, float]:
    return {m.workload: m.median_us for m in verdict.measurements} if verdict.passed else {}


def _lower(least: dict[str, float], times: Times) -> bool:
    """Update the lowest time on each workload, and return whether any became lower."""
    lower = {workload: us for workload, us in times.items() if us < least.get(workload, math.inf)}
    least.update(lower)
    return bool(lower)


def _slowness(times: Times, best: Times) -> float:
    """Return the mean over the workloads of log(own time / best time)."""
    return sum(math.log(us / best[workload]) for workload, us in times.items()) / max(len(times), 1)


def _at(change: Change) -> str:
    return one_line(change.workload, MAX_WORKLOAD)


@lru_cache(maxsize=1_000)
def reason_in(log: str) -> str:
    """Return the first line of a log that is not empty after the source location is removed."""
    for line in log.splitlines():
        text, found = line.strip(), PLACE.match(line.strip())
        while found:
            text = text[found.end() :]
            found = PLACE.match(text)
        if text:
            return one_line(text, MAX_REASON).rstrip(".")
    return ""


def shortened(log: str) -> str:
    """Return the beginning of a log that gives the same reason, if it can be found quickly."""
    first, _, others = log.partition("\n")
    kept = first if others and reason_in(first) else log
    head = kept[: MAX_REASON + 20]
    plain = "\n" not in head and not PLACE.match(head.strip()) and len(one_line(head, len(head))) > MAX_REASON
    return head if plain else kept


@lru_cache(maxsize=1_000)
def _normalised(reason: str) -> str:
    """Return a reason with its names and numbers replaced by placeholders."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'", "NAME", reason))
