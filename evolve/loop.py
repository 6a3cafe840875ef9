"""The story: propose, evaluate, archive, select, and again; in the end the champions are confirmed.

Everything that happened is in the archive before the next step begins. So a loop that was killed goes on
where it was: proposals without a verdict are evaluated first, and nothing is done twice.
"""

import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from archive.proposals import Proposal
from archive.records import Evaluation
from archive.store import Store
from evolve import selection
from evolve.engines.engine import Engine, Job
from evolve.proposers.proposer import Proposer
from evolve.selection import Scope
from reference_ops.op import Op

GENERATION = 8  # proposals asked for at once
CONFIRMING_ROUNDS = 4  # where a champion falls, the next one is confirmed in its place


@dataclass(frozen=True)
class Quest:
    """What a run is after, and when it stops."""

    run: str
    op: Op
    locator: str  # how another process finds the op: its name, or the path of its file
    seed: int
    tries: int  # evaluations, and proposals that give nothing to evaluate
    deadline: float  # by time.monotonic


Event = Proposal | Evaluation


def evolve(
    quest: Quest, seeds: Iterable[Proposal], proposer: Proposer, engine: Engine, store: Store
) -> Iterator[Event]:
    """Yield each proposal and each evaluation once it is safely in the archive."""
    yield from keep(seeds, store)
    yield from search(quest, proposer, engine, store)
    yield from confirm(quest.op.name, quest.locator, engine, store)


def search(quest: Quest, proposer: Proposer, engine: Engine, store: Store) -> Iterator[Event]:
    """Until the tries or the time are over, or nothing is left to try."""
    tries = 0
    while True:
        tries += yield from settle(quest, engine, store, quest.tries - tries)
        if tries >= quest.tries or time.monotonic() >= quest.deadline:
            return
        wanted = min(GENERATION, quest.tries - tries)
        request = selection.request(quest.op, engine.info, store, wanted, seed=quest.seed, scope=Scope(quest.run))
        proposals = yield from keep(proposer.propose(request), store)
        if not proposals:
            return
        fresh = {proposal.kernel_id for proposal in proposals if proposal.kernel} - request.known
        tries += len(proposals) - len(fresh)  # the fresh ones count when they are evaluated


def confirm(op: str, locator: str, engine: Engine, store: Store) -> Iterator[Evaluation]:
    """Test the champions again, harder, in a fresh process each; also when the time is over, for it is bounded."""
    for _ in range(CONFIRMING_ROUNDS):
        champions = selection.unconfirmed(store, op, engine.info)
        yield from judge((Job(kernel, locator, confirm=True) for kernel in champions), engine, store)


def keep(proposals: Iterable[Proposal], store: Store) -> Generator[Event, None, list[Proposal]]:
    """Archive proposals as they come."""
    kept = []
    for proposal in proposals:
        store.append(proposal)
        kept.append(proposal)
        yield proposal
    return kept


def settle(quest: Quest, engine: Engine, store: Store, most: int) -> Generator[Event, None, int]:
    """Evaluate what has no verdict on this device yet; the number of verdicts."""
    waiting = selection.pending(store, quest.op.name, engine.info)[: max(0, most)]
    bars = selection.bars(store, quest.op.name, engine.info) if waiting else ()
    jobs = (Job(kernel, quest.locator, bars) for kernel in waiting if time.monotonic() < quest.deadline)
    return (yield from judge(jobs, engine, store))


def judge(jobs: Iterable[Job], engine: Engine, store: Store) -> Generator[Evaluation, None, int]:
    """Archive verdicts as they come; their number."""
    count = 0
    for evaluation in engine.evaluate(jobs):
        store.append(evaluation)
        count += 1
        yield evaluation
    return count
