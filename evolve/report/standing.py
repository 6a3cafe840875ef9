"""Where things stand for one op on one device: what every screen shows a part of."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.store import Store
from evolve.devices.choose import policy_of
from evolve.selection import population
from evolve.selection.population import Champion

R = TypeVar("R", Kernel, Proposal, Evaluation)


@dataclass(frozen=True)
class Standing:
    """Champions, population and counts of one op on one device."""

    op: str
    device: DeviceInfo
    champions: tuple[Champion, ...]
    population: tuple[Evaluation, ...]  # fittest first
    verdicts: Mapping[str, Evaluation]  # by kernel
    kernels: Mapping[str, Kernel]
    proposals: Mapping[str, Proposal]  # the first of each kernel
    unread: int  # replies that held no kernel
    children: Mapping[str, int]

    @property
    def outcomes(self) -> dict[str, int]:
        """How many kernels met with each outcome, in the order of Outcome."""
        counts = Counter(evaluation.outcome for evaluation in self.verdicts.values())
        return {str(outcome): counts[outcome] for outcome in Outcome if counts[outcome]}

    @property
    def pending(self) -> int:
        """Kernels without a verdict on this device."""
        return sum(kernel_id not in self.verdicts for kernel_id in self.kernels)


def standing(
    op: str,
    device: DeviceInfo,
    kernels: Iterable[Kernel],
    proposals: Sequence[Proposal],
    evaluations: Iterable[Evaluation],
) -> Standing:
    """What follows from an op's records for one device; records of other devices are passed over."""
    verdicts = population.latest(evaluations, device.key)
    first: dict[str, Proposal] = {}
    for proposal in proposals:
        if proposal.kernel:
            first.setdefault(proposal.kernel.id, proposal)
    return Standing(
        op=op,
        device=device,
        champions=population.champions(verdicts.values()),
        population=population.survivors(list(verdicts.values())),
        verdicts=verdicts,
        kernels={kernel.id: kernel for kernel in kernels},
        proposals=first,
        unread=sum(proposal.kernel is None for proposal in proposals),
        children=Counter(parent for proposal in first.values() for parent in proposal.parents),
    )


def standings(store: Store, op: str = "", device: str = "") -> list[Standing]:
    """One per op and device that the archive holds evaluations for, GPUs first; `device` is a part of its key."""
    evaluations = by_op(store.find(Evaluation, op))
    kernels, proposals = by_op(store.find(Kernel, op)), by_op(store.find(Proposal, op))
    return [
        standing(name, info, kernels.get(name, []), proposals.get(name, []), evaluations[name])
        for name in sorted(evaluations)
        for info in devices(evaluations[name], device)
    ]


def devices(evaluations: Iterable[Evaluation], part: str = "") -> list[DeviceInfo]:
    """The devices that evaluations were made on, GPUs first; of equal keys the last one's facts."""
    infos = {evaluation.device.key: evaluation.device for evaluation in evaluations}
    wanted = [info for key, info in infos.items() if part.lower() in key.lower()]
    return sorted(wanted, key=lambda info: (not policy_of(info.kind).times_are_gpu_times, info.key))


def by_op(records: Iterable[R]) -> dict[str, list[R]]:
    parted: dict[str, list[R]] = {}
    for record in records:
        parted.setdefault(record.op, []).append(record)
    return parted
