"""Where PyTorch and the champions stand against the speed of light, op by op: where a search has most to gain."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from archive import library
from archive.records import DeviceInfo, Evaluation, Standard
from evolve.selection import population
from evolve.selection.population import Champion

if TYPE_CHECKING:
    from reference_ops.op import Op


@dataclass(frozen=True)
class Mark:
    """What is known of one workload on the device."""

    workload: str
    standard: Standard | None = None
    alone: bool = False  # PyTorch was timed for its own sake, not beside a kernel
    champion: Champion | None = None

    @property
    def floor_us(self) -> float | None:
        known = self.standard and self.standard.floor_us
        return known or (self.champion.measurement.floor_us if self.champion else None)

    @property
    def pytorch(self) -> float | None:
        """The share of the speed of light that the best of PyTorch reaches."""
        return self.floor_us / self.standard.best_us if self.floor_us and self.standard else None

    @property
    def reached(self) -> float | None:
        """The champion's share."""
        return self.champion.measurement.share_of_light if self.champion else None

    @property
    def best(self) -> float | None:
        return max((share for share in (self.pytorch, self.reached) if share), default=None)


@dataclass(frozen=True)
class Shares:
    """Of the speed of light, over an op's workloads."""

    mean: float  # geometric
    worst: float
    partial: bool  # some workloads are not among them


@dataclass(frozen=True)
class Prospect:
    """One op of the catalog, with what is known of it on the device."""

    family: str
    op: "Op"
    kernels: int  # shipped
    marks: tuple[Mark, ...] = ()
    faults: Mapping[str, str] = field(default_factory=dict)  # why nothing could be measured, by workload

    @property
    def pytorch(self) -> Shares | None:
        return shares([mark.pytorch for mark in self.marks])

    @property
    def champion(self) -> Shares | None:
        return shares([mark.reached for mark in self.marks])

    @property
    def to_gain(self) -> float | None:
        """How many times faster than the best of PyTorch and the champions light is."""
        best = shares([mark.best for mark in self.marks])
        return 1 / best.mean if best else None


def prospects(
    listed: Iterable[tuple[str, "Op"]],
    device: DeviceInfo | None,
    standards: Iterable[Standard],
    evaluations: Iterable[Evaluation],
) -> list[Prospect]:
    key = device.key if device else ""
    alone = {(one.op, one.workload): one for one in standards if one.device.key == key}
    of_op: dict[str, list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.device.key == key:
            of_op.setdefault(evaluation.op, []).append(evaluation)
    found = []
    for family, op in listed:
        made = of_op.get(op.name, [])
        beside = {one.workload: one for evaluation in made for one in _beside(evaluation)}
        leading = {one.workload: one for one in population.champions(population.latest(made, key).values())}
        marks = tuple(
            Mark(
                workload.key,
                alone.get((op.name, workload.key)) or beside.get(workload.key),
                (op.name, workload.key) in alone,
                leading.get(workload.key),
            )
            for workload in op.workloads(device.kind if device else "cuda")
        )
        found.append(Prospect(family, op, len(library.shipped(op.name)), marks))
    return found


def device_of(standards: Sequence[Standard], evaluations: Sequence[Evaluation], part: str = "") -> DeviceInfo | None:
    """The most recent GPU; where `part` is given, of the devices whose key it is or is in, GPUs before others."""
    latest: dict[str, tuple[float, DeviceInfo]] = {}
    records: list[Standard | Evaluation] = [*standards, *evaluations]
    for record in records:
        moment, _ = latest.get(record.device.key, (-math.inf, record.device))
        if record.created >= moment:
            latest[record.device.key] = (record.created, record.device)
    wanted = [
        (key == part, info.kind == "cuda", moment, info)
        for key, (moment, info) in latest.items()
        if (part.lower() in key.lower() if part else info.kind == "cuda")
    ]
    return max(wanted, key=lambda one: one[:3])[3] if wanted else None


def shares(values: Sequence[float | None]) -> Shares | None:
    known = [value for value in values if value]
    if not known:
        return None
    mean = math.exp(sum(map(math.log, known)) / len(known))
    return Shares(mean, min(known), partial=len(known) < len(values))


def by_headroom(found: Iterable[Prospect]) -> list[Prospect]:
    """Most to gain first; last those of which nothing is known."""
    return sorted(found, key=lambda one: (-(one.to_gain or 0.0), one.op.name))


def nested(found: Sequence[Prospect]) -> list[tuple[Prospect, str]]:
    """By name, and the ops that compute an op's gradients right below it, each with the forward that it belongs to."""
    by_name = {one.op.name: one for one in found}
    forward_of = {
        name: one.op.name for one in found for name in one.op.backward if name.startswith(f"{one.op.name}_backward")
    }
    rows = []
    for one in sorted(found, key=lambda one: one.op.name):
        if one.op.name in forward_of:
            continue
        rows.append((one, ""))
        rows += [
            (by_name[name], one.op.name)
            for name in one.op.backward
            if forward_of.get(name) == one.op.name and name in by_name
        ]
    return rows


def facts(prospect: Prospect, device: DeviceInfo | None) -> dict[str, Any]:
    """Everything, for programs."""
    op, pytorch, champion = prospect.op, prospect.pytorch, prospect.champion
    return {
        "op": op.name,
        "family": prospect.family,
        "backward": op.backward,
        "dtypes": op.dtypes,
        "workloads": [workload.key for workload in op.gpu],
        "emulated_workloads": [workload.key for workload in op.emulated],
        "kernels": [kernel.id for kernel in library.shipped(op.name)],
        "note": op.note,
        "device": device.key if device else None,
        "pytorch_share_of_light": pytorch.mean if pytorch else None,
        "pytorch_worst_share": pytorch.worst if pytorch else None,
        "champion_share_of_light": champion.mean if champion else None,
        "to_gain": prospect.to_gain,
        "standing": [_facts_of(mark, prospect.faults.get(mark.workload, "")) for mark in prospect.marks],
    }


def _facts_of(mark: Mark, fault: str) -> dict[str, Any]:
    standard, champion = mark.standard, mark.champion
    return {
        "workload": mark.workload,
        "eager_us": standard.eager_us if standard else None,
        "compile_us": standard.compile_us if standard else None,
        "autotune_us": standard.autotune_us if standard else None,
        "floor_us": mark.floor_us,
        "pytorch_share_of_light": mark.pytorch,
        "torch": standard.device.torch if standard else None,
        "measured": ("alone" if mark.alone else "beside a kernel") if standard else None,
        "champion": champion.kernel_id if champion else None,
        "champion_us": champion.measurement.median_us if champion else None,
        "champion_share_of_light": mark.reached,
        "fault": fault or None,
    }


def _beside(evaluation: Evaluation) -> Iterable[Standard]:
    """What an evaluation says of PyTorch, which was timed in turns with the kernel."""
    for m in evaluation.measurements:
        yield Standard(
            evaluation.op, m.workload, evaluation.device, m.eager_us, m.compile_us, m.autotune_us, m.floor_us,
            evaluation.created,
        )  # fmt: skip
