"""What a run has seen so far. The loop and the engine tell it; the live display reads it from another thread."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import budget
from evolve.budget import Spent
from evolve.report.standing import Standing, standing
from evolve.report.words import one_line, short
from evolve.selection import population
from evolve.selection.population import Champion

FAILURES_KEPT = 6
PATIENCE = 10  # times what it costs to see where things stand, before that is looked at anew
RATE_SECONDS = 30.0  # the window that evaluations per second are counted over


SAME_PHASE = {"run": "check"}  # these two alternate with every shape, too fast to read


@dataclass(frozen=True)
class Trying:
    kernel_id: str
    phase: str
    confirming: bool = False  # it has passed before


@dataclass(frozen=True)
class Progress:
    """A run at one moment."""

    standing: Standing
    trying: tuple[Trying, ...]
    failures: tuple[str, ...]  # newest first, one line each
    evaluated: int  # in this run, confirmations aside
    per_second: float
    spent: Spent = field(default=Spent())  # but for the time


class Phases:
    """Which phase each kernel at work is in; an engine may tell from any thread."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    def watch(self, kernel_id: str, phase: str) -> None:
        self._now[kernel_id] = SAME_PHASE.get(phase, phase)

    def done(self, kernel_id: str) -> None:
        self._now.pop(kernel_id, None)

    def now(self) -> tuple[Trying, ...]:
        return tuple(Trying(kernel_id, phase) for kernel_id, phase in list(self._now.items()))


class Watcher:
    """Collects what the loop yields, on top of what the archive held before."""

    def __init__(self, op: str, device: DeviceInfo, store: Store, phases: Phases) -> None:
        self._op, self._device, self._phases = op, device, phases
        self._lock = threading.Lock()
        self._kernels = {kernel.id: kernel for kernel in store.find(Kernel, op)}
        self._proposals = store.find(Proposal, op)
        self._evaluations = store.find(Evaluation, op)
        self._known = {proposal.id for proposal in self._proposals}
        self._judged = {e.kernel_id for e in self._evaluations if e.device.key == device.key}
        self._failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self._finished: list[float] = []
        self._spent = Spent()
        self._standing: Standing | None = None
        self._held = self._champions()

    def standing(self) -> Standing:
        """Where things stand right now."""
        with self._lock:
            return self._now()

    def has_judged(self, kernel_id: str) -> bool:
        """Whether there is a verdict on this device already: then the next one is a confirmation."""
        with self._lock:
            return kernel_id in self._judged

    def take(self, event: Proposal | Evaluation) -> tuple[Champion, ...]:
        """Note what happened; the champions that it brought."""
        with self._lock:
            self._standing = None
            if isinstance(event, Evaluation):
                return self._evaluated(event)
            self._proposed(event)
            return ()

    def progress(self) -> Progress:
        """The moment as the display shows it: of a long run, up to a few seconds old."""
        with self._lock:
            patient = time.monotonic() < self._seen + PATIENCE * self._cost
            return Progress(
                standing=self._last if patient else self._now(),
                trying=tuple(
                    replace(trying, confirming=trying.kernel_id in self._judged) for trying in self._phases.now()
                ),
                failures=tuple(reversed(self._failures)),
                evaluated=len(self._finished),
                per_second=self._rate(),
                spent=self._spent,
            )

    def _now(self) -> Standing:
        if self._standing is None:
            began = time.monotonic()
            self._standing = self._last = standing(
                self._op, self._device, list(self._kernels.values()), list(self._proposals), list(self._evaluations)
            )
            self._seen = time.monotonic()
            self._cost = self._seen - began
        return self._standing

    def _proposed(self, proposal: Proposal) -> None:
        idle = proposal.kernel_id in self._kernels or not proposal.kernel
        if proposal.run:  # the shipped kernels belong to no run, and nobody paid for them
            self._spent += budget.paid(proposal.cost) + Spent(evals=int(idle))
        if proposal.id not in self._known:
            self._known.add(proposal.id)
            self._proposals.append(proposal)
        if proposal.kernel:
            self._kernels.setdefault(proposal.kernel.id, proposal.kernel)
        else:
            self._failures.append(f"{proposal.operator}: no kernel: {one_line(proposal.failure)}")

    def _evaluated(self, evaluation: Evaluation) -> tuple[Champion, ...]:
        again = evaluation.kernel_id in self._judged
        self._judged.add(evaluation.kernel_id)
        self._evaluations.append(evaluation)
        self._phases.done(evaluation.kernel_id)
        if not evaluation.passed:
            what = f"{evaluation.outcome} when confirmed" if again else str(evaluation.outcome)
            self._failures.append(f"{short(evaluation.kernel_id)} {what}: {one_line(evaluation.log)}")
        if again:  # a champion was confirmed, or fell: then somebody else leads, who did not come just now
            self._held = self._champions()
            return ()
        self._finished.append(time.monotonic())
        self._spent += Spent(evals=1)
        won = tuple(rival for rival in population.champions([evaluation]) if self._leads(rival))
        self._held.update({champion.workload: champion for champion in won})
        return won

    def _leads(self, rival: Champion) -> bool:
        held = self._held.get(rival.workload)
        return held is None or population.winner([held, rival]) is rival

    def _champions(self) -> dict[str, Champion]:
        return {champion.workload: champion for champion in self._now().champions}

    def _rate(self) -> float:
        recent = [moment for moment in self._finished if moment > time.monotonic() - RATE_SECONDS]
        return len(recent) / max(1.0, min(RATE_SECONDS, time.monotonic() - self._finished[0])) if recent else 0.0
