"""Several ops under one budget: a round at a time for the one that is furthest behind its share."""

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import allotment, budget, loop
from evolve.allotment import Account
from evolve.budget import Ended, Spent
from evolve.engines.engine import Engine
from evolve.loop import Event
from evolve.request import Proposer
from evolve.search import Quest
from evolve.selection import selection


@dataclass(frozen=True)
class Slice:
    """One round of one op is about to begin, or its champions are about to be confirmed."""

    quest: Quest
    confirming: bool = False


def campaign(
    quests: Sequence[Quest], seeds: Sequence[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event | Slice, None, Ended]:
    """Yield each slice before it begins, and what happens in it; in the end, why it is the end."""
    yield from loop.keep(seeds, store)
    ended = yield from search(quests, proposer, engine, store)
    for quest in quests:
        with quest.leg(store):
            yield Slice(quest, confirming=True)
            yield from loop.confirm(quest.op.name, quest.locator, engine, store, quest.scope)
    return ended


def search(
    quests: Sequence[Quest], proposer: Proposer, engine: Engine, store: Store
) -> Generator[Event | Slice, None, Ended]:
    """Until the budget that all share is spent, or no op is worth more of it."""
    running = {quest.run: quest for quest in quests}
    accounts = {quest.run: _account(quest, engine.info, store) for quest in quests}
    spent, reason = Spent(), Ended.LIGHT
    while chosen := allotment.next_run(accounts[run] for run in running):
        quest, before, began = running[chosen], spent, time.monotonic()
        with quest.leg(store):  # one of its own, so that the archive tells which op the time went to
            yield Slice(quest)
            spent, ended = yield from loop.one_round(quest, spent, proposer, engine, store)
        spent += Spent(seconds=time.monotonic() - began)
        cost = allotment.cost(quest.budget, spent) - allotment.cost(quest.budget, before)
        accounts[chosen] = accounts[chosen].after(cost, headroom(quest, engine.info, store))
        if ended not in (None, Ended.LIGHT, Ended.NOTHING):
            return ended
        if ended:
            del running[chosen]
            reason = ended if ended is Ended.NOTHING else reason
    return reason


def headroom(quest: Quest, device: DeviceInfo, store: Store) -> float:
    """How far the op is from the speed of light, as a logarithm."""
    leading = selection.champions(store, quest.op.name, device, quest.scope)
    return allotment.headroom(_workloads(quest, device), leading, _made(quest, device, store))


def is_measured(quest: Quest, device: DeviceInfo, store: Store) -> bool:
    """Whether the headroom is more than a guess."""
    workloads = _workloads(quest, device)
    return any(m.workload in workloads for verdict in _made(quest, device, store) for m in verdict.measurements)


def _made(quest: Quest, device: DeviceInfo, store: Store) -> list[Evaluation]:
    return [evaluation for evaluation in store.find(Evaluation, quest.op.name) if evaluation.device.key == device.key]


def _workloads(quest: Quest, device: DeviceInfo) -> list[str]:
    return [workload.key for workload in quest.op.workloads(device.kind)]


def _account(quest: Quest, device: DeviceInfo, store: Store) -> Account:
    gone = budget.spent(quest.run, budget.history(store, quest.op.name, device.key))
    return Account(quest.run, headroom(quest, device, store), allotment.cost(quest.budget, gone))
