"""The history of an op on a device, updated as records arrive: the outcome of each proposal, and the settings tried."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.summaries import EvaluationSummary, ProposalSummary, Timing, Trial, Tried

READ_AT_ONCE = 2_000  # number of kernels whose texts are in memory at the same time
MOST_STEPS = 1000  # number of verdicts that can be undone when a verdict on an earlier evaluation arrives late


class History:
    """The trials of an op, one per proposal that is judged or contains no kernel.

    Proposals and verdicts are added in chronological order. `families` names the family of every kernel that counts;
    `verdicts` has the verdicts on kernels, at least those that were added. Both belong to the caller.
    """

    def __init__(self, families: Mapping[str, str], verdicts: Mapping[str, EvaluationSummary]) -> None:
        self._families, self._verdicts = families, verdicts
        self._proposals: list[ProposalSummary] = []
        self._of_kernel: dict[str, ProposalSummary] = {}  # the first proposal of each kernel, which gets the credit
        self._repeated: dict[str, tuple[ProposalSummary, ...]] = {}  # the other proposals of each kernel
        self._trials: dict[str, Trial] = {}  # key: proposal id
        self._alike: dict[Trial, Trial] = {}  # one object for all equal trials, because most kernels have no gain
        self._changed: dict[str, ProposalSummary] = {}  # proposals whose trial must be recomputed
        self._best: dict[str, Timing] = {}  # best times so far; key: workload
        self._gained: dict[str, dict[str, float]] = {}  # kernel -> the log of its gain, by workload
        self._founders: dict[str, tuple[str, Mapping[str, Timing]]] = {}  # family -> first kernel, best before it
        # the best times, shared by the families that were founded since the last change
        self._before: Mapping[str, Timing] | None = None
        # The last verdicts in the order in which their evaluations began, and when the evaluation of the last forgotten
        # verdict began.
        self._steps = deque[_Step]()
        self._forgotten = -math.inf

    def trials(self) -> tuple[Trial, ...]:
        """Return the trials, oldest first."""
        for proposal in self._changed.values():
            self._note(proposal)
        self._changed.clear()
        found = (self._trials.get(proposal.id) for proposal in self._proposals)
        return tuple(trial for trial in found if trial)

    def propose(self, proposal: ProposalSummary) -> None:
        """Add the next proposal."""
        self._proposals.append(proposal)
        kernel_id = proposal.kernel_id
        if kernel_id and self._of_kernel.setdefault(kernel_id, proposal) is not proposal:
            self._repeated[kernel_id] = (*self._repeated.get(kernel_id, ()), proposal)
        self._changed[proposal.id] = proposal

    def judge(self, verdict: EvaluationSummary) -> bool:
        """Add the first verdict on a kernel. Verdicts on evaluations that began later are credited again after it.

        Returns False if there are so many of these that the history must be computed anew.
        """
        if verdict.kernel_id not in self._families:
            return True
        if verdict.created < self._forgotten:
            return False
        later = []
        while self._steps and self._steps[-1].verdict.created > verdict.created:
            later.append(self._steps.pop())
            later[-1].undo(self._best, self._founders, self._gained)
            self._before = None
        workloads = len(self._best)
        again = [verdict, *(step.verdict for step in reversed(later))]
        for one in again:
            self._credit(one)
        families = {self._families[one.kernel_id] for one in again} & self._founders.keys()
        founders = [self._founders[family][0] for family in families]
        if len(self._best) > workloads:  # gains are means over all workloads
            changed: Iterable[ProposalSummary] = self._proposals
        else:
            ids = dict.fromkeys([*(one.kernel_id for one in again), *founders])
            changed = [
                proposal
                for kernel_id in ids
                if (first := self._of_kernel.get(kernel_id))
                for proposal in (first, *self._repeated.get(kernel_id, ()))
            ]
        self._changed.update((proposal.id, proposal) for proposal in changed)
        while len(self._steps) > MOST_STEPS:
            self._forgotten = self._steps.popleft().verdict.created
        return True

    def _credit(self, verdict: EvaluationSummary) -> None:
        """Credit the kernel with its gain, and the first kernel of its design with the gain of the design."""
        family = self._families[verdict.kernel_id]
        step = _Step(verdict, family, {}, family not in self._founders, {})
        self._steps.append(step)
        if not verdict.passed:
            return
        if self._before is None:
            self._before = dict(self._best)
        founder, before = self._founders.setdefault(family, (verdict.kernel_id, self._before))
        own = _gained(verdict, self._best)
        if own or founder == verdict.kernel_id:
            self._gained[verdict.kernel_id] = own
        of_founder = self._gained[founder]
        step.of_founder.update(of_founder)
        for workload, gain in _gained(verdict, before).items():
            of_founder[workload] = max(of_founder.get(workload, 0.0), gain)
        for timing in verdict.measurements:
            held = self._best.get(timing.workload)
            if held is None or timing.median_us < held.median_us:
                step.best.setdefault(timing.workload, held)
                self._best[timing.workload] = timing
                self._before = None

    def _note(self, proposal: ProposalSummary) -> None:
        verdict = self._verdicts.get(proposal.kernel_id)
        if verdict or (proposal.failure and not proposal.kernel_id):
            first = self._of_kernel.get(proposal.kernel_id)
            new = first is not None and first.id == proposal.id
            passed = verdict is not None and verdict.passed and new
            logs = self._gained.get(proposal.kernel_id, {}) if passed else {}
            gain = sum(logs.values()) / max(len(self._best), 1)
            trial = Trial(proposal.operator, proposal.proposer, proposal.cost, passed, gain)
            self._trials[proposal.id] = self._alike.setdefault(trial, trial)


class TriedKernels:
    """The kernels that have a verdict, with the settings of their knobs, but without their texts."""

    def __init__(self, read: Callable[[Sequence[str]], Iterable[Kernel]]) -> None:
        self._read = read  # reads kernels by their ids
        self._settings: dict[str, Mapping[str, int]] = {}  # key: kernel id; equal settings are one object
        self._distinct: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        self._found: list[Tried] | None = None  # oldest first

    def oldest_first(
        self, families: Mapping[str, str], told: Callable[[str], EvaluationSummary | None]
    ) -> Sequence[Tried]:
        """Return these kernels grouped by family, with the facts from `told`."""
        if self._found is None:
            known = [found for kernel_id in families if (found := told(kernel_id))]
            known.sort(key=lambda verdict: (verdict.created, verdict.number))
            self._read_settings(verdict.kernel_id for verdict in known)
            self._found = [self._tried(verdict, families[verdict.kernel_id]) for verdict in known]
        return tuple(self._found)

    def add(
        self,
        verdict: EvaluationSummary,
        family: str,
        told: Callable[[EvaluationSummary], EvaluationSummary | None],
    ) -> None:
        """Add the facts from `told` on a verdict, if the kernels have been read before."""
        if self._found is None or not (found := told(verdict)):
            return
        if self._found and self._found[-1].evaluation.created > found.created:
            self.forget()
        else:
            self._read_settings([verdict.kernel_id])
            self._found.append(self._tried(found, family))

    def forget(self) -> None:
        """Read the kernels again the next time; their settings are kept."""
        self._found = None

    def _tried(self, verdict: EvaluationSummary, family: str) -> Tried:
        return Tried(verdict.kernel_id, family, self._settings[verdict.kernel_id], verdict)

    def _read_settings(self, ids: Iterable[str]) -> None:
        missing = [kernel_id for kernel_id in ids if kernel_id not in self._settings]
        for start in range(0, len(missing), READ_AT_ONCE):
            for kernel in self._read(missing[start : start + READ_AT_ONCE]):
                settings = kernel.settings
                self._settings[kernel.id] = self._distinct.setdefault(tuple(settings.items()), settings)


@dataclass(frozen=True, slots=True)
class _Step:
    """The changes made by a verdict, to be undone if a verdict on an earlier evaluation arrives late."""

    verdict: EvaluationSummary
    family: str
    best: dict[str, Timing | None]  # the best times that the verdict replaced
    founding: bool  # whether the kernel is the first of its family to pass
    of_founder: dict[str, float]  # the previous gain of the family's first kernel

    def undo(
        self,
        best: dict[str, Timing],
        founders: dict[str, tuple[str, Mapping[str, Timing]]],
        gained: dict[str, dict[str, float]],
    ) -> None:
        if not self.verdict.passed:
            return
        for workload, held in self.best.items():
            if held is None:
                del best[workload]
            else:
                best[workload] = held
        founder, _ = founders[self.family]
        gained[founder] = dict(self.of_founder)
        if self.founding:
            del founders[self.family]
        gained.pop(self.verdict.kernel_id, None)


def _gained(verdict: EvaluationSummary, before: Mapping[str, Timing]) -> dict[str, float]:
    """Return, by workload, the log of the kernel's speedup over the best before it, or else over PyTorch.

    A gain is left out if the two confidence intervals overlap, because it may be due to chance.
    """
    gained: dict[str, float] = {}
    for timing in verdict.measurements:
        held = before.get(timing.workload)
        if held is not None and timing.high_us >= held.low_us:
            continue
        old_us = held.median_us if held else timing.baseline_us
        if old_us > timing.median_us:
            gained[timing.workload] = math.log(old_us / timing.median_us)
    return gained
