"""Progress of a run: events from the loop and the engine, and how much of the budget is spent."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from archive.kernel import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.runs import Budget
from archive.sqlite import SqliteStore, open_archive
from archive.store import Store
from archive.summaries import EvaluationSummary, Judged, KernelId
from evolve import budget
from evolve.budget import Ended, Spent
from evolve.engines.messages import RIGHT
from evolve.report.failures import reasons
from evolve.report.standing import Standing, standing
from evolve.report.tables import WIDE, fitted
from evolve.report.words import clock, counted, dollars, one_line, short
from evolve.selection.population import Champion, champions

FAILURES_KEPT = 6
PATIENCE = 10  # time between two readings of the standing, as a multiple of the duration of the last one
RATE_SECONDS = 30.0  # the window over which evaluations per second are counted


SAME_PHASE = {"run": "check"}  # phases shown as one, because they alternate too fast to read


@dataclass(frozen=True)
class Active:
    """A kernel that a worker is evaluating."""

    kernel_id: str
    phase: str
    confirming: bool = False  # the kernel has passed before, and is now being confirmed


@dataclass(frozen=True)
class Progress:
    """The state of a run at one moment."""

    standing: Standing
    active: tuple[Active, ...]
    failures: tuple[str, ...]  # newest first, one line each
    evaluated: int  # number of evaluations in this run, without confirmations
    per_second: float
    spent: Spent = field(default=Spent())  # does not include the time spent
    unread: tuple[tuple[int, str], ...] = ()  # requests of this run without a kernel by reason, most frequent first
    waits: tuple[str, ...] = ()  # reasons why questions wait for their server


class Phases:
    """The current phase of each kernel under evaluation, and the reasons why questions wait. Any thread may report."""

    def __init__(self) -> None:
        self._now: dict[str, str] = {}
        self._waits: dict[str, str] = {}
        self.on_wait: Callable[[str], None] | None = None  # called with each reason to wait
        self.found: Callable[[str, str], None] | None = None  # called with a kernel that is right, and its phase

    def watch(self, kernel_id: str, phase: str) -> None:
        """Record the phase that a kernel enters; an empty phase ends the work on it."""
        if not phase:
            self.done(kernel_id)
            return
        if self._now.get(kernel_id, "").startswith(RIGHT):  # later phases concern its baselines
            return
        self._now[kernel_id] = SAME_PHASE.get(phase, phase)
        if phase.startswith(RIGHT) and self.found:
            self.found(kernel_id, phase)

    def done(self, kernel_id: str) -> None:
        self._now.pop(kernel_id, None)

    def wait(self, key: str, reason: str) -> None:
        """Record why the question with this key waits; an empty reason ends the wait."""
        if not reason:
            self._waits.pop(key, None)
            return
        self._waits[key] = reason
        if self.on_wait:
            self.on_wait(reason)

    def waits(self) -> tuple[str, ...]:
        return tuple(self._waits.values())

    def now(self) -> tuple[Active, ...]:
        return tuple(Active(kernel_id, phase) for kernel_id, phase in list(self._now.items()))


class Watcher:
    """An observer of a run: it records events and reads the archive for the display. It is thread-safe.

    `seen` is the part of the archive that the run itself uses, if that is not all of it. `only_run` is a run that uses
    only its own kernels.
    """

    def __init__(
        self,
        op: str,
        device: DeviceInfo,
        store: SqliteStore,
        phases: Phases,
        seen: Store | None = None,
        only_run: str = "",
    ) -> None:
        self._only_run = only_run
        self._op, self._device, self._path, self._phases = op, device, store.path, phases
        self._lock, self._seen_store = threading.Lock(), seen or store  # read only by the thread that takes events
        self._known = {kernel.id for kernel in self._seen_store.find(KernelId, op)}
        self._judged = {verdict.kernel_id for verdict in self._seen_store.find(Judged, op, device=device.key)}
        self._proposed: dict[str, Proposal] = {}  # proposals of this run; key: kernel id
        self._failures: deque[str] = deque(maxlen=FAILURES_KEPT)
        self._unread: list[str] = []
        self._finished: list[float] = []
        self._spent = Spent()
        self._last: tuple[str, ...] = ()  # the kernel evaluated last, which another run may have proposed
        self._standing = self._read()
        self._changed = False

    def standing(self) -> Standing:
        """Return the current standing."""
        with self._lock:
            return self._now()

    def has_judged(self, kernel_id: str) -> bool:
        """Return whether the verdict that was just archived is not the kernel's first on this device.

        Another process may have given the first.
        """
        if kernel_id in self._judged:
            return True
        return len(self._seen_store.find(EvaluationSummary, self._op, device=self._device.key, kernels=[kernel_id])) > 1

    def take(self, event: Proposal | Evaluation) -> tuple[Champion, ...]:
        """Record an archived event, and return the new champions that follow from it."""
        with self._lock:
            self._changed = True
            return self._evaluated(event) if isinstance(event, Evaluation) else self._note_proposal(event)

    def progress(self) -> Progress:
        """Return the state that the display shows. In a long run, its standing may be a few seconds old."""
        with self._lock:
            patient = time.monotonic() < self._seen + PATIENCE * self._cost
            return Progress(
                standing=self._standing if patient else self._now(),
                active=tuple(
                    replace(active, confirming=active.kernel_id in self._judged) for active in self._phases.now()
                ),
                failures=tuple(reversed(self._failures)),
                evaluated=len(self._finished),
                per_second=self._rate(),
                spent=self._spent,
                unread=tuple(reasons(self._unread)),
                waits=self._phases.waits(),
            )

    def unread(self) -> tuple[tuple[int, str], ...]:
        """Return the number of this run's requests that gave no kernel, by reason, most frequent first."""
        with self._lock:
            return tuple(reasons(self._unread))

    def _now(self) -> Standing:
        if self._changed:
            self._standing, self._changed = self._read(), False
        return self._standing

    def _read(self) -> Standing:
        """Read the standing over a separate connection, because displays draw in another thread."""
        began = time.monotonic()
        at_work = [active.kernel_id for active in self._phases.now()]
        with closing(open_archive(self._path, read_only=True)) as store:
            named = [*self._proposed, *at_work, *self._last]
            found = standing(store, self._op, self._device, named, self._only_run)
        self._champions = found.champions
        self._seen = time.monotonic()
        self._cost = self._seen - began
        return found

    def _note_proposal(self, proposal: Proposal) -> tuple[Champion, ...]:
        repeated = proposal.kernel_id in self._known or not proposal.kernel
        if proposal.run:  # shipped kernels do not belong to a run and cost nothing
            self._spent += budget.paid(proposal.cost) + Spent(evals=int(repeated and proposal.kernel is not None))
        if proposal.kernel:
            self._known.add(proposal.kernel_id)
            self._proposed[proposal.kernel_id] = proposal
        elif proposal.failure:
            self._unread.append(proposal.failure)
            self._failures.append(f"{proposal.operator}: no kernel: {one_line(proposal.failure)}")
        return ()

    def _evaluated(self, evaluation: Evaluation) -> tuple[Champion, ...]:
        again = self.has_judged(evaluation.kernel_id)
        self._last = (evaluation.kernel_id,)
        self._judged.add(evaluation.kernel_id)
        self._proposed.pop(evaluation.kernel_id, None)
        self._phases.done(evaluation.kernel_id)
        if not evaluation.passed:
            what = f"{evaluation.outcome} when confirmed" if again else str(evaluation.outcome)
            self._failures.append(f"{short(evaluation.kernel_id)} {what}: {one_line(evaluation.log)}")
        if again:  # a confirmation may change the champions, but the kernel is not new
            self._now()
            return ()
        self._finished.append(time.monotonic())
        self._spent += Spent(evals=1)
        held = {champion.workload: champion for champion in self._champions}
        won = tuple(one for one in champions([evaluation]) if one.replaces(held.get(one.workload)))
        self._champions = tuple({**held, **{champion.workload: champion for champion in won}}.values())
        return won

    def _rate(self) -> float:
        recent = [moment for moment in self._finished if moment > time.monotonic() - RATE_SECONDS]
        return len(recent) / max(1.0, min(RATE_SECONDS, time.monotonic() - self._finished[0])) if recent else 0.0


