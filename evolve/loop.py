"""The story: propose, evaluate, archive, select, and again.

Everything that happened is in the archive before the next step begins. So a loop that was killed goes on
where it was: proposals without a verdict are evaluated first, and nothing is done twice.
"""

import random
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Proposal
from archive.store import Store
from evolve import population
from evolve.engines.engine import Engine, Job
from evolve.proposers.proposer import Candidate, Proposer, Request
from reference_ops.op import Op

GENERATION = 8  # proposals asked for at once
FAILURES_SHOWN = 6


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
    tries = 0
    while True:
        tries += yield from settle(quest, engine, store, quest.tries - tries)
        if tries >= quest.tries or time.monotonic() >= quest.deadline:
            return
        request = ask(quest, engine.info, store, min(GENERATION, quest.tries - tries))
        proposals = yield from keep(proposer.propose(request), store)
        if not proposals:
            return
        fresh = {proposal.kernel_id for proposal in proposals if proposal.kernel} - request.known
        tries += len(proposals) - len(fresh)  # the fresh ones count when they are evaluated


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
    waiting = pending(store, quest.op.name, engine.info)[: max(0, most)]
    jobs = (Job(kernel, quest.locator) for kernel in waiting if time.monotonic() < quest.deadline)
    count = 0
    for evaluation in engine.evaluate(jobs):
        store.append(evaluation)
        count += 1
        yield evaluation
    return count


def pending(store: Store, op: str, device: DeviceInfo) -> list[Kernel]:
    """Every kernel that was proposed and never evaluated on this device, oldest first."""
    judged = population.latest(store.find(Evaluation, op), device.key)
    return [kernel for kernel in store.find(Kernel, op) if kernel.id not in judged]


def ask(quest: Quest, device: DeviceInfo, store: Store, wanted: int) -> Request:
    """What the archive has to say to a proposer, parents drawn."""
    proposals, kernels = store.find(Proposal, quest.op.name), store.find(Kernel, quest.op.name)
    verdicts = population.latest(store.find(Evaluation, quest.op.name), device.key)
    alive = population.survivors(list(verdicts.values()))
    rng = random.Random(f"{quest.seed} {len(proposals)}")
    used = Counter(parent for proposal in proposals for parent in proposal.parents)
    repaired = {parent for p in proposals if p.operator == "repair" for parent in p.parents}
    failed = [e for e in verdicts.values() if not e.passed and e.kernel_id not in repaired]
    failed.sort(key=lambda evaluation: -evaluation.created)
    by_id = {kernel.id: kernel for kernel in kernels}

    def candidates(evaluations: Iterable[Evaluation]) -> tuple[Candidate, ...]:
        return tuple(Candidate(by_id[e.kernel_id], e) for e in evaluations if e.kernel_id in by_id)

    return Request(
        op=quest.op,
        device=device,
        wanted=wanted,
        seed=rng.randrange(2**31),
        run=quest.run,
        population=candidates(alive),
        parents=candidates(population.parents(alive, used, wanted, rng)),
        failures=candidates(failed[:FAILURES_SHOWN]),
        known=frozenset(by_id),
    )
