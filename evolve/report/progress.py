"""Progress of a run: events from the loop and the engine, and how much of the budget is spent."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table

from archive.kernel import Kernel
from archive.proposals import Budget, Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.report.standing import Standing, standing
from evolve.report.tables import WIDE, fitted
from evolve.report.words import clock, counted, one_line, short
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


LEAST_BAR = 10  # columns


def dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 1 or not usd else f"${usd:.4f}"


def amounts(spent: Spent) -> str:
    """`0:42, 30 evaluations, 1,234 tokens, $0.0123`, as far as there is anything of it."""
    parts = [clock(spent.seconds), counted(spent.evals, "evaluation")]
    parts += [f"{spent.tokens:,} tokens"] if spent.tokens else []
    parts += [dollars(spent.usd)] if spent.usd else []
    return ", ".join(parts)


def nearest(limits: Budget, spent: Spent) -> tuple[str, float | None]:
    """How far the limit is that is nearest to its end, and the share of it that is gone."""
    found = budget.nearest(limits, spent)
    if found is None:
        return clock(spent.seconds), None
    name, share = found
    said = {
        Ended.SECONDS: f"{clock(spent.seconds)} of {clock(limits.seconds or 0)}",
        Ended.EVALS: f"{spent.evals} of {counted(limits.evals or 0, 'evaluation')}",
        Ended.TOKENS: f"{spent.tokens:,} of {limits.tokens or 0:,} tokens",
        Ended.USD: f"{dollars(spent.usd)} of {dollars(limits.usd or 0)}",
    }
    return said[name], share


@dataclass(frozen=True)
class Meter:
    """Shows how much of a budget is gone."""

    started: float  # by time.monotonic, like the deadline
    deadline: float = float("inf")
    budget: Budget = field(default=Budget())  # in all
    before: Spent = field(default=Spent())  # of it, in earlier legs

    def line(self, progress: Sequence[Progress], width: int) -> RenderableType:
        """A bar for the limit that is nearest to its end, and what everything has cost; of one op or of several."""
        now = time.monotonic()
        gone = sum((part.spent for part in progress), self.before + Spent(seconds=now - self.started))
        said, share = nearest(self.budget, gone)
        if any(trying.confirming for part in progress for trying in part.trying):
            said = "confirming the champions"
        elif now >= self.deadline:
            said = "time is up: finishing what is in hand"
        elif share is not None and share >= 1:
            said = f"{said}: finishing what is in hand"
        timed = said.startswith(clock(gone.seconds))
        evaluated, rate = sum(part.evaluated for part in progress), sum(part.per_second for part in progress)
        beside = [] if timed else [clock(gone.seconds)]
        beside += [f"{evaluated} evaluated"] + ([f"{rate:.1f}/s"] if width >= WIDE else [])
        beside += [f"{gone.tokens:,} tokens"] if gone.tokens and "tokens" not in said else []
        beside += [dollars(gone.usd)] if gone.usd and "$" not in said else []
        return _bar(share, said, ", ".join(beside), width)


def _bar(share: float | None, said: str, beside: str, width: int) -> RenderableType:
    row = Table.grid(padding=(0, 2, 0, 0), expand=False)
    drawn = ProgressBar(
        total=1.0,
        completed=min(share or 0.0, 1.0),
        width=max(LEAST_BAR, width - len(said) - len(beside) - 4),
        complete_style="cyan",
        finished_style="green",
    )
    row.add_row(drawn, fitted(said), fitted(beside))
    return row


def ending(reason: Ended, limits: Budget, gone: Spent) -> tuple[str, Budget | None]:
    """Why a run is over, and a budget that would give it more, where more would help."""
    light, evals = limits.until_light, limits.evals or 0
    judged = "The one evaluation is used." if evals == 1 else f"All {evals} evaluations are used."
    known: dict[Ended, tuple[str, Budget | None]] = {
        Ended.EVALS: (judged, Budget(evals=limits.evals)),
        Ended.TOKENS: (f"All {limits.tokens or 0:,} tokens are spent.", Budget(tokens=limits.tokens)),
        Ended.USD: (f"All of {dollars(limits.usd or 0)} is spent.", Budget(usd=limits.usd)),
        Ended.SECONDS: ("The time is up.", Budget(seconds=limits.seconds)),
        Ended.NOTHING: ("Nothing is left to try: every setting of the kernels alive has been evaluated.", None),
        Ended.LIGHT: ("Every op is at the speed of light, as near as it can be measured.", None),
    }
    if reason is Ended.LIGHT and light:
        said = f"Every workload has a champion at {light:.3g} of the speed of light or nearer, as asked."
        return said, Budget(until_light=round((1 + light) / 2, 3))
    said, used = known[reason]
    return said, twice(used, gone) if used else None


def twice(limits: Budget, gone: Spent) -> Budget:
    """Or more: confirming champions may have taken longer than all before it, and something must be left in the end."""
    more = {}
    for name, limit in asdict(limits).items():
        if limit:
            times = 2
            while times * limit < getattr(gone, name) + limit / 2:
                times *= 2
            more[name] = times * limit
    return replace(limits, **more)


def without_answer(limits: Budget, gone: Spent) -> tuple[str, Budget | None]:
    """Why a run with a model is over though no limit is reached: nothing came when it was asked."""
    if limits.tokens is None and limits.usd is None:
        return "The proposer has nothing more to offer.", None
    more = twice(Budget(tokens=limits.tokens, usd=limits.usd), gone)
    return "What is left of the budget does not pay for another question.", more