LEAST_BAR = 10  # minimum width of the bar, in columns


def nearest(limits: Budget, spent: Spent) -> tuple[str, float | None]:
    """Return how much of the limit closest to being reached is spent, in words and as a share."""
    found = budget.nearest(limits, spent)
    if found is None:
        return clock(spent.seconds), None
    name, share = found
    words = {
        Ended.SECONDS: f"{clock(spent.seconds)} of {clock(limits.seconds or 0)}",
        Ended.EVALS: f"{spent.evals} of {counted(limits.evals or 0, 'evaluation')}",
        Ended.TOKENS: f"{spent.tokens:,} of {limits.tokens or 0:,} tokens",
        Ended.USD: f"{dollars(spent.usd)} of {dollars(limits.usd or 0)}",
    }
    return words[name], share


@dataclass(frozen=True)
class BudgetMeter:
    """A meter of the spent part of a budget."""

    started: float  # time of time.monotonic, like the deadline
    deadline: float = float("inf")
    budget: Budget = field(default=Budget())  # the total budget
    before: Spent = field(default=Spent())  # the part of the budget that earlier legs spent

    def line(self, progress: Sequence[Progress], width: int) -> RenderableType:
        """Return a bar for the limit that is closest to being reached, and the cost of all ops."""
        now = time.monotonic()
        spent = sum((part.spent for part in progress), self.before + Spent(seconds=now - self.started))
        words, share = nearest(self.budget, spent)
        if any(active.confirming for part in progress for active in part.active):
            words = "confirming the champions"
        elif now >= self.deadline:
            words = "time is up: finishing the evaluations in progress"
        elif share is not None and share >= 1:
            words = f"{words}: finishing the evaluations in progress"
        timed = words.startswith(clock(spent.seconds))
        evaluated, rate = sum(part.evaluated for part in progress), sum(part.per_second for part in progress)
        beside = [] if timed else [clock(spent.seconds)]
        beside += [f"{evaluated} evaluated"] + ([f"{rate:.1f}/s"] if width >= WIDE else [])
        beside += [f"{spent.tokens:,} tokens"] if spent.tokens and "tokens" not in words else []
        beside += [dollars(spent.usd)] if spent.usd and "$" not in words else []
        return _bar(share, words, ", ".join(beside), width)


