"""The standing of an op on a device: its champions, its population and counts of its kernels by outcome."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from archive import plain
from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import ArchiveFile, Store, evaluations_of, unasked, uncollected
from archive.summaries import EvaluationSummary, Judged, KernelSummary, ProposalSummary, RankedTimes
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH, Basis
from evolve.report.best_so_far import Curve, rises
from evolve.selection import population
from evolve.selection.population import Champion
from evolve.selection.view import judged_on_gpus

READ_AT_ONCE = 500  # number of kernels; one of the first few has usually passed on every workload
PLACES = "places, 1"  # name under which values are archived; increase the number when their computation changes


@dataclass(frozen=True)
class Standing:
    """Champions, population and counts of one op on one device."""

    op: str
    device: DeviceInfo
    champions: tuple[Champion, ...] = ()  # in the order of the op's workloads
    population: tuple[Evaluation, ...] = ()  # fittest first
    outcomes: Mapping[str, int] = field(default_factory=dict)  # kernels by outcome, in the order of Outcome
    pending: int = 0  # kernels without a verdict on the device, nor on a GPU if the device is not a GPU
    held: int = 0  # number of the op's kernels in the archive
    unread: int = 0  # number of requests that gave no kernel
    verdicts: Mapping[str, Evaluation] = field(default_factory=dict)  # verdicts on the kernels requested by id
    # These cover the champions, the population and the kernels requested by id:
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # kernels, including their first parents
    proposals: Mapping[str, ProposalSummary] = field(default_factory=dict)  # the first proposal of each kernel
    children: Mapping[str, int] = field(default_factory=dict)
    basis: Basis = PYTORCH
    elsewhere: frozenset[str] = frozenset()  # kernels whose verdict ships with the package
    only_run: str = ""  # id of the run to whose own kernels the standing is limited; empty for all kernels
    curve: Curve = ()  # set only by `standings`

    @property
    def leading(self) -> tuple[str, int] | None:
        """The champion that ranks first over all workloads, and the number of workloads on which it is champion."""
        won = Counter(champion.kernel_id for champion in self.champions)
        ranked = (verdict.kernel_id for verdict in self.population)
        return next(((kernel_id, won[kernel_id]) for kernel_id in ranked if won[kernel_id]), None)

    @property
    def judged(self) -> int:
        """The number of kernels with a verdict on the device."""
        return sum(self.outcomes.values())


@dataclass(frozen=True)
class Places:
    """Results of the verdicts on all kernels of an op on a device, which may be tens of thousands."""

    leaders: Mapping[str, str]  # key: workload; value: id of the evaluation that wins there
    alive: Sequence[str]  # ids of the population's evaluations, fittest first
    outcomes: Mapping[str, int]
    held: int
    pending: int
    first_us: Mapping[str, float] | None  # as in `Basis`
    curve: Curve = ()


def places_of(
    store: Store, op: str, device: DeviceInfo, ranked: Sequence[RankedTimes], own: frozenset[str] | None = None
) -> Places:
    """Return the places of an op's kernels. With `own`, only these kernels count, except for the basis."""
    leaders, alive = population.fittest([one for one in ranked if own is None or one.kernel_id in own])
    counts, held, pending = _counts(store, op, device, own)
    return Places(
        leaders={workload: one.id for workload, one in leaders.items()},
        alive=[one.id for one in alive],
        outcomes={str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts},
        held=held,
        pending=pending,
        first_us=basis_of(store, op, device, ranked).first_us,
    )


def standing(
    store: Store,
    op: str,
    device: DeviceInfo,
    named: Collection[str] = (),
    only_run: str = "",
    places: Places | None = None,
) -> Standing:
    """Read the standing of an op on a device, with the verdicts on the kernels whose ids are in `named`.

    With `only_run`, kernels that this run has not proposed are left out, but the basis remains the op's.
    `places` are those of the op's kernels, if they are known already.
    """
    if places is None:
        own = _proposed_by(only_run, store, op) if only_run else None
        places = places_of(store, op, device, store.find(RankedTimes, op, device=device.key), own)
    found = store.find(EvaluationSummary, ids={*places.leaders.values(), *places.alive})
    by_id = {one.id: one for one in found}
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=named) if named else []
    evaluations = evaluations_of(store, {*found, *in_force})
    ids = {*named, *(one.kernel_id for one in found)}
    proposals = first_proposals(store, ids)
    parents = (proposal.parents[0] for proposal in proposals.values() if proposal.parents)
    return Standing(
        op=op,
        device=device,
        champions=tuple(
            population.champion(workload, evaluations[places.leaders[workload]])
            for workload in workloads_in_order(evaluations.values())
            if workload in places.leaders
        ),
        population=tuple(evaluations[one] for one in places.alive),
        outcomes=places.outcomes,
        pending=places.pending,
        held=places.held,
        verdicts={verdict.kernel_id: evaluations[verdict.id] for verdict in in_force},
        unread=sum(
            bool(reply.failure) and only_run in {"", reply.run}
            for reply in store.find(ProposalSummary, op, kernels=[""])
        ),
        kernels={kernel.id: kernel for kernel in store.find(Kernel, ids={*ids, *parents})},
        proposals=proposals,
        children={by_id[one].kernel_id: _children(store, by_id[one].kernel_id) for one in places.alive},
        basis=Basis(places.first_us),
        only_run=only_run,
        elsewhere=frozenset(one.kernel_id for one in evaluations.values() if one.shipped),
        curve=places.curve,
    )


