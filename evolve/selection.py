"""What the archive says to the next step: which kernels wait for a verdict, and what a proposer gets to see."""

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import population
from evolve.proposers.proposer import Candidate, Left, Request
from reference_ops.op import Op

FAILURES_SHOWN = 6
EVOLVE, BEST_OF_N = "evolve", "best-of-n"
STRATEGIES = (EVOLVE, BEST_OF_N)


@dataclass(frozen=True)
class Scope:
    """How much of the archive a run makes use of."""

    run: str = ""
    strategy: str = EVOLVE  # best-of-n, the control arm, asks each time as if it were the first
    fresh: bool = False  # only what this very run has proposed


EVERYTHING, UNLIMITED = Scope(), Left()


def pending(store: Store, op: str, device: DeviceInfo) -> list[Kernel]:
    """Every kernel that was proposed and never evaluated on this device, oldest first."""
    judged = population.latest(store.find(Evaluation, op), device.key)
    return [kernel for kernel in store.find(Kernel, op) if kernel.id not in judged]


def unconfirmed(store: Store, op: str, device: DeviceInfo) -> list[Kernel]:
    """The champions that no fresh process has tested again yet, in the order of the workloads they lead on."""
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, op)}
    waiting = dict.fromkeys(c.kernel_id for c in _champions(store, op, device) if c.confirmed is None)
    return [kernels[kernel_id] for kernel_id in waiting if kernel_id in kernels]


def bars(store: Store, op: str, device: DeviceInfo) -> tuple[tuple[str, float], ...]:
    """The time to beat on each workload, in us."""
    return tuple((c.workload, c.measurement.median_us) for c in _champions(store, op, device))


def request(
    op: Op,
    device: DeviceInfo,
    store: Store,
    wanted: int,
    *,
    seed: int,
    scope: Scope = EVERYTHING,
    left: Left = UNLIMITED,
) -> Request:
    """Parents drawn, failures that nobody repaired yet, and all that is known already."""
    proposals = store.find(Proposal, op.name)
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, op.name)}
    verdicts = population.latest(store.find(Evaluation, op.name), device.key)
    alive = population.survivors(list(verdicts.values()))
    rng = random.Random(f"{seed} {len(proposals)}")
    used = Counter(parent for proposal in proposals for parent in proposal.parents)

    def candidates(evaluations: Iterable[Evaluation]) -> tuple[Candidate, ...]:
        return tuple(Candidate(kernels[e.kernel_id], e) for e in evaluations if e.kernel_id in kernels)

    return Request(
        op=op,
        device=device,
        wanted=wanted,
        seed=rng.randrange(2**31),
        run=scope.run,
        left=left,
        population=candidates(alive),
        parents=candidates(population.parents(alive, used, wanted, rng)),
        failures=candidates(_unrepaired(verdicts.values(), proposals)),
        known=frozenset(kernels),
    )


def _champions(store: Store, op: str, device: DeviceInfo) -> tuple[population.Champion, ...]:
    return population.champions(population.latest(store.find(Evaluation, op), device.key).values())


def _unrepaired(verdicts: Iterable[Evaluation], proposals: Iterable[Proposal]) -> list[Evaluation]:
    """The latest failures, newest first."""
    repaired = {parent for proposal in proposals if proposal.operator == "repair" for parent in proposal.parents}
    failed = [verdict for verdict in verdicts if not verdict.passed and verdict.kernel_id not in repaired]
    return sorted(failed, key=lambda verdict: -verdict.created)[:FAILURES_SHOWN]
