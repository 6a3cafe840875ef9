"""The standing of an op on a device: its champions, its population and how many kernels there are of each kind."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import Store, evaluations_of, uncollected
from archive.summaries import EvaluationSummary, Judged, KernelSummary, ProposalSummary, RankedTimes
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH, Basis, basis_of
from evolve.selection import population
from evolve.selection.population import Champion
from evolve.selection.scope import judged_on_gpus, unasked


@dataclass(frozen=True)
class Standing:
    """Champions, population and counts of one op on one device."""

    op: str
    device: DeviceInfo
    champions: tuple[Champion, ...] = ()  # in the order of the op's workloads
    population: tuple[Evaluation, ...] = ()  # fittest first
    outcomes: Mapping[str, int] = field(default_factory=dict)  # kernels by outcome, in the order of Outcome
    pending: int = 0  # kernels without a verdict on the device, or on a GPU if this device is none
    held: int = 0  # kernels of the op in the archive
    unread: int = 0  # requests that gave no kernel
    verdicts: Mapping[str, Evaluation] = field(default_factory=dict)  # verdicts on the kernels requested by id
    # These cover the champions, the population and the kernels requested by id:
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # including their first parents
    proposals: Mapping[str, ProposalSummary] = field(default_factory=dict)  # the first proposal of each kernel
    children: Mapping[str, int] = field(default_factory=dict)
    basis: Basis = PYTORCH
    elsewhere: frozenset[str] = frozenset()  # kernels whose verdict ships with the package
    only_run: str = ""  # id of the run whose own kernels are covered, and no others; empty for all kernels
    ranked: Sequence[RankedTimes] = field(default=(), repr=False, compare=False)  # of all kernels that passed

    @property
    def leading(self) -> tuple[str, int] | None:
        """The champion that ranks first over all workloads, and the number of workloads that it is champion of."""
        won = Counter(champion.kernel_id for champion in self.champions)
        ranked = (verdict.kernel_id for verdict in self.population)
        return next(((kernel_id, won[kernel_id]) for kernel_id in ranked if won[kernel_id]), None)

    @property
    def judged(self) -> int:
        """The number of kernels with a verdict on the device."""
        return sum(self.outcomes.values())


def standing(store: Store, op: str, device: DeviceInfo, named: Collection[str] = (), only_run: str = "") -> Standing:
    """Read the standing of an op on a device, with the verdicts on the kernels whose ids are in `named`.

    With `only_run`, the kernels that this run has not proposed are left out, but the basis remains that of the op.
    """
    every = store.find(RankedTimes, op, device=device.key)
    own = _proposed_by(only_run, store, op) if only_run else None
    ranked = every if own is None else [one for one in every if one.kernel_id in own]
    leaders, alive = population.fittest(ranked)
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=named) if named else []
    evaluations = evaluations_of(store, {*alive, *leaders.values(), *in_force})
    ids = {*named, *(verdict.kernel_id for verdict in (*alive, *leaders.values()))}
    proposals = first_proposals(store, ids)
    parents = (proposal.parents[0] for proposal in proposals.values() if proposal.parents)
    counts, held, pending = _counts(store, op, device, own)
    return Standing(
        op=op,
        device=device,
        champions=tuple(
            population.champion(workload, evaluations[leaders[workload].id])
            for workload in workloads_in_order(evaluations.values())
            if workload in leaders
        ),
        population=tuple(evaluations[verdict.id] for verdict in alive),
        outcomes={str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts},
        pending=pending,
        held=held,
        verdicts={verdict.kernel_id: evaluations[verdict.id] for verdict in in_force},
        unread=sum(
            bool(reply.failure) and only_run in {"", reply.run}
            for reply in store.find(ProposalSummary, op, kernels=[""])
        ),
        kernels={kernel.id: kernel for kernel in store.find(Kernel, ids={*ids, *parents})},
        proposals=proposals,
        children={verdict.kernel_id: _children(store, verdict.kernel_id) for verdict in alive},
        basis=basis_of(store, op, device, every),
        only_run=only_run,
        elsewhere=frozenset(one.kernel_id for one in evaluations.values() if one.shipped),
        ranked=every,
    )


def _proposed_by(run: str, store: Store, op: str) -> frozenset[str]:
    return frozenset(one.kernel_id for one in store.find(ProposalSummary, op, run=run) if one.kernel_id)


def _counts(
    store: Store, op: str, device: DeviceInfo, own: frozenset[str] | None
) -> tuple[Mapping[str, int], int, int]:
    """Return the kernels by outcome, the kernels held and those pending: of all kernels, or of a run's own."""
    if own is None:
        counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
        held = store.count(KernelSummary, "op", op).get(op, 0)
        return counts, held, max(0, held - sum(counts.values()) - _not_waiting(store, op, device))
    judged = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=own) if own else []
    return Counter(str(one.outcome) for one in judged), len(own), len(own) - len(judged)