def _proposed_by(run: str, store: Store, op: str) -> frozenset[str]:
    return frozenset(one.kernel_id for one in store.find(ProposalSummary, op, run=run) if one.kernel_id)


def _counts(
    store: Store, op: str, device: DeviceInfo, own: frozenset[str] | None
) -> tuple[Mapping[str, int], int, int]:
    """Return how many kernels have each outcome, exist and are pending, counting all kernels or a run's own."""
    if own is None:
        counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
        held = store.count(KernelSummary, "op", op).get(op, 0)
        return counts, held, max(0, held - sum(counts.values()) - _not_waiting(store, op, device))
    judged = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=own) if own else []
    return Counter(str(one.outcome) for one in judged), len(own), len(own) - len(judged)


def workloads_in_order(evaluations: Iterable[Evaluation]) -> list[str]:
    """Return all workloads in the order of their op.

    Each evaluation keeps this order, also for workloads that it skipped.
    """
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
    """Return the number of kernels that need no verdict on this device, because a GPU judged them or they only ship."""
    elsewhere = judged_on_gpus(store, op, device)
    if elsewhere:
        elsewhere = elsewhere.difference(one.kernel_id for one in store.find(Judged, op, device=device.key))
    return len(elsewhere | unasked(store, op, device))


def standings(store: ArchiveFile, op: str = "", device: str = "") -> list[Standing]:
    """Read the standing of each op on each device that it was evaluated on; `device` is part of the device's key."""
    with uncollected():
        return [
            standing(store, name, info, places=places)
            for name in ([op] if op else store.ops(EvaluationSummary))
            for info, places in _kept_places(store, name)
            if device.lower() in info.key.lower()
        ]


def _kept_places(store: ArchiveFile, op: str) -> list[tuple[DeviceInfo, Places]]:
    """Return the places with the curve on each device, from the archive's cache if possible."""

    def read(kept: list[list[dict[str, Any]]]) -> list[tuple[DeviceInfo, Places]]:
        found = [(plain.record(DeviceInfo, info), plain.record(Places, places)) for info, places in kept]
        ids = {one for _, places in found for one in (*places.leaders.values(), *places.alive)}
        if len(store.find(EvaluationSummary, op, ids=ids)) < len(ids):
            raise ValueError("an evaluation is missing")
        return found

    return store.derived(PLACES, op, partial(_places, store, op), read)


def _places(store: Store, op: str) -> list[tuple[dict[str, object], dict[str, object]]]:
    found = []
    for device in devices(store, op):
        ranked = store.find(RankedTimes, op, device=device.key)
        places = places_of(store, op, device, ranked)
        curve = rises(ranked, store.find(Judged, op, device=device.key), Basis(places.first_us))
        found.append((asdict(device), asdict(replace(places, curve=curve))))
    return found


def devices(store: Store, op: str = "", part: str = "") -> list[DeviceInfo]:
    """Return the devices with evaluations, GPUs first.

    Of devices with equal keys, the one that was used last is returned.
    """
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


def basis_of(store: Store, op: str, device: DeviceInfo, passed: Sequence[RankedTimes] | None = None) -> Basis:
    """Return the basis of an op on a device; `passed` are the times that rank its kernels, if they are read already."""
    if policy_of(device.kind).times_are_gpu_times:
        return PYTORCH
    return first_kernel(store, op, store.find(RankedTimes, op, device=device.key) if passed is None else passed)


def first_kernel(store: Store, op: str, ranked: Iterable[RankedTimes]) -> Basis:
    """Return the basis of a device without GPU times: on each workload, the first added kernel that passed."""
    by_kernel = {one.kernel_id: one for one in ranked if one.times}
    workloads = {workload for keys in {one.workloads for one in by_kernel.values()} for workload in keys.split("\n")}
    first: dict[str, float] = {}
    last = 0
    while len(first) < len(workloads):
        kernels = store.find(KernelSummary, op, ids=by_kernel.keys(), after=last, oldest=READ_AT_ONCE)
        if not kernels:
            break
        for kernel in kernels:
            for timed in by_kernel[kernel.id].measurements:
                first.setdefault(timed.workload, timed.median_us)
        last = kernels[-1].number
    return Basis(first)
