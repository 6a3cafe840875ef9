"""The standing of an op on a device: the champions, population and counts that the tables show."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import Store
from archive.summaries import EvaluationSummary, KernelSummary, ProposalSummary, RankedTimes
from evolve.devices.choose import policy_of
from evolve.selection import population
from evolve.selection.population import Champion
from evolve.selection.view import evaluations_of


@dataclass(frozen=True)
class Standing:
    """Champions, population and counts of one op on one device."""

    op: str
    device: DeviceInfo
    champions: tuple[Champion, ...] = ()
    population: tuple[Evaluation, ...] = ()  # fittest first
    outcomes: Mapping[str, int] = field(default_factory=dict)  # kernels by outcome, in the order of Outcome
    pending: int = 0  # kernels without a verdict on the device
    held: int = 0  # kernels of the op in the archive
    unread: int = 0  # replies without a kernel
    verdicts: Mapping[str, Evaluation] = field(default_factory=dict)  # verdicts on the kernels requested by id
    # These cover the champions, the population and the kernels requested by id:
    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # including their first parents
    proposals: Mapping[str, ProposalSummary] = field(default_factory=dict)  # the first proposal of each kernel
    children: Mapping[str, int] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """The number of kernels with a verdict on the device."""
        return sum(self.outcomes.values())


def standing(store: Store, op: str, device: DeviceInfo, named: Collection[str] = ()) -> Standing:
    """Read the standing of an op on a device, with the verdicts on the kernels whose ids are in `named`."""
    leaders, alive = population.fittest(store.find(RankedTimes, op, device=device.key))
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=named) if named else []
    evaluations = evaluations_of(store, {*alive, *leaders.values(), *in_force})
    ids = {*named, *(verdict.kernel_id for verdict in (*alive, *leaders.values()))}
    proposals = first_proposals(store, ids)
    parents = (proposal.parents[0] for proposal in proposals.values() if proposal.parents)
    held = store.count(KernelSummary, "op", op).get(op, 0)
    counts = store.count(EvaluationSummary, "outcome", op, device=device.key, in_force=True)
    return Standing(
        op=op,
        device=device,
        champions=tuple(population.champion(w, evaluations[leader.id]) for w, leader in leaders.items()),
        population=tuple(evaluations[verdict.id] for verdict in alive),
        outcomes={str(outcome): counts[str(outcome)] for outcome in Outcome if str(outcome) in counts},
        pending=max(0, held - sum(counts.values())),
        held=held,
        verdicts={verdict.kernel_id: evaluations[verdict.id] for verdict in in_force},
        unread=store.count(ProposalSummary, "op", op, kernels=[""]).get(op, 0),
        kernels={kernel.id: kernel for kernel in store.find(Kernel, ids={*ids, *parents})},
        proposals=proposals,
        children={verdict.kernel_id: _children(store, verdict.kernel_id) for verdict in alive},
    )


def standings(store: Store, op: str = "", device: str = "") -> list[Standing]:
    """Read the standing of each op on each device that it was evaluated on; `device` is part of the device's key."""
    ops = [op] if op else sorted(store.count(Evaluation, "op"))
    return [standing(store, name, info) for name in ops for info in devices(store, name, device)]


def devices(store: Store, op: str = "", part: str = "") -> list[DeviceInfo]:
    """Return the devices with evaluations, GPUs first; of devices with equal keys, the one used last."""
    infos = {info.key: info for info in store.find(DeviceInfo, op)}
    found = [info for key, info in infos.items() if part.lower() in key.lower()]
    return sorted(found, key=lambda info: (not policy_of(info.kind).times_are_gpu_times, info.key))


def decisive_evaluations(store: Store, op: str, device: DeviceInfo) -> list[Evaluation]:
    """Return the evaluations that determine the champions and PyTorch's latest times on a device, oldest first."""
    passed = store.find(RankedTimes, op, device=device.key)
    replaced = store.find(EvaluationSummary, op, device=device.key, in_force=False, measured=True)
    failed = store.find(EvaluationSummary, op, device=device.key, in_force=True, measured=True, passed=False)
    leaders = [
        *population.leaders(passed).values(),
        *population.leaders(verdict for verdict in passed if verdict.confirmed).values(),
    ]
    newest: dict[str, RankedTimes | EvaluationSummary] = {}  # by the workloads that were timed
    timed: list[RankedTimes | EvaluationSummary] = [*passed, *replaced, *failed]
    for verdict in sorted(timed, key=lambda one: one.created):
        newest[verdict.workloads] = verdict
    kernels = {verdict.kernel_id for verdict in newest.values()}
    in_force = store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=kernels)
    found = evaluations_of(store, {*leaders, *newest.values(), *in_force})
    return sorted(found.values(), key=lambda evaluation: evaluation.created)


def first_proposals(store: Store, kernels: Collection[str]) -> dict[str, ProposalSummary]:
    """Return the first proposal of each kernel."""
    found: dict[str, ProposalSummary] = {}
    for proposal in store.find(ProposalSummary, kernels=kernels):
        found.setdefault(proposal.kernel_id, proposal)
    return found


def _children(store: Store, kernel_id: str) -> int:
    return len({child.kernel_id for child in store.find(ProposalSummary, parents=[kernel_id]) if child.kernel_id})
