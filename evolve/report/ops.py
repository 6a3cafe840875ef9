"""Tables of the catalog: the share of the speed of light that PyTorch and the champions reach."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from archive import library
from archive.records import DeviceInfo, Evaluation, Standard
from evolve.devices.choose import policy_of
from evolve.report.basis import geometric_mean
from evolve.report.tables import WIDE, fitted, plain_table
from evolve.report.words import SHORT_DTYPES, counted, percent, times
from evolve.selection import population
from evolve.selection.population import Champion
from reference_ops.listing import Listed


@dataclass(frozen=True)
class WorkloadTimes:
    """The best known times at one workload on the device."""

    workload: str
    standard: Standard | None = None
    alone: bool = False  # PyTorch was timed by `evolve ops --measure`, not beside a kernel
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
        """The share of the speed of light that the champion reaches."""
        return self.champion.measurement.share_of_light if self.champion else None

    @property
    def best(self) -> float | None:
        return max((share for share in (self.pytorch, self.reached) if share), default=None)


@dataclass(frozen=True)
class ShareOfLight:
    """The share of the speed of light over an op's workloads."""

    mean: float  # geometric mean over the workloads
    worst: float
    partial: bool  # whether some workloads have no times


@dataclass(frozen=True)
class OpSummary:
    """One op of the catalog, with the best known times on the device."""

    op: Listed
    kernels: int  # number of shipped kernels
    workloads: tuple[WorkloadTimes, ...] = ()
    # reasons why workloads could not be measured; key: workload
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def pytorch(self) -> ShareOfLight | None:
        return mean_share([timed.pytorch for timed in self.workloads])

    @property
    def champion(self) -> ShareOfLight | None:
        return mean_share([timed.reached for timed in self.workloads])

    @property
    def to_gain(self) -> float | None:
        """The speedup that a kernel at the speed of light would have over the best of PyTorch and the champions."""
        best = mean_share([timed.best for timed in self.workloads])
        return 1 / best.mean if best else None


def summaries(
    ops: Iterable[Listed],
    device: DeviceInfo | None,
    standards: Iterable[Standard],
    evaluations: Iterable[Evaluation],
) -> list[OpSummary]:
    """Summarise the ops from PyTorch's times and the evaluations on one device."""
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
        workloads = tuple(
            WorkloadTimes(
                workload,
                alone.get((op.name, workload)) or beside.get(workload),
                (op.name, workload) in alone,
                leading.get(workload),
            )
            for workload in (op.workloads(device.kind) if device else op.gpu)
        )
        found.append(OpSummary(op, len(library.texts(op.name)), workloads))
    return found


def device_of(standards: Sequence[Standard], evaluations: Sequence[Evaluation], part: str = "") -> DeviceInfo | None:
    """Return the latest GPU with records, or the latest device with `part` in its key, exact keys and GPUs first."""
    latest: dict[str, tuple[float, DeviceInfo]] = {}
    records: list[Standard | Evaluation] = [*standards, *evaluations]
    for record in records:
        moment, _ = latest.get(record.device.key, (-math.inf, record.device))
        if record.created >= moment:
            latest[record.device.key] = (record.created, record.device)
    on_gpu = {key: policy_of(info.kind).times_are_gpu_times for key, (_, info) in latest.items()}
    matching = [
        (key == part, on_gpu[key], moment, info)
        for key, (moment, info) in latest.items()
        if (part.lower() in key.lower() if part else on_gpu[key])
    ]
    return max(matching, key=lambda one: one[:3])[3] if matching else None


def mean_share(values: Sequence[float | None]) -> ShareOfLight | None:
    """Return the geometric mean and the minimum of the known shares, or None if all are unknown."""
    known = [value for value in values if value]
    mean = geometric_mean(known)
    return None if mean is None else ShareOfLight(mean, min(known), partial=len(known) < len(values))


def by_headroom(found: Iterable[OpSummary]) -> list[OpSummary]:
    """Sort by the speedup that is still possible, largest first; ops without times come last."""
    return sorted(found, key=lambda one: (-(one.to_gain or 0.0), one.op.name))


def nested(found: Sequence[OpSummary]) -> list[tuple[OpSummary, str]]:
    """Sort by name, with backward ops right below their forward op; pair each backward op with that op's name."""
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


def facts(summary: OpSummary, device: DeviceInfo | None) -> dict[str, Any]:
    """Return the summary as plain values for --json."""
    op, pytorch, champion = summary.op, summary.pytorch, summary.champion
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
        "to_gain": summary.to_gain,
        "standing": [_facts_of(timed, summary.faults.get(timed.workload, "")) for timed in summary.workloads],
    }


