"""What the archive says to the next step: which kernels wait for a verdict, and what a proposer gets to see."""

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation, Merged, Outcome, Profile
from archive.store import Store
from evolve.request import Candidate, Left, Request
from evolve.selection import history, population
from evolve.selection import islands as islands_of
from evolve.selection.duplicates import judged, likeness
from evolve.selection.history import lessons
from reference_ops.op import Op

FAILURES_SHOWN, DONORS = 6, 3
PROFILES = 2  # in one round: each takes some seconds
REPAIRS = 3  # one on top of the other, before a kernel is given up
BEYOND_REPAIR = (Outcome.PASSED, Outcome.DUPLICATE)
EVOLVE, BEST_OF_N = "evolve", "best-of-n"
STRATEGIES = (EVOLVE, BEST_OF_N)


@dataclass(frozen=True)
class Scope:
    """How much of the archive a run makes use of."""

    run: str = ""
    strategy: str = EVOLVE  # best-of-n, the control arm, asks each time as if it were the first
    fresh: bool = False  # only what this very run has proposed


EVERYTHING, UNLIMITED = Scope(), Left()


def pending(store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> list[Kernel]:
    """Every kernel that was proposed and never evaluated on this device, oldest first."""
    verdicts = population.latest(store.find(Evaluation, op), device.key)
    waiting = [kernel for kernel in store.find(Kernel, op) if kernel.id not in verdicts]
    own = _own(store, op, scope) if waiting else None
    return [kernel for kernel in waiting if own is None or kernel.id in own]


def twins(waiting: Iterable[Kernel], store: Store, op: str, device: DeviceInfo) -> Iterator[Evaluation]:
    """Verdicts on those that say nothing new: their text differs from that of a kernel judged before in words alone."""
    verdicts = population.latest(store.find(Evaluation, op), device.key)
    alike = {
        likeness(kernel): kernel.id
        for kernel in store.find(Kernel, op)
        if kernel.id in verdicts and verdicts[kernel.id].outcome is not Outcome.DUPLICATE
    }
    for kernel in waiting:
        if twin := alike.get(likeness(kernel)):
            log = f"says what kernel {twin} says in other words; that one's verdict: {verdicts[twin].outcome}"
            yield Evaluation(kernel.id, op, device, Outcome.DUPLICATE, log, created=time.time())


@dataclass(frozen=True)
class Agenda:
    """What waits for a verdict: that of a twin will do for some, the others are to be evaluated."""

    repeated: tuple[Evaluation, ...]
    new: tuple[Kernel, ...]
    bars: tuple[tuple[str, float], ...]
    known: Mapping[str, Evaluation]  # by the machine code it was given on: what compiles to the same needs no GPU


def agenda(waiting: Sequence[Kernel], store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> Agenda:
    repeated = tuple(twins(waiting, store, op, device))
    told = {verdict.kernel_id for verdict in repeated}
    known = judged(population.latest(store.find(Evaluation, op), device.key).values())
    new = tuple(kernel for kernel in waiting if kernel.id not in told)
    return Agenda(repeated, new, bars(store, op, device, scope), known)


def champions(store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> tuple[population.Champion, ...]:
    own = _own(store, op, scope)
    verdicts = population.latest(store.find(Evaluation, op), device.key).values()
    return population.champions(verdict for verdict in verdicts if own is None or verdict.kernel_id in own)


def unconfirmed(store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> list[Kernel]:
    """The champions that no fresh process of ours has tested again yet, in the order of the workloads they lead on."""
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, op)}
    leading = champions(store, op, device, scope)
    merged = {one.evaluation_id for one in store.find(Merged, op)}
    ours = [e for e in store.find(Evaluation, op) if e.device.key == device.key and e.id not in merged]
    tested = {evaluation.kernel_id for evaluation in ours if evaluation.confirmed}
    waiting = dict.fromkeys(c.kernel_id for c in leading if c.confirmed is None or c.kernel_id not in tested)
    return [kernels[kernel_id] for kernel_id in waiting if kernel_id in kernels]


def bars(store: Store, op: str, device: DeviceInfo, scope: Scope = EVERYTHING) -> tuple[tuple[str, float], ...]:
    """The time to beat on each workload, in us."""
    return tuple((c.workload, c.measurement.median_us) for c in champions(store, op, device, scope))


def request(
    op: Op, device: DeviceInfo, store: Store, wanted: int, *, seed: int, scope: Scope = EVERYTHING,
    left: Left = UNLIMITED,
) -> Request:  # fmt: skip
    """Parents drawn, failures that nobody repaired yet, what was learned, and all that is known already."""
    known = _known(op.name, device, store, scope)
    rng = random.Random(f"{seed} {len(known.proposals)}")
    plain = Request(
        op=op,
        device=device,
        wanted=wanted,
        seed=rng.randrange(2**31),
        run=scope.run,
        known=frozenset(kernel.id for kernel in store.find(Kernel, op.name)),
        trials=history.trials(known.proposals, known.kernels, known.verdicts),
        left=left,
    )
    if scope.strategy == BEST_OF_N:
        return plain
    islands = islands_of.number(len({known.kernels[e.kernel_id].family for e in known.passed}))
    lives = islands_of.homes(known.proposals)
    alive = islands_of.inhabitants(known.passed, lives, rng.randrange(islands), islands)
    used = Counter(parent for proposal in known.proposals for parent in proposal.parents)
    return replace(
        plain,
        population=known.candidates(alive),
        parents=known.candidates(population.parents(alive, used, wanted, rng)),
        failures=known.candidates(_unrepaired(known)),
        tried=known.candidates(sorted(_as_their_twins(known.verdicts.values()), key=lambda verdict: verdict.created)),
        donors=_donors(op.name, device, store, rng),
        lessons=lessons(known.kernels, known.proposals, known.verdicts),
    )


def _as_their_twins(verdicts: Iterable[Evaluation]) -> Iterator[Evaluation]:
    """With what is known of the kernels that duplicates are duplicates of; where that is lost, they tell nothing."""
    verdicts = tuple(verdicts)
    by_code = judged(verdicts)
    for verdict in verdicts:
        if verdict.outcome is not Outcome.DUPLICATE:
            yield verdict
        elif twin := by_code.get(verdict.traits.code if verdict.traits else ""):
            yield replace(verdict, outcome=twin.outcome, measurements=twin.measurements)


def unprofiled(request: Request) -> list[tuple[Kernel, str]]:
    """Parents of which nobody knows what a profiler would count where they are weakest, and that workload."""
    wanted: dict[str, tuple[Kernel, str]] = {}
    for parent in request.parents:
        weak = population.weakest(parent.evaluation)
        if weak and all(profile.workload != weak.workload for profile in parent.profiles):
            wanted[parent.kernel.id] = (parent.kernel, weak.workload)
    return list(wanted.values())[:PROFILES]


@dataclass(frozen=True)
class _Known:
    """What the archive holds of an op on a device, as far as a run makes use of it."""

    kernels: Mapping[str, Kernel]
    proposals: Sequence[Proposal]
    verdicts: Mapping[str, Evaluation]
    profiles: Mapping[str, tuple[Profile, ...]]

    @property
    def passed(self) -> list[Evaluation]:
        return [verdict for verdict in self.verdicts.values() if verdict.passed]

    def candidates(self, verdicts: Iterable[Evaluation]) -> tuple[Candidate, ...]:
        return tuple(Candidate(self.kernels[e.kernel_id], e, self.profiles.get(e.kernel_id, ())) for e in verdicts)


def _known(op: str, device: DeviceInfo, store: Store, scope: Scope) -> _Known:
    proposals = [p for p in store.find(Proposal, op) if not scope.fresh or p.run == scope.run]
    proposed = {proposal.kernel_id for proposal in proposals}
    kernels = {k.id: k for k in store.find(Kernel, op) if not scope.fresh or k.id in proposed}
    verdicts = population.latest(store.find(Evaluation, op), device.key)
    profiles = defaultdict[str, dict[str, Profile]](dict)
    for profile in store.find(Profile, op):
        if profile.device == device.key:
            profiles[profile.kernel_id][profile.workload] = profile
    return _Known(
        kernels,
        proposals,
        {kernel_id: verdict for kernel_id, verdict in verdicts.items() if kernel_id in kernels},
        {kernel_id: tuple(of_one.values()) for kernel_id, of_one in profiles.items()},
    )


def _donors(op: str, device: DeviceInfo, store: Store, rng: random.Random) -> tuple[Candidate, ...]:
    """Of some other ops the kernel that beats PyTorch by most: ideas that may carry over."""
    of_op = defaultdict[str, list[Evaluation]](list)
    for verdict in population.latest(store.find(Evaluation), device.key).values():
        if verdict.op != op and verdict.passed and verdict.measurements:
            of_op[verdict.op].append(verdict)
    chosen = rng.sample(sorted(of_op), min(DONORS, len(of_op)))
    best = [max(of_op[other], key=lambda verdict: max(m.speedup for m in verdict.measurements)) for other in chosen]
    kernels = {kernel.id: kernel for other in chosen for kernel in store.find(Kernel, other)}
    return tuple(Candidate(kernels[e.kernel_id], e) for e in best if e.kernel_id in kernels)


def _own(store: Store, op: str, scope: Scope) -> set[str] | None:
    """The only kernels that a fresh run makes use of; None where it uses all."""
    if not scope.fresh:
        return None
    return {proposal.kernel_id for proposal in store.find(Proposal, op) if proposal.run == scope.run}


def _unrepaired(known: _Known) -> list[Evaluation]:
    """The latest designs that failed, newest first; what was repaired in vain often enough is given up."""
    tries: dict[str, int] = {}  # repairs that led to a kernel, one on top of the other
    repaired = set[str]()
    for proposal in known.proposals:
        if proposal.operator == "repair":
            repaired.update(proposal.parents)
            tries.setdefault(proposal.kernel_id, 1 + max((tries.get(p, 0) for p in proposal.parents), default=0))
    # Where another setting of the same design passed, nothing but the setting is wrong.
    sound = {known.kernels[verdict.kernel_id].family for verdict in known.passed}
    failed = [
        verdict
        for verdict in known.verdicts.values()
        if verdict.outcome not in BEYOND_REPAIR
        and verdict.kernel_id not in repaired
        and tries.get(verdict.kernel_id, 0) < REPAIRS
        and known.kernels[verdict.kernel_id].family not in sound
    ]
    return sorted(failed, key=lambda verdict: (-verdict.created, verdict.kernel_id))[:FAILURES_SHOWN]
