"""Campaign: several ops under one budget. Each turn goes to the op that is furthest behind its share of it."""

import math
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.proposals import Budget, Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import budget, loop
from evolve.budget import Ended, Spent
from evolve.engines.engine import Engine
from evolve.loop import Event
from evolve.request import Proposer
from evolve.search import Search
from evolve.selection import selection
from evolve.selection.population import Champion

GENEROUS = 4.0  # times the speed of light, or PyTorch's share of it, where nothing has been measured
AT_LIGHT = math.log(1 / 0.97)  # nobody measures the speed of light to better than a few percent
LEAST = 0.1  # headroom of an op whose speed of light is unknown, however fast its kernels are
PATIENCE = 3  # slices without improvement, after which each further one halves an op's share,
LEAST_SHARE = 1 / 8  # down to this
IMPROVED = 0.01


@dataclass(frozen=True)
class Account:
    """What one op had of the shared budget, and what it still promises."""

    run: str
    headroom: float
    spent: float = 0.0  # in whatever `cost` measures the budget in
    idle: int = 0  # slices since the last that brought an improvement

    def after(self, cost: float, headroom: float) -> "Account":
        """The same account after one more slice."""
        better = self.headroom - headroom > IMPROVED
        return replace(self, headroom=headroom, spent=self.spent + cost, idle=0 if better else self.idle + 1)

    @property
    def weight(self) -> float:
        """The share it deserves, beside those of the others."""
        tired = max(LEAST_SHARE, 0.5 ** max(0, self.idle - PATIENCE + 1))
        return self.headroom * tired if self.headroom > AT_LIGHT else 0.0


def next_run(accounts: Iterable[Account]) -> str | None:
    """Who is furthest behind its share; nobody where all are at the speed of light."""
    worthy = [account for account in accounts if account.weight > 0]
    first = min(worthy, key=lambda account: (account.spent / account.weight, -account.headroom), default=None)
    return first.run if first else None


def mean_headroom(workloads: Sequence[str], champions: Iterable[Champion], evaluations: Sequence[Evaluation]) -> float:
    """The mean over the workloads of log(best time / speed of light), where PyTorch's time counts if there is no other.

    `evaluations` are all that were ever made of the op on the device: also one that no longer holds knows PyTorch.
    """
    leading = {champion.workload: champion.measurement for champion in champions}
    seen = {m.workload: m for evaluation in evaluations for m in evaluation.measurements}
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
    """What is shared out: the dearest thing that the budget limits."""
    limits: Mapping[str, float | None] = {
        "usd": budget.usd, "tokens": budget.tokens, "evals": budget.evals, "seconds": budget.seconds
    }  # fmt: skip
    unit = next((name for name, limit in limits.items() if limit is not None), "evals")
    return float(getattr(spent, unit))


@dataclass(frozen=True)
class Slice:
    """One round of one op is about to begin, or its champions are about to be confirmed."""

    search: Search
    confirming: bool = False


def campaign(
    searches: Sequence[Search], seeds: Sequence[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event | Slice, None, Ended]:
    """Yield each slice before it begins, and what happens in it; in the end, why it is the end."""
    yield from loop.keep(seeds, store)
    ended = yield from share_out(searches, proposer, engine, store)
    for search in searches:
        with search.leg(store):
            yield Slice(search, confirming=True)
            yield from loop.confirm(search.op.name, search.locator, engine, store, search.scope)
    return ended


def share_out(
    searches: Sequence[Search], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event | Slice, None, Ended]:
    """Until the budget that all share is spent, or no op is worth more of it."""
    running = {search.run: search for search in searches}
    accounts = {search.run: _account(search, engine.info, store) for search in searches}
    spent, reason = Spent(), Ended.LIGHT
    while chosen := next_run(accounts[run] for run in running):
        search, before, began = running[chosen], spent, time.monotonic()
        with search.leg(store):  # one of its own, so that the archive tells which op the time went to
            yield Slice(search)
            spent, ended = yield from loop.one_round(search, spent, proposer, engine, store)
        spent += Spent(seconds=time.monotonic() - began)
        paid = cost(search.budget, spent) - cost(search.budget, before)
        accounts[chosen] = accounts[chosen].after(paid, headroom(search, engine.info, store))
        if ended not in (None, Ended.LIGHT, Ended.NOTHING):
            return ended
        if ended:
            del running[chosen]
            reason = ended if ended is Ended.NOTHING else reason
    return reason


def headroom(search: Search, device: DeviceInfo, store: Store) -> float:
    """How far the op is from the speed of light, as a logarithm."""
    leading = selection.champions(store, search.op.name, device, search.scope)
    return mean_headroom(_workloads(search, device), leading, _made(search, device, store))


def is_measured(search: Search, device: DeviceInfo, store: Store) -> bool:
    """Whether the headroom is more than a guess."""
    workloads = _workloads(search, device)
    return any(m.workload in workloads for verdict in _made(search, device, store) for m in verdict.measurements)


def _made(search: Search, device: DeviceInfo, store: Store) -> list[Evaluation]:
    return [evaluation for evaluation in store.find(Evaluation, search.op.name) if evaluation.device.key == device.key]


def _workloads(search: Search, device: DeviceInfo) -> list[str]:
    return [workload.key for workload in search.op.workloads(device.kind)]


def _account(search: Search, device: DeviceInfo, store: Store) -> Account:
    gone = budget.spent(search.run, budget.history(store, search.op.name, device.key))
    return Account(search.run, headroom(search, device, store), cost(search.budget, gone))
