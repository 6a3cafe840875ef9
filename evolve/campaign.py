"""A campaign: several ops that share one budget. Each slice goes to the op that is furthest behind its share."""

import math
import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.proposals import Budget, Proposal
from archive.records import Measurement
from archive.store import Store
from archive.summaries import Timing
from evolve import budget, loop
from evolve.budget import Ended, Spent
from evolve.engines.engine import Engine
from evolve.loop import Event
from evolve.request import Bounded, Proposer
from evolve.search import Search
from evolve.selection.view import OpView

GENEROUS = 4.0  # without a measurement, the assumed ratio of the best time to the speed of light
AT_LIGHT = math.log(1 / 0.97)  # less headroom counts as none, because the speed of light is not known exactly
LEAST = 0.1  # minimum headroom of a workload whose speed of light is unknown
PATIENCE = 3  # an op's share is halved after this many slices without improvement, and after each further one
LEAST_SHARE = 1 / 8  # the fraction of its share that an op always keeps
IMPROVED = 0.01


@dataclass(frozen=True)
class Account:
    """What an op has spent of the shared budget, and how much headroom it has left."""

    run: str
    headroom: float
    spent: float = 0.0  # in the unit that `cost` chooses
    idle: int = 0  # slices since the last improvement

    def after(self, cost: float, headroom: float) -> "Account":
        """Return the account after one more slice."""
        better = self.headroom - headroom > IMPROVED
        return replace(self, headroom=headroom, spent=self.spent + cost, idle=0 if better else self.idle + 1)

    @property
    def weight(self) -> float:
        """The share of the budget that the op is due, relative to the other ops."""
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
    """Return what was spent in the first unit that the budget limits, of dollars, tokens, evaluations and seconds."""
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
    views = {search.run: OpView(store, search.op.name, engine.info, search.scope) for search in searches}
    kept = yield from loop.keep(seeds, store)
    for view in views.values():
        view.ask_for(seed.kernel_id for seed in kept)
    ended = yield from share_out(searches, Bounded(proposer), engine, views)
    for search in searches:
        with search.leg(store):
            yield Slice(search, confirming=True)
            yield from loop.confirm(search.locator, engine, views[search.run], search.share)
    return ended


def share_out(
    searches: Sequence[Search], proposer: Proposer, engine: Engine, views: Mapping[str, OpView]
) -> Generator[Event | Slice, None, Ended]:
    """Run slices until the shared budget is spent or every op is at the speed of light."""
    running = {search.run: search for search in searches}
    accounts = {search.run: _account(search, views[search.run]) for search in searches}
    spent, reason = Spent(), Ended.LIGHT
    aside = set[str]()  # those with nothing left but what other processes are working on
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
