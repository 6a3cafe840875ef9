"""KernelBench's score fast_p: the share of a level's tasks that are correct and more than p times as fast."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from evolve.report.basis import geometric_mean
from evolve.report.tables import fitted, plain_table
from evolve.report.words import times

THRESHOLDS = (0, 1, 2)
EAGER, COMPILE = "baseline_time_torch.json", "baseline_time_torch_compile_inductor_default.json"
DEFAULT_GPU = "H100"  # used if KernelBench publishes no times for this GPU


@dataclass(frozen=True)
class Published:
    """The baseline times that KernelBench publishes for a level, in us, by the problem's file name."""

    hardware: str = ""
    eager_us: Mapping[str, float] = field(default_factory=dict)
    compile_us: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskResult:
    """The result of one problem: the champions' times, one per workload, or the reason why there are none."""

    name: str
    file: str
    remark: str = ""  # reason why the problem was not run
    blind: bool = False
    measured: tuple[Mapping[str, Any], ...] = ()
    workloads: int = 1

    @property
    def correct(self) -> bool:
        """Whether every workload has a champion. A task with a blind check is never correct."""
        return not self.blind and len(self.measured) >= self.workloads > 0

    def speedup(self, over: str) -> float | None:
        """Return the speedup over eager PyTorch or torch.compile, as a geometric mean over the workloads."""
        ratios = [one[over] / one["median_us"] for one in self.measured if one.get(over)]
        if not self.correct or len(ratios) < len(self.measured):
            return None
        return geometric_mean(ratios)


def fast(tasks: Sequence[TaskResult], over: str, p: float) -> float:
    """Return fast_p as a share of all tasks; fast_0 is the share of correct tasks."""
    if not tasks:
        return 0.0
    won = [task.correct if p == 0 else (task.speedup(over) or 0.0) > p for task in tasks]
    return sum(won) / len(tasks)


def verdicts_table(tasks: Sequence[TaskResult]) -> Table:
    """Return a table with a row per task that says whether it is correct, for devices without GPU times."""
    table = plain_table("task", "verdict", "", whole=["verdict"])
    for task in tasks:
        missing = "" if task.correct or task.remark else "no correct kernel"
        table.add_row(fitted(task.name, "bold"), "correct" if task.correct else "-", fitted(task.remark or missing))
    return table


def tasks_table(tasks: Sequence[TaskResult], published: Published) -> Table:
    """Return a table with a row per task: the times here, the speedups, and the published times, if any."""
    numbers = ["kernel\nµs", "eager\nµs", "compile\nµs", "over\neager", "over\ncompile"]
    theirs = ["published\neager µs", "published\ncompile µs"] if published.hardware else []
    table = plain_table("task", *numbers, *theirs, "", numbers=[*numbers, *theirs])
    for task in tasks:
        row = [_us(task, name) for name in ("median_us", "eager_us", "compile_us")]
        row += [_times(task.speedup(over)) for over in ("eager_us", "compile_us")]
        if theirs:
            row += [_figure(known.get(task.file)) for known in (published.eager_us, published.compile_us)]
        missing = "" if task.correct or task.remark else "no correct kernel"
        table.add_row(fitted(task.name, "bold"), *row, fitted(task.remark or missing, "dim"))
    return table


def fast_table(tasks: Sequence[TaskResult]) -> Table:
    """Return a table of fast_p over both baselines, for all tasks of the level, run or not, as KernelBench counts."""
    headings = [f"fast_{p}" for p in THRESHOLDS]
    table = plain_table("over", *headings, numbers=headings)
    for name, over in (("eager", "eager_us"), ("torch.compile", "compile_us")):
        known = any(task.speedup(over) for task in tasks) or not any(task.correct for task in tasks)
        shares = [f"{fast(tasks, over, p):.0%}" if known or p == 0 else "-" for p in THRESHOLDS]
        table.add_row(name, *shares)
    return table


def published(checkout: Path, level: int, device: str, read: Callable[[Path], Any]) -> Published:
    """Return the times in results/timing, from the folder with the most times for this GPU model or the default GPU."""
    folders = sorted(folder for folder in (checkout / "results" / "timing").glob("*") if (folder / EAGER).is_file())
    entries = {folder: read(folder / EAGER).get(f"level{level}", {}) for folder in folders}
    for model in (*re.findall(r"[A-Za-z]+\d+", device), DEFAULT_GPU):
        counts = {folder: _made_on(model, known.values()) for folder, known in entries.items()}
        best = max(counts, key=lambda folder: counts[folder], default=None)
        if best and counts[best]:
            return Published(best.name, _us_of(entries[best]), _level(best / COMPILE, level, read))
    return Published()


def _made_on(model: str, entries: Iterable[Mapping[str, Any]]) -> int:
    return sum(model in str(entry.get("hardware", "")) for entry in entries)


def _level(path: Path, level: int, read: Callable[[Path], Any]) -> dict[str, float]:
    return _us_of(read(path).get(f"level{level}", {})) if path.is_file() else {}


def _us_of(entries: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the published mean times in microseconds. They are published in milliseconds."""
    return {name: 1000 * entry["mean"] for name, entry in entries.items() if "mean" in entry}


def _us(task: TaskResult, name: str) -> str:
    values = [one.get(name) for one in task.measured]
    if not values or None in values:
        return "-"
    return _figure(sum(value for value in values if value))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _times(value: float | None) -> str:
    return "-" if value is None else times(value)
