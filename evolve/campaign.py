"""A campaign: several ops that share one budget. Each slice goes to the op that is furthest behind its share.

On several cards, the next op's slice begins as soon as a card would be idle. An op that is evolved for several types of
GPUs has a search for each.
"""

import math
import time
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from archive.kernel import Proposal
from archive.records import Evaluation, Measurement
from archive.runs import Budget
from archive.store import Store
from archive.summaries import Timing
from evolve import budget, loop
from evolve.budget import Ended, Spent
from evolve.confirm import Champions, confirm
from evolve.engines.engine import Engine, HasCards, HasDevices, Job, TakesPauses, on_device
from evolve.loop import Event
from evolve.request import Bounded, Proposer, Request
from evolve.search import Search
from evolve.selection import selection
from evolve.selection.view import OpView

GENEROUS = 4.0  # assumed ratio of the best time to the speed of light before any measurement
# headroom below which an op counts as finished, because the speed of light is not known exactly
AT_LIGHT = math.log(1 / 0.97)
LEAST = 0.1  # minimum headroom of a workload whose speed of light is unknown
PATIENCE = 3  # an op's share is halved after this many slices without improvement, and after each further slice
LEAST_SHARE = 1 / 8  # the fraction of its share that an op always keeps
IMPROVED = 0.01


@dataclass(frozen=True)
class Account:
    """The part of the shared budget that an op has spent, and its remaining headroom."""

    run: str
    headroom: float
    spent: float = 0.0  # cost in the unit that `cost` chooses
    idle: int = 0  # number of slices since the last improvement

    def after(self, cost: float, headroom: float) -> "Account":
        """Return the account after one more slice."""
        better = self.headroom - headroom > IMPROVED
        return replace(self, headroom=headroom, spent=self.spent + cost, idle=0 if better else self.idle + 1)

    @property
    def weight(self) -> float:
        """The op's share of the budget, relative to the other ops."""
        kept = max(LEAST_SHARE, 0.5 ** max(0, self.idle - PATIENCE + 1))
        return self.headroom * kept if self.headroom > AT_LIGHT else 0.0


def next_run(accounts: Iterable[Account]) -> str | None:
    """Return the run that is furthest behind its share, or None if every op is at the speed of light."""
    due = [account for account in accounts if account.weight > 0]
    first = min(due, key=lambda account: (account.spent / account.weight, -account.headroom), default=None)
    return first.run if first else None


def mean_headroom(
    workloads: Sequence[str], leading: Mapping[str, Timing | Measurement], seen: Mapping[str, Timing | Measurement]
) -> float:
    """Return the mean over the workloads of log(best time / speed of light).

    `leading` holds the champions' times. For a workload without a champion, PyTorch's time in `seen` is used.
    """
    rooms = []
    for workload in workloads:
        known = leading.get(workload) or seen.get(workload)
        if known is None:
            rooms.append(math.log(GENEROUS))
            continue
        time_us = known.median_us if workload in leading else known.baseline_us
        if known.floor_us:
            rooms.append(max(0.0, math.log(time_us / known.floor_us)))
        else:
            rooms.append(max(LEAST, math.log(time_us / (known.baseline_us / GENEROUS))))
    return sum(rooms) / len(rooms) if rooms else 0.0


def cost(budget: Budget, spent: Spent) -> float:
    """Return the cost in the first unit that the budget limits: dollars, tokens, evaluations or seconds."""
    limits: Mapping[str, float | None] = {
        "usd": budget.usd, "tokens": budget.tokens, "evals": budget.evals, "seconds": budget.seconds
    }  # fmt: skip
    unit = next((name for name, limit in limits.items() if limit is not None), "evals")
    return float(getattr(spent, unit))


@dataclass(frozen=True)
class Slice:
    """An event that marks the start of a round of an op, or of the confirmation of its champions."""

    search: Search
    confirming: bool = False


