"""Results of a verification: a table of old and new times, its summary, and plain values for --json."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from archive.records import DeviceInfo
from evolve.devices.choose import policy_of
from evolve.export.verify import SLOWER, Known, Row, Status
from evolve.report import facts
from evolve.report.tables import fitted, narrowed, plain_table
from evolve.report.words import counted, figure, listed, one_line, percent, short, times

STYLES = {Status.WINS: "green", Status.CHECKED: "green", Status.SLOWER: "red", Status.LOST: "red", Status.FAILED: "red"}
REASON_SHOWN = 200
MEANS = (
    "before: the known times on such a GPU, or on the named device; speedup: over the best of eager and torch.compile; "
    f"slower: more than {SLOWER - 1:.0%} above the previous interval"
)


def verified_table(rows: Sequence[Row], device: DeviceInfo, width: int) -> Table:
    """Return a table with a row per workload, or per kernel on a device without GPU times."""
    if not policy_of(device.kind).times_are_gpu_times:
        table = plain_table("op", "kernel", "result", whole=["op", "kernel", "result"])
        for row in rows:
            table.add_row(row.op, short(row.kernel_id), _status(row))
        return table
    numbers = ["before µs", "now µs", "speedup", "now", "light"]
    table = plain_table("op", "workload", "kernel", *numbers, "result", numbers=numbers, whole=["result"])
    for row in rows:
        before, now = row.before.measurement if row.before else None, row.measurement
        elsewhere = f" ({row.before.device})" if row.before and row.before.device != device.name else ""
        table.add_row(
            fitted(row.op, "bold"),
            fitted(f"{row.workload}{elsewhere}"),
            short(row.after.kernel_id if row.after else row.kernel_id),
            figure(before.median_us if before else None),
            figure(now.median_us if now else None),
            times(before.speedup if before else None),
            times(now.speedup if now else None),
            percent(now.share_of_light if now else None),
            _status(row),
        )
    return narrowed(table, width, ["kernel", "light"])


def reasons(rows: Sequence[Row]) -> list[str]:
    """Return a line for each kernel that failed, with the reason."""
    failed = {row.kernel_id: row for row in rows if row.status is Status.FAILED and row.after}
    return [
        f"{row.op} {short(kernel_id)}: {row.after.outcome}: {one_line(row.after.log, REASON_SHOWN)}"
        for kernel_id, row in failed.items()
        if row.after
    ]


def summary(rows: Sequence[Row], device: DeviceInfo) -> Text:
    """Return the number of workloads or kernels with each result."""
    counts = Counter(row.status for row in rows)
    what = "workload" if policy_of(device.kind).times_are_gpu_times else "kernel"
    said = listed([f"{counts[status]} {_meaning(status)}" for status in Status if counts[status]])
    style = "red" if any(row.status.is_regression for row in rows) else ""
    return Text(f"{counted(len(rows), what)} on {device.name}: {said}", style)


def verification_facts(rows: Sequence[Row], device: DeviceInfo) -> dict[str, Any]:
    """Return the results as plain values."""
    counts = Counter(row.status for row in rows)
    return {
        "device": device.key,
        "timed": policy_of(device.kind).times_are_gpu_times,
        "driver": device.driver,
        "torch": device.torch,
        "counts": {str(status): counts[status] for status in Status if counts[status]},
        "regressions": sum(row.status.is_regression for row in rows),
        "rows": [_facts(row) for row in rows],
    }


def _facts(row: Row) -> dict[str, Any]:
    after = row.after
    duel = after.confirmed.duel(row.workload) if after and after.confirmed else None
    return {
        "op": row.op,
        "workload": row.workload or None,
        "result": str(row.status),
        "regression": row.status.is_regression,
        "before": _known(row.before) if row.before else None,
        "kernel": after.kernel_id if after else row.kernel_id,
        "now": facts.of_measurement(row.measurement) if row.measurement else None,
        "duel": facts.of_duel(duel) if duel else None,
        "outcome": str(after.outcome) if after else None,
        "log": after.log if after and not after.passed else "",
    }


def _known(known: Known) -> dict[str, Any]:
    return {
        "kernel": known.kernel_id,
        "device": known.device,
        **facts.of_measurement(known.measurement),
        "won": known.won,
    }


def _status(row: Row) -> Text:
    return Text(str(row.status), STYLES.get(row.status, "yellow"))


def _meaning(status: Status) -> str:
    return {
        Status.WINS: "won by a kernel",
        Status.PYTORCH: "left to PyTorch",
        Status.SLOWER: "slower than before",
        Status.LOST: "no longer won",
        Status.FAILED: "failed",
        Status.REFUSED: "not accepted",
        Status.CHECKED: "right",
        Status.LEFT: "not reached",
    }[status]
