"""What earlier attempts at an op teach: the gain of each proposal, and lessons in sentences for the next prompt."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import Evaluation, Measurement, Outcome
from evolve.prompting.text import one_line
from evolve.request import Trial


def trials(
    proposals: Sequence[Proposal], kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]
) -> tuple[Trial, ...]:
    """One per proposal that is judged already or held no kernel, oldest first."""
    gains = _gain_of_each(kernels, verdicts)
    first: dict[str, str] = {}  # the proposal that brought a kernel first; whoever repeats it gains nothing
    for proposal in proposals:
        first.setdefault(proposal.kernel_id, proposal.id)
    found = []
    for proposal in proposals:
        verdict = verdicts.get(proposal.kernel_id)
        if verdict or not proposal.kernel:
            new = first[proposal.kernel_id] == proposal.id
            passed = verdict is not None and verdict.passed and new
            gain = gains.get(proposal.kernel_id, 0.0) if passed else 0.0
            found.append(Trial(proposal.operator, proposal.proposer, proposal.cost, passed, gain))
    return tuple(found)


def _gain_of_each(kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]) -> dict[str, float]:
    """By kernel: how much faster it made the best known, or for the first of a design the whole design."""
    in_order = sorted(verdicts.values(), key=lambda verdict: verdict.created)
    best: dict[str, Measurement] = {}
    of_kernel: dict[str, dict[str, float]] = {}
    founder: dict[str, str] = {}
    before_founder: dict[str, dict[str, Measurement]] = {}
    members = defaultdict[str, list[Evaluation]](list)
    for verdict in in_order:
        kernel = kernels.get(verdict.kernel_id)
        if not kernel or not verdict.passed:
            continue
        if kernel.family not in founder:
            founder[kernel.family], before_founder[kernel.family] = verdict.kernel_id, dict(best)
        members[kernel.family].append(verdict)
        of_kernel[verdict.kernel_id] = _faster([verdict], best)
        for measurement in verdict.measurements:
            held = best.get(measurement.workload)
            if held is None or measurement.median_us < held.median_us:
                best[measurement.workload] = measurement
    for family, kernel_id in founder.items():
        of_kernel[kernel_id] = _faster(members[family], before_founder[family])
    workloads = max(len(best), 1)
    return {kernel_id: sum(logs.values()) / workloads for kernel_id, logs in of_kernel.items()}


def _faster(verdicts: Sequence[Evaluation], before: Mapping[str, Measurement]) -> dict[str, float]:
    """By workload: the log of how many times faster than what was best before, or else than PyTorch.

    Only what clears both intervals counts: luck is no improvement.
    """
    gained: dict[str, float] = {}
    for measurement in (m for verdict in verdicts for m in verdict.measurements):
        held = before.get(measurement.workload)
        if held is not None and measurement.high_us >= held.low_us:
            continue
        old_us = held.median_us if held else measurement.baseline_us
        gain = max(0.0, math.log(old_us / measurement.median_us))
        gained[measurement.workload] = max(gained.get(measurement.workload, 0.0), gain)
    return gained


MOST = 10  # sentences
MOST_GAINS, MOST_LOSSES, MOST_KNOBS, MOST_REASONS, MOST_HOPELESS = 3, 2, 2, 2, 1
GAINED, LOST = 1.1, 0.9  # times as fast as the parent
TELLING = 1.1  # times as fast by another value of a knob
LEAST_SETTINGS = 4  # of a design, before its knobs say anything
AGAIN = 2  # times, before a failure is more than an accident
MAX_NOTE, MAX_REASON, MAX_WORKLOAD = 140, 160, 120
PLACE = re.compile(r"^(?:\S*kernel\.cu\S*:|[\w.]+=\S+(?: [\w.]+=\S+)* \w+:|line \d+:|(?:fatal )?error:|launch \d+:)\s*")
Times = Mapping[str, float]  # us by workload


@dataclass(frozen=True)
class Change:
    """What became of a design that was made from others, at its best setting."""

    kernel: Kernel
    workload: str
    ratio: float  # times as fast there as the best of its parents
    created: float


def lessons(
    kernels: Mapping[str, Kernel], proposals: Sequence[Proposal], verdicts: Mapping[str, Evaluation]
) -> tuple[str, ...]:
    """The most telling first: what helped, which knobs win, what harmed, why kernels fail, what never worked."""
    changes = _changes(kernels, proposals, verdicts)
    said = (
        *_gains(changes),
        *_knobs(kernels, verdicts),
        *_losses(changes),
        *_reasons(proposals, verdicts),
        *_hopeless(kernels, proposals, verdicts),
        *_without_effect(kernels, proposals, verdicts),
    )
    return said[:MOST]


def _changes(
    kernels: Mapping[str, Kernel], proposals: Sequence[Proposal], verdicts: Mapping[str, Evaluation]
) -> list[Change]:
    """One for each design whose parents passed and whose own best setting runs a workload that they run too."""
    best = _best_by_family(kernels, verdicts)
    found: dict[str, Change] = {}
    for proposal in sorted(proposals, key=lambda p: (p.created, p.id)):
        kernel = proposal.kernel
        if kernel is None or kernel.family in found:
            continue
        parents = [kernels[parent] for parent in proposal.parents if parent in kernels and parent in verdicts]
        if not parents or any(parent.family == kernel.family for parent in parents):
            continue
        before = _fastest(_times(verdicts[parent.id]) for parent in parents)
        shared = {w: before[w] / us for w, us in best.get(kernel.family, {}).items() if w in before}
        if shared:
            workload = max(sorted(shared), key=lambda w: shared[w])
            found[kernel.family] = Change(kernel, workload, shared[workload], proposal.created)
    return list(found.values())


def _gains(changes: Iterable[Change]) -> Iterator[str]:
    gains = [change for change in changes if change.ratio >= GAINED]
    for change in sorted(gains, key=lambda c: (-round(c.ratio, 1), c.created, c.kernel.id))[:MOST_GAINS]:
        yield f"This helped: {_idea(change.kernel)}: {change.ratio:.1f} times as fast as its parent at {_at(change)}."


def _losses(changes: Iterable[Change]) -> Iterator[str]:
    """Designs that are slower than their parents on every workload they share."""
    losses = [change for change in changes if change.ratio <= LOST]
    for change in sorted(losses, key=lambda c: (round(c.ratio, 1), c.created, c.kernel.id))[:MOST_LOSSES]:
        share = max(change.ratio, 0.01)
        yield f"This did harm: {_idea(change.kernel)}: {share:.1g} of its parent's speed, at best, at {_at(change)}."


def _knobs(kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]) -> Iterator[str]:
    """For the designs that were tuned, fastest first: the knobs that matter most, and their best values."""
    best = _best_by_family(kernels, verdicts)
    overall = _fastest(best.values())
    members = defaultdict[str, list[Kernel]](list)
    for kernel_id, verdict in sorted(verdicts.items()):
        if kernel_id in kernels and verdict.passed and verdict.measurements:
            members[kernels[kernel_id].family].append(kernels[kernel_id])
    tuned = [family for family, settings in members.items() if len(settings) >= LEAST_SETTINGS]
    said = 0
    for family in sorted(tuned, key=lambda f: (-len(best[f]), round(_slowness(best[f], overall), 2), f)):
        scores = {kernel.id: _slowness(_times(verdicts[kernel.id]), best[family]) for kernel in members[family]}
        effects = [_effect(name, members[family], scores) for name in members[family][0].plan.settings]
        for effect in sorted((e for e in effects if e and e.ratio >= TELLING), key=lambda e: (-e.ratio, e.name)):
            if said < MOST_KNOBS:
                said += 1
                yield (
                    f"In {_idea(members[family][0])}, {effect.name} = {effect.best} is about {effect.ratio:.1f} times "
                    f"as fast as {effect.name} = {effect.worst}, whatever the other knobs."
                )


@dataclass(frozen=True)
class Effect:
    """What a knob does on the average over the settings of the others."""

    name: str
    best: int
    worst: int
    ratio: float  # times as fast with the best value as with the worst


def _effect(name: str, settings: Sequence[Kernel], scores: Mapping[str, float]) -> Effect | None:
    by_value = defaultdict[int, list[float]](list)
    for kernel in settings:
        by_value[kernel.plan.settings[name]].append(scores[kernel.id])
    means = {value: sum(own) / len(own) for value, own in by_value.items() if len(own) >= AGAIN}
    if len(means) < 2:
        return None
    best, worst = (choose(sorted(means), key=lambda value: means[value]) for choose in (min, max))
    return Effect(name, best, worst, round(math.exp(means[worst] - means[best]), 1))


def _reasons(proposals: Sequence[Proposal], verdicts: Mapping[str, Evaluation]) -> Iterator[str]:
    """What kernels and replies failed of again and again, most frequent first."""
    failed = [
        (verdict.created, verdict.kernel_id, str(verdict.outcome), verdict.log)
        for verdict in verdicts.values()
        if not verdict.passed and verdict.outcome is not Outcome.DUPLICATE
    ]
    failed += [(p.created, p.id, "no kernel in the answer", p.failure) for p in proposals if p.failure and not p.kernel]
    groups = defaultdict[tuple[str, str], list[str]](list)
    for _, _, outcome, log in sorted(failed):
        reason = _reason(log)
        groups[outcome, _normalised(reason)].append(reason)
    often = [(kind, reasons) for kind, reasons in groups.items() if len(reasons) >= AGAIN]
    for (outcome, _), reasons in sorted(often, key=lambda group: (-len(group[1]), group[0]))[:MOST_REASONS]:
        why = f": {reasons[0]}" if reasons[0] else ""
        yield f"Failed {len(reasons)} times in the same way: {outcome}{why}."


def _hopeless(
    kernels: Mapping[str, Kernel], proposals: Sequence[Proposal], verdicts: Mapping[str, Evaluation]
) -> Iterator[str]:
    """Designs that were tried more than once, repairs included, and never passed."""
    first: dict[str, str] = {}  # by kernel: the one whose repair, or repair of a repair, it is
    for proposal in sorted(proposals, key=lambda p: (p.created, p.id)):
        if proposal.kernel and proposal.kernel_id not in first:
            root = proposal.parents[0] if proposal.operator == "repair" and proposal.parents else proposal.kernel_id
            first[proposal.kernel_id] = first.get(root, root)
    tries = defaultdict[str, list[Evaluation]](list)
    for kernel_id, verdict in sorted(verdicts.items(), key=lambda item: (item[1].created, item[0])):
        if verdict.outcome is not Outcome.DUPLICATE:
            tries[first.get(kernel_id, kernel_id)].append(verdict)
    never = [
        (root, verdicts_of)
        for root, verdicts_of in tries.items()
        if len(verdicts_of) >= AGAIN and not any(v.passed for v in verdicts_of) and root in kernels
    ]
    for root, verdicts_of in sorted(never, key=lambda item: (-len(item[1]), item[0]))[:MOST_HOPELESS]:
        ends = ", ".join(dict.fromkeys(str(verdict.outcome) for verdict in verdicts_of))
        yield f"Never passed, in {len(verdicts_of)} attempts: {_idea(kernels[root])} ({ends})."


def _without_effect(
    kernels: Mapping[str, Kernel], proposals: Sequence[Proposal], verdicts: Mapping[str, Evaluation]
) -> Iterator[str]:
    """The newest change of more than knobs that compiled to the code of another kernel."""
    for proposal in sorted(proposals, key=lambda p: (-p.created, p.id)):
        verdict = verdicts.get(proposal.kernel_id)
        if proposal.kernel is None or verdict is None or verdict.outcome is not Outcome.DUPLICATE:
            continue
        if not any(kernels[p].family == proposal.kernel.family for p in proposal.parents if p in kernels):
            yield f"The compiler makes no difference of this: {_idea(proposal.kernel)}."
            return


def _best_by_family(kernels: Mapping[str, Kernel], verdicts: Mapping[str, Evaluation]) -> dict[str, dict[str, float]]:
    times = defaultdict[str, list[Times]](list)
    for kernel_id, verdict in verdicts.items():
        if kernel_id in kernels:
            times[kernels[kernel_id].family].append(_times(verdict))
    return {family: _fastest(own) for family, own in times.items()}


def _times(verdict: Evaluation) -> dict[str, float]:
    return {m.workload: m.median_us for m in verdict.measurements} if verdict.passed else {}


def _fastest(times: Iterable[Times]) -> dict[str, float]:
    fastest: dict[str, float] = {}
    for own in times:
        for workload, us in own.items():
            fastest[workload] = min(us, fastest.get(workload, us))
    return fastest


def _slowness(times: Times, best: Times) -> float:
    """The mean over the workloads of log(own time / best time)."""
    return sum(math.log(us / best[workload]) for workload, us in times.items()) / max(len(times), 1)


def _idea(kernel: Kernel) -> str:
    return f'"{one_line(kernel.plan.note or kernel.plan.launches[0].entry, MAX_NOTE)}"'


def _at(change: Change) -> str:
    return one_line(change.workload, MAX_WORKLOAD)


def _reason(log: str) -> str:
    """The first line of a log that says anything, without the place it speaks of."""
    for line in log.splitlines():
        text, found = line.strip(), PLACE.match(line.strip())
        while found:
            text = text[found.end() :]
            found = PLACE.match(text)
        if text:
            return one_line(text, MAX_REASON).rstrip(".")
    return ""


def _normalised(reason: str) -> str:
    """What is left when names and numbers are taken out."""
    return re.sub(r"[-+]?\d[\d.e+-]*", "N", re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'", "NAME", reason))
