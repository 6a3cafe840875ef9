"""Gains of an op's champions on a device, and the gain still possible, as geometric means over its workloads."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from rich.table import Table

from archive import plain
from archive.records import DeviceInfo
from archive.sqlite import SqliteStore
from archive.store import Store, workloads_of
from archive.summaries import EvaluationSummary, RankedTimes, Timing
from evolve.devices.choose import policy_of
from evolve.report.basis import geometric_mean
from evolve.report.standing import devices
from evolve.report.standing_tables import ELSEWHERE, UNCONFIRMED
from evolve.report.tables import WIDE, fitted, narrowed, plain_table
from evolve.report.words import percent, times, times_label
from evolve.selection import population

MEANS = (
    "light and speedup: geometric means over the workloads with a champion of its share of the speed of light, and of "
    "its speedup over the best of PyTorch"
)
REACHED = "reached, 1"  # name under which values are archived; increase the number when their computation changes
FASTER_MEANS = (
    f"faster: number of workloads on which the champion is faster, of all; {UNCONFIRMED}: a champion is not confirmed "
    f"yet"
)


@dataclass(frozen=True)
class Reached:
    """The results of the champions of one op on one device. Shares and speedups exist for GPU times only."""

    op: str
    device: DeviceInfo
    timings: tuple[Timing, ...]  # times of the champion on each workload
    judged: int = 0  # number of kernels with a verdict
    workloads: tuple[str, ...] = ()  # workloads of the op, with or without a champion
    confirmed: bool = True  # whether all champions are confirmed
    elsewhere: bool = False  # whether the times of a champion ship with the package

    @property
    def on_gpu(self) -> bool:
        return policy_of(self.device.kind).times_are_gpu_times

    @property
    def lights(self) -> list[float]:
        return [share for timing in self.timings if self.on_gpu and (share := timing.share_of_light)]

    @property
    def speedups(self) -> list[float]:
        return [timing.speedup for timing in self.timings] if self.on_gpu else []

    @property
    def to_gain(self) -> float:
        """The factor by which kernels at the speed of light would be faster; 0 if it is unknown."""
        light = geometric_mean(self.lights)
        return 1 / light if light else 0.0


def reached_everywhere(store: SqliteStore, part: str = "", dtype: str = "") -> list[Reached]:
    """Return the gains of each op on each device with `part` in its key, most to gain first.

    A `dtype` restricts this to workloads of that type.
    """
    found = [
        _of_dtype(one, dtype)
        for op in store.ops(EvaluationSummary)
        for one in store.derived(REACHED, op, partial(_reached, store, op), _reached_in)
        if part.lower() in one.device.key.lower()
    ]
    return sorted(found, key=lambda one: (not one.on_gpu, -one.to_gain, one.op))


def _of_dtype(one: Reached, dtype: str) -> Reached:
    if not dtype:
        return one
    timings = tuple(timing for timing in one.timings if dtype in timing.workload.split())
    return replace(one, timings=timings, workloads=tuple(key for key in one.workloads if dtype in key.split()))


def _reached(store: Store, op: str) -> list[dict[str, object]]:
    return [asdict(_reached_on(store, op, info)) for info in devices(store, op)]


def _reached_in(kept: list[dict[str, Any]]) -> list[Reached]:
    return [
        replace(plain.record(Reached, one), timings=tuple(Timing(*timing) for timing in one["timings"])) for one in kept
    ]


def _reached_on(store: Store, op: str, device: DeviceInfo) -> Reached:
    leaders = population.leaders(store.find(RankedTimes, op, device=device.key, contending=True))
    timings = tuple(
        timing for workload, one in leaders.items() for timing in one.measurements if timing.workload == workload
    )
    shipped = store.find(EvaluationSummary, op, ids={one.id for one in leaders.values()}, shipped=True)
    judged = store.count(EvaluationSummary, "device", op, device=device.key, in_force=True)
    return Reached(
        op, device, timings, judged.get(device.key, 0), tuple(workloads_of(store, leaders)),
        all(one.confirmed for one in leaders.values()), bool(shipped),
    )  # fmt: skip


def reached_table(found: Sequence[Reached], width: int) -> Table:
    """Return a table with a row per op and device."""
    numbers = ["light", "worst", "speedup", "worst ", "faster", "judged"]
    table = plain_table("op", "device", *numbers, numbers=numbers, whole=["op"])
    for one in found:
        label = times_label(one.device.kind)
        card = one.device.name if width >= WIDE else one.device.name.removeprefix("NVIDIA ")
        name = f"{card} ({label})" if label else card
        faster = sum(speedup > 1 for speedup in one.speedups)
        table.add_row(
            fitted(one.op, "bold"),
            fitted(f"{name}{ELSEWHERE if one.elsewhere else ''}", "yellow" if label else ""),
            percent(geometric_mean(one.lights)),
            percent(min(one.lights, default=None)),
            times(geometric_mean(one.speedups)),
            times(min(one.speedups, default=None)),
            f"{faster}/{len(one.workloads)}{'' if one.confirmed else UNCONFIRMED}" if one.on_gpu else "-",
            str(one.judged),
        )
    return narrowed(table, width, ["judged", "worst ", "worst", "faster"])


def footnote(table: Table) -> str:
    """Return a note on the table's columns and order."""
    shown = {str(column.header) for column in table.columns}
    return "; ".join([MEANS, *([FASTER_MEANS] if "faster" in shown else []), "most to gain first"])


def facts(one: Reached) -> dict[str, Any]:
    """Return a row of the table as plain values."""
    return {
        "op": one.op,
        "device": one.device.key,
        "emulated": not one.on_gpu,
        "workloads": len(one.workloads),
        "champions": len(one.timings),
        "light": geometric_mean(one.lights),
        "worst_light": min(one.lights, default=None),
        "speedup": geometric_mean(one.speedups),
        "worst_speedup": min(one.speedups, default=None),
        "faster": sum(speedup > 1 for speedup in one.speedups),
        "judged": one.judged,
        "confirmed": one.confirmed,
        "measured_elsewhere": one.elsewhere,
    }