def campaign(
    searches: Sequence[Search], seeds: Sequence[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event | Slice, None, Ended]:
    """Yield each slice when it begins, then its events, and return the reason why the campaign ended."""
    views = {
        search.run: OpView(store, search.op.name, on_device(engine, search.device).info, search.scope)
        for search in searches
    }
    kept = yield from loop.keep(seeds, store)
    for view in views.values():
        view.ask_for(seed.kernel_id for seed in kept)
    several = len({search.device for search in searches}) > 1
    if isinstance(engine, HasCards) and (several or engine.cards > 1):
        ended = yield from SideBySide(searches, Bounded(proposer), engine, views).run()
    else:
        ended = yield from share_out(searches, Bounded(proposer), engine, views)
    for device in dict.fromkeys(search.device for search in searches):
        of_device = [search for search in searches if search.device == device]
        yield from (Slice(search, confirming=True) for search in of_device)
        ops = [Champions(one.locator, views[one.run], one.share, partial(one.leg, store)) for one in of_device]
        yield from confirm(ops, on_device(engine, device))
    return ended


def share_out(
    searches: Sequence[Search], proposer: Proposer, engine: Engine, views: Mapping[str, OpView]
) -> Generator[Event | Slice, None, Ended]:
    """Run slices until the shared budget is spent or every op is at the speed of light."""
    running = {search.run: search for search in searches}
    accounts = {search.run: _account(search, views[search.run]) for search in searches}
    spent, reason = Spent(), Ended.LIGHT
    aside = set[str]()  # ops whose remaining kernels are being evaluated by other processes
    while chosen := _next_run(accounts, running, aside):
        search, view, before, began = running[chosen], views[chosen], spent, time.monotonic()
        if chosen in aside:
            aside.remove(chosen)
            search.share.others_work(view, search.deadline)
        with search.leg(view.store):  # a leg per slice, so that the archive shows which op took the time
            yield Slice(search)
            spent, ended = yield from loop.one_round(search, spent, proposer, engine, view)
        spent += Spent(seconds=time.monotonic() - began)
        paid = cost(search.budget, spent) - cost(search.budget, before)
        accounts[chosen] = accounts[chosen].after(paid, headroom(search, view))
        if ended not in (None, Ended.LIGHT, Ended.NOTHING):
            return ended
        if ended is Ended.NOTHING and search.share.met:
            aside.add(chosen)
        elif ended:
            del running[chosen]
            reason = ended if ended is Ended.NOTHING else reason
    return reason


@dataclass
class Turn:
    """A slice of an op that runs beside slices of other ops."""

    search: Search
    view: OpView
    leg: ExitStack
    began: float = field(default_factory=time.monotonic)
    spent: Spent = field(default=Spent())
    waiting: deque[Job] = field(default_factory=deque)
    under_way: set[str] = field(default_factory=set)  # kernels
    asked: bool = False  # whether proposals were requested, which happens when the op's pending kernels are judged
    incoming: Iterator[Proposal] = field(default_factory=lambda: iter(()))
    known: set[str] = field(default_factory=set)  # kernels that are not new when they are proposed
    proposed: int = 0

    @property
    def done(self) -> bool:
        return self.asked and not (self.waiting or self.under_way)


class SideBySide:
    """Slices of several ops at the same time, for an engine with several cards.

    The engine asks for the next job when it would be idle otherwise. It gets a job of the oldest slice that has one. If
    no slice has a job, the slice of the next op begins. Proposals become jobs one by one, as they arrive.
    """

    def __init__(
        self, searches: Sequence[Search], proposer: Proposer, engine: TakesPauses, views: Mapping[str, OpView]
    ) -> None:
        self._proposer, self._engine, self._views = proposer, engine, views
        self._running = {search.run: search for search in searches}
        self._accounts = {search.run: _account(search, views[search.run]) for search in searches}
        self._turns: dict[str, Turn] = {}
        self._aside = set[str]()  # ops that are set aside, as in `share_out`
        # a slice that waits for profiles: the profiler needs exclusive use of the engine
        self._unprofiled: Turn | None = None
        self._events = deque[Event | Slice]()  # events that are archived but not yielded yet
        self._began, self._spent = time.monotonic(), Spent()
        self._ended: Ended | None = None
        self._reason = Ended.LIGHT

    def run(self) -> Generator[Event | Slice, None, Ended]:
        """Run slices until the shared budget is spent or every op is at the speed of light."""
        try:
            while True:
                for verdict in self._engine.evaluate(self._jobs()):
                    self._take(verdict)
                    yield from self._happened()
                yield from self._happened()
                if not self._goes_on():
                    return self._ended or self._reason
        finally:
            for turn in self._turns.values():
                turn.leg.close()

    def _happened(self) -> Iterator[Event | Slice]:
        while self._events:
            yield self._events.popleft()

    def _jobs(self) -> Iterator[Job | None]:
        """Yield jobs, and None while verdicts are awaited. End when no job is in progress and no slice can begin."""
        while not self._ended:
            job = None if self._unprofiled else self._next_job()
            if self._ended or (job is None and not any(turn.under_way for turn in self._turns.values())):
                return
            yield job

    def _next_job(self) -> Job | None:
        while True:
            for turn in list(self._turns.values()):
                if self._is_idle(turn.search) and (job := self._job_of(turn)):
                    return replace(job, device=turn.search.device)
            if self._ended or self._unprofiled or not self._begin():
                return None

    def _is_idle(self, search: Search) -> bool:
        """Return whether the search's device would be idle without another job."""
        return not search.device or not isinstance(self._engine, HasDevices) or search.device in self._engine.idle

    def _job_of(self, turn: Turn) -> Job | None:
        """Return the slice's next job, or None if it has none now. This may request proposals."""
        while not (self._ended or self._unprofiled):
            if turn.waiting:
                job = turn.waiting.popleft()
                if time.monotonic() < turn.search.deadline and turn.search.share.take(turn.view, job.kernel.id):
                    turn.under_way.add(job.kernel.id)
                    return job
            elif not turn.asked and not turn.under_way:
                self._ask(turn)
            elif turn.asked and (proposal := next(turn.incoming, None)):
                self._add(turn, proposal)
            else:
                if turn.done:
                    self._finish(turn)
                break
        return None

    def _begin(self) -> bool:
        """Begin the slice of the op that is furthest behind its share, if there is one and budget is left."""
        accounts = (
            account for run, account in self._accounts.items()
            if run in self._running and run not in self._aside and run not in self._turns
            and self._is_idle(self._running[run])
        )  # fmt: skip
        chosen = next_run(accounts)
        if not chosen:
            return False
        search, view = self._running[chosen], self._views[chosen]
        if reached := search.over(view, self._committed()):
            if reached is Ended.LIGHT:
                del self._running[chosen]
            elif not self._turns:
                self._ended = reached
            return reached is Ended.LIGHT
        turn = self._turns[chosen] = Turn(search, view, ExitStack())
        turn.leg.enter_context(search.leg(view.store))
        self._events.append(Slice(search))
        self._queue(turn, search.share.free(view, view.pending()))
        return True

    def _queue(self, turn: Turn, kernels: Sequence[str]) -> None:
        """Queue kernels without a verdict, as far as the budget allows."""
        left = budget.left(turn.search.budget, self._committed()).evals
        agenda = selection.agenda(turn.view, kernels[:left])
        for verdict in agenda.repeated:
            if turn.search.share.take(turn.view, verdict.kernel_id):
                self._judged(turn, verdict)
        turn.waiting.extend(
            Job(kernel, turn.search.locator, agenda.bars, kernel.id in agenda.settings, duplicates=agenda.duplicates)
            for kernel in agenda.new
        )

    def _ask(self, turn: Turn) -> None:
        """Request proposals, unless the budget is spent."""
        turn.asked = bool(turn.search.over(turn.view, self._committed()))
        if turn.asked:
            return
        request = turn.search.request(turn.view, self._committed())
        if turn.search.profiled and selection.unprofiled(request):
            self._unprofiled = turn
        else:
            self._expect(turn, request)

    def _expect(self, turn: Turn, request: Request) -> None:
        turn.asked, turn.known = True, set(request.known)
        turn.incoming = turn.search.share.unproposed(turn.view, request, self._proposer.propose(request))

    def _add(self, turn: Turn, proposal: Proposal) -> None:
        """Archive a proposal, and queue its kernel. A known kernel counts as an evaluation at once."""
        self._events.extend(loop.keep([proposal], turn.view.store))
        turn.proposed += 1
        self._pay(turn, budget.paid(proposal.cost))
        if proposal.kernel_id in turn.known:
            self._pay(turn, Spent(evals=1))
        elif proposal.kernel:
            turn.known.add(proposal.kernel_id)
            self._queue(turn, [proposal.kernel_id])

    def _take(self, verdict: Evaluation) -> None:
        of_device = (turn for turn in self._turns.values() if turn.view.device.key == verdict.device.key)
        turn = next(turn for turn in of_device if verdict.kernel_id in turn.under_way)
        self._judged(turn, verdict)
        turn.under_way.remove(verdict.kernel_id)
        reached = turn.search.over(turn.view, self._spent)
        if reached is not Ended.LIGHT:  # an op at the speed of light leaves the rest of the budget to the other ops
            self._ended = self._ended or reached

    def _judged(self, turn: Turn, verdict: Evaluation) -> None:
        self._events.extend(loop.keep(turn.search.share.judged(turn.view, [verdict]), turn.view.store))
        self._pay(turn, Spent(evals=1))

    def _pay(self, turn: Turn, paid: Spent) -> None:
        turn.spent += paid
        self._spent = replace(self._spent + paid, seconds=time.monotonic() - self._began)

    def _committed(self) -> Spent:
        """Return the cost, including evaluations that wait or are in progress."""
        return self._spent + Spent(evals=sum(len(one.waiting) + len(one.under_way) for one in self._turns.values()))

    def _finish(self, turn: Turn) -> None:
        """End a slice, and decide whether its op continues."""
        search, run = turn.search, turn.search.run
        del self._turns[run]
        turn.leg.close()
        paid = cost(search.budget, replace(turn.spent, seconds=time.monotonic() - turn.began))
        self._accounts[run] = self._accounts[run].after(paid, headroom(search, turn.view))
        over = search.over(turn.view, self._spent)
        ended = over or (None if turn.proposed or search.over(turn.view, self._committed()) else Ended.NOTHING)
        if ended is Ended.NOTHING and search.share.met:
            self._aside.add(run)
        elif ended in (Ended.LIGHT, Ended.NOTHING):
            del self._running[run]
            self._reason = ended if ended is Ended.NOTHING else self._reason
        else:
            self._ended = self._ended or ended

    def _goes_on(self) -> bool:
        """Do the work that needs an idle engine. Return whether there may be more kernels to evaluate."""
        if self._ended:
            return False
        if turn := self._unprofiled:
            self._unprofiled = None
            request = turn.search.request(turn.view, self._committed())
            if turn.search.profile(request, on_device(self._engine, turn.search.device), turn.view.store):
                request = turn.search.request(turn.view, self._committed())
            self._expect(turn, request)
            return True
        chosen = next_run(self._accounts[run] for run in self._aside)
        if chosen:
            self._aside.remove(chosen)
            self._running[chosen].share.others_work(self._views[chosen], self._running[chosen].deadline)
        return bool(chosen)


def _next_run(accounts: Mapping[str, Account], running: Collection[str], aside: Collection[str]) -> str | None:
    return next_run(accounts[run] for run in running if run not in aside) or next_run(accounts[run] for run in aside)


def headroom(search: Search, view: OpView) -> float:
    """Return the log of the op's best time over the speed of light, averaged over its workloads."""
    return mean_headroom(_workloads(search, view), view.leading_times(), view.latest_times())


def is_measured(search: Search, view: OpView) -> bool:
    """Return whether any workload has been measured; before that, the headroom is only a guess."""
    return any(workload in view.latest_times() for workload in _workloads(search, view))


def _workloads(search: Search, view: OpView) -> list[str]:
    return [workload.key for workload in search.op.workloads(view.device.kind)]


def _account(search: Search, view: OpView) -> Account:
    spent = budget.spent(search.run, budget.history(view.store, view.op, view.device.key))
    return Account(search.run, headroom(search, view), cost(search.budget, spent))