def _bar(share: float | None, words: str, beside: str, width: int) -> RenderableType:
    """Return a bar with words beside it, or only the words if a bar of a readable length does not fit."""
    row, room = Table.grid(padding=(0, 2, 0, 0), expand=False), width - len(words) - len(beside) - 4
    drawn = ProgressBar(
        total=1.0,
        completed=min(share or 0.0, 1.0),
        width=room,
        complete_style="cyan",
        finished_style="green",
    )
    row.add_row(*([drawn] if room >= LEAST_BAR else []), Text(words, no_wrap=True), fitted(beside))
    return row


def ending(reason: Ended, limits: Budget, spent: Spent) -> tuple[str, Budget | None]:
    """Return the reason why a run ended, and a larger budget if that would let it continue."""
    light, evals = limits.until_light, limits.evals or 0
    judged = "The one evaluation is used." if evals == 1 else f"All {evals} evaluations are used."
    known: dict[Ended, tuple[str, Budget | None]] = {
        Ended.EVALS: (judged, Budget(evals=limits.evals)),
        Ended.TOKENS: (f"All {limits.tokens or 0:,} tokens are spent.", Budget(tokens=limits.tokens)),
        Ended.USD: (f"All of {dollars(limits.usd or 0)} is spent.", Budget(usd=limits.usd)),
        Ended.SECONDS: ("The time is up.", Budget(seconds=limits.seconds)),
        Ended.NOTHING: ("Nothing is left to try: every setting of the population's knobs has been evaluated.", None),
        Ended.LIGHT: ("Every op has reached the speed of light, within the accuracy of the measurement.", None),
    }
    if reason is Ended.LIGHT and light:
        words = f"Every workload has a champion at {light:.3g} of the speed of light or more, as requested."
        return words, Budget(until_light=round((1 + light) / 2, 3))
    words, used = known[reason]
    return words, doubled(used, spent) if used else None


def doubled(limits: Budget, spent: Spent) -> Budget:
    """Double the limits until half of each is left. Confirming the champions can take longer than the search."""
    more = {}
    for name, limit in asdict(limits).items():
        if limit:
            times = 2
            while times * limit < getattr(spent, name) + limit / 2:
                times *= 2
            more[name] = times * limit
    return replace(limits, **more)


def without_answer(limits: Budget, spent: Spent) -> tuple[str, Budget | None]:
    """Return the reason why a run with a model ended before any limit, and a larger budget if that would help."""
    if limits.tokens is None and limits.usd is None:
        return "The proposer has no further proposals.", None
    more = doubled(Budget(tokens=limits.tokens, usd=limits.usd), spent)
    return "The rest of the budget is too small for another question to the model.", more