def _facts_of(timed: WorkloadTimes, fault: str) -> dict[str, Any]:
    standard, champion = timed.standard, timed.champion
    return {
        "workload": timed.workload,
        "eager_us": standard.eager_us if standard else None,
        "compile_us": standard.compile_us if standard else None,
        "autotune_us": standard.autotune_us if standard else None,
        "floor_us": timed.floor_us,
        "pytorch_share_of_light": timed.pytorch,
        "torch": standard.device.torch if standard else None,
        "measured": ("alone" if timed.alone else "beside a kernel") if standard else None,
        "champion": champion.kernel_id if champion else None,
        "champion_us": champion.measurement.median_us if champion else None,
        "champion_share_of_light": timed.reached,
        "fault": fault or None,
    }


def _beside(evaluation: Evaluation) -> Iterable[Standard]:
    """Yield PyTorch's times from an evaluation, which measures them interleaved with the kernel's."""
    for m in evaluation.measurements:
        yield Standard(
            evaluation.op, m.workload, evaluation.device, m.eager_us, m.compile_us, m.autotune_us, m.floor_us,
            evaluation.created,
        )  # fmt: skip


WITH_NOTES, WITH_KERNELS = 150, 130  # minimum widths, in columns, at which notes and kernels are printed beside figures
MUCH, LITTLE = 1.5, 1.05  # thresholds of the column `to gain`
PARTIAL = "~"  # printed before a figure that does not cover all workloads
# Headings on two lines for a narrow terminal.
NARROW = {
    "workloads": "work-\nloads",
    "kernels": "ker-\nnels",
    "PyTorch": "Py-\nTorch",
    "champion": "cham-\npion",
    "to gain": "to\ngain",
}
FIGURES = ("PyTorch", "worst", "champion", "to gain")


def family_table(found: Sequence[OpSummary], width: int) -> Table:
    """Return a table with a heading per family and a row per op; backward ops are below their forward op."""
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


def headroom_table(found: Sequence[OpSummary], width: int) -> Table:
    """Return a table with a row per op. Ops with the most to gain come first."""
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


def footnotes(found: Sequence[OpSummary], device: DeviceInfo | None) -> list[tuple[str, str]]:
    """Return lines on the meaning of the columns and on how to measure missing values, with their styles."""
    lines = [("kernels: number shipped with evolve. OP can also be the path of a Python file.", "dim")]
    if device is None:
        hint = "`evolve ops --measure` on a machine with a GPU measures PyTorch's share of the speed of light."
        return [*lines, (hint, "dim")]
    if not known(found):
        if not policy_of(device.kind).times_are_gpu_times:
            return [*lines, (f"{device.name} ({device.kind}) has no speed of light.", "yellow")]
        return [*lines, (f"`evolve ops --measure` measures PyTorch's share on {device.name}.", "dim")]
    means = f"PyTorch, champion: share of the speed of light on {device.name}, as a geometric mean over the workloads"
    if any(share and share.partial for one in found for share in (one.pytorch, one.champion)):
        means += f" ({PARTIAL}: some workloads have no times)"
    lines.append((f"{means}; worst: PyTorch's lowest share. PyTorch: the best of eager and torch.compile.", "dim"))
    lines.append(("to gain: speedup of the speed of light over the best of PyTorch and the champion.", "dim"))
    if unknown := sum(one.pytorch is None for one in found):
        lines.append((f"`evolve ops --measure` measures the other {counted(unknown, 'op')}.", "dim"))
    return lines


def share_words(share: ShareOfLight | None) -> str:
    return f"{PARTIAL if share.partial else ''}{percent(share.mean)}" if share else "-"


def _table(texts: Sequence[str], numbers: Sequence[str], notes: Sequence[str], *, wide: bool) -> Table:
    headings = [name if wide else NARROW.get(name, name) for name in numbers]
    table = plain_table(*texts, *headings, *notes, numbers=headings)
    if not wide:
        table.padding = (0, 1, 0, 0)
    return table


def _figures(one: OpSummary) -> list[Text]:
    pytorch, champion, to_gain = one.pytorch, one.champion, one.to_gain
    ahead = champion and pytorch and champion.mean > pytorch.mean
    style = "" if to_gain is None else "green" if to_gain >= MUCH else "dim" if to_gain < LITTLE else ""
    return [
        Text(share_words(pytorch)),
        Text(percent(pytorch.worst) if pytorch else "-"),
        Text(share_words(champion), "green" if ahead else ""),
        Text(times(to_gain), style),
    ]


def _dtypes(one: OpSummary) -> str:
    return " ".join(SHORT_DTYPES.get(dtype, dtype) for dtype in one.op.dtypes)


def known(found: Sequence[OpSummary]) -> bool:
    """Return whether any figures can be shown."""
    return any(one.pytorch or one.champion for one in found)