def workloads_in_order(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return all workloads in the order of their op, which each evaluation keeps, also for those that it skipped."""
    found: list[str] = []
    every = [
        keys
        for one in evaluations
        for keys in ([m.workload for m in one.measurements], [skipped.partition(": ")[0] for skipped in one.skipped])
    ]
    for keys in sorted(every, key=len, reverse=True):
        at = next((found.index(key) for key in keys if key in found), len(found))
        for key in keys:
            if key not in found:
                found.insert(at, key)
            at = found.index(key) + 1
    return found


def _not_waiting(store: Store, op: str, device: DeviceInfo) -> int:
    """Return how many kernels have no verdict on this device and need none: judged on a GPU, or only shipped."""
    elsewhere = judged_on_gpus(store, op, device)
    if elsewhere:
        elsewhere = elsewhere.difference(one.kernel_id for one in store.find(Judged, op, device=device.key))
    return len(elsewhere | unasked(store, op, device))


def standings(store: Store, op: str = "", device: str = "") -> list[Standing]:
    """Read the standing of each op on each device that it was evaluated on; `device` is part of the device's key."""
    ops = [op] if op else sorted(store.count(Evaluation, "op"))
    with uncollected():
        return [standing(store, name, info) for name in ops for info in devices(store, name, device)]


def devices(store: Store, op: str = "", part: str = "") -> list[DeviceInfo]:
    """Return the devices with evaluations, GPUs first; of devices with equal keys, the one used last."""
    infos = {info.key: info for info in store.find(DeviceInfo, op)}
    found = [info for key, info in infos.items() if part.lower() in key.lower()]
    return sorted(found, key=lambda info: (not policy_of(info.kind).times_are_gpu_times, info.key))


def decisive_evaluations(store: Store, op: str, device: DeviceInfo) -> list[Evaluation]:
    """Return the evaluations that determine the champions and PyTorch's latest times on a device, oldest first."""
    contenders = store.find(RankedTimes, op, device=device.key, contending=True)
    leaders = [
        *population.leaders(contenders).values(),
        *population.leaders(verdict for verdict in contenders if verdict.confirmed).values(),
    ]
    newest = store.find(EvaluationSummary, op, device=device.key, newest_timed=True)
    kernels = {verdict.kernel_id for verdict in newest}
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=kernels)
    found = evaluations_of(store, {*leaders, *newest, *in_force})
    return sorted(found.values(), key=lambda evaluation: evaluation.created)


def first_proposals(store: Store, kernels: Collection[str]) -> dict[str, ProposalSummary]:
    """Return the first proposal of each kernel."""
    found: dict[str, ProposalSummary] = {}
    for proposal in store.find(ProposalSummary, kernels=kernels):
        found.setdefault(proposal.kernel_id, proposal)
    return found


def _children(store: Store, kernel_id: str) -> int:
    return len({child.kernel_id for child in store.find(ProposalSummary, parents=[kernel_id]) if child.kernel_id})
