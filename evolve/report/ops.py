"""The catalog as tables: where PyTorch and the champions stand against the speed of light."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from archive import library
from archive.records import DeviceInfo, Evaluation, Standard
from evolve.devices.choose import policy_of
from evolve.report.tables import WIDE, fitted, plain_table
from evolve.report.words import SHORT_DTYPES, counted, percent, times
from evolve.selection import population
from evolve.selection.population import Champion
from reference_ops.listing import Listed


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

    op: Listed
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
    ops: Iterable[Listed],
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
    for op in ops:
        made = of_op.get(op.name, [])
        beside = {one.workload: one for evaluation in made for one in _beside(evaluation)}
        leading = {one.workload: one for one in population.champions(population.latest(made, key).values())}
        marks = tuple(
            Mark(
                workload,
                alone.get((op.name, workload)) or beside.get(workload),
                (op.name, workload) in alone,
                leading.get(workload),
            )
            for workload in (op.workloads(device.kind) if device else op.gpu)
        )
        found.append(Prospect(op, len(library.shipped(op.name)), marks))
    return found


def device_of(standards: Sequence[Standard], evaluations: Sequence[Evaluation], part: str = "") -> DeviceInfo | None:
    """The most recent GPU; where `part` is given, of the devices whose key it is or is in, GPUs before others."""
    latest: dict[str, tuple[float, DeviceInfo]] = {}
    records: list[Standard | Evaluation] = [*standards, *evaluations]
    for record in records:
        moment, _ = latest.get(record.device.key, (-math.inf, record.device))
        if record.created >= moment:
            latest[record.device.key] = (record.created, record.device)
    on_gpu = {key: policy_of(info.kind).times_are_gpu_times for key, (_, info) in latest.items()}
    wanted = [
        (key == part, on_gpu[key], moment, info)
        for key, (moment, info) in latest.items()
        if (part.lower() in key.lower() if part else on_gpu[key])
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
        "family": op.family,
        "backward": op.backward,
        "dtypes": op.dtypes,
        "workloads": list(op.gpu),
        "emulated_workloads": list(op.emulated),
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


WITH_NOTES, WITH_KERNELS = 150, 130  # columns from which there is room for them beside the figures
MUCH, LITTLE = 1.5, 1.05  # to gain
SOME = "~"  # before a figure that not all workloads are in
# By the heading in a narrow terminal, where each has two lines.
NARROW = {
    "workloads": "work-\nloads",
    "kernels": "ker-\nnels",
    "PyTorch": "Py-\nTorch",
    "champion": "cham-\npion",
    "to gain": "to\ngain",
}
FIGURES = ("PyTorch", "worst", "champion", "to gain")


def family_table(found: Sequence[Prospect], width: int) -> Table:
    """A heading per family, and below each op those that compute its gradients."""
    figures, wide = known(found), width >= WIDE
    numbers = ["workloads", "kernels", *(FIGURES if figures else ())]
    noted = width >= (WITH_NOTES if figures else WIDE)
    table = _table(["op", "dtypes"], numbers, ["what it computes"] * noted, wide=wide or not figures)
    for family in sorted({one.op.family for one in found}):
        of_family = [one for one in found if one.op.family == family]
        if table.row_count:
            table.add_row()
        table.add_row(fitted(f"{family}, {counted(len(of_family), 'op')}", "cyan"))
        for one, forward in nested(of_family):
            name = one.op.name if wide or not forward else f"…{one.op.name.removeprefix(forward)}"
            table.add_row(
                fitted(f"  {name}" if forward else name, "" if forward else "bold"),
                fitted(_dtypes(one)),
                str(len(one.op.gpu)),
                str(one.kernels),
                *(_figures(one) if figures else ()),
                *([fitted(one.op.note, "dim")] * noted),
            )
    return table


def headroom_table(found: Sequence[Prospect], width: int) -> Table:
    """Most to gain first."""
    wide, roomy = width >= WIDE, width >= WITH_KERNELS
    numbers = ["workloads", *(["kernels"] * roomy), *FIGURES]
    table = _table(["op", *(["family", "dtypes"] * wide)], numbers, [], wide=wide)
    for one in by_headroom(found):
        table.add_row(
            fitted(one.op.name, "bold"),
            *([fitted(one.op.family), fitted(_dtypes(one))] * wide),
            str(len(one.op.gpu)),
            *([str(one.kernels)] * roomy),
            *_figures(one),
        )
    return table


def footnotes(found: Sequence[Prospect], device: DeviceInfo | None) -> list[tuple[str, str]]:
    """What the columns mean, with their styles, and what is typed for figures where there are none."""
    said = [("kernels: shipped with evolve. A path of a Python file works wherever an op is asked for.", "dim")]
    if device is None:
        hint = "`evolve ops --measure` on a machine with a GPU says where PyTorch stands against the speed of light."
        return [*said, (hint, "dim")]
    if not known(found):
        if not policy_of(device.kind).times_are_gpu_times:
            return [*said, (f"{device.name} ({device.kind}) has no speed of light.", "yellow")]
        return [*said, (f"`evolve ops --measure` says where PyTorch stands on {device.name}.", "dim")]
    means = f"PyTorch, champion: share of the speed of light on {device.name}, the geometric mean over all workloads"
    if any(shares and shares.partial for one in found for shares in (one.pytorch, one.champion)):
        means += f" ({SOME}: over those that are known)"
    said.append((f"{means}; worst: PyTorch's lowest. PyTorch is the best of eager and torch.compile.", "dim"))
    said.append(("to gain: how many times faster than the best of both light would be.", "dim"))
    if unknown := sum(one.pytorch is None for one in found):
        said.append((f"`evolve ops --measure` finds out about the other {unknown}.", "dim"))
    return said


def shown_share(shares: Shares | None) -> str:
    return f"{SOME if shares.partial else ''}{percent(shares.mean)}" if shares else "-"


def _table(texts: Sequence[str], numbers: Sequence[str], notes: Sequence[str], *, wide: bool) -> Table:
    shown = [name if wide else NARROW.get(name, name) for name in numbers]
    table = plain_table(*texts, *shown, *notes, numbers=shown)
    if not wide:
        table.padding = (0, 1, 0, 0)
    return table


def _figures(one: Prospect) -> list[Text]:
    pytorch, champion, to_gain = one.pytorch, one.champion, one.to_gain
    ahead = champion and pytorch and champion.mean > pytorch.mean
    style = "" if to_gain is None else "green" if to_gain >= MUCH else "dim" if to_gain < LITTLE else ""
    return [
        Text(shown_share(pytorch)),
        Text(percent(pytorch.worst) if pytorch else "-"),
        Text(shown_share(champion), "green" if ahead else ""),
        Text(times(to_gain), style),
    ]


def _dtypes(one: Prospect) -> str:
    return " ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in one.op.dtypes)


def known(found: Sequence[Prospect]) -> bool:
    """Whether there are figures to show."""
    return any(one.pytorch or one.champion for one in found)
