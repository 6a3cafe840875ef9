"""Figures of the README: a table and a picture of the shipped champions' results, made from shipped measurements.

The results are text. Equal measurements give equal text, so that a check can compare it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from archive.measured import MeasuredKernel
from archive.records import DeviceInfo, Measurement
from evolve.report.basis import geometric_mean
from evolve.report.words import counted, percent, times
from evolve.selection import population
from reference_ops.listing import Listed

BEGIN = "<!-- figures: `evolve figures` writes what follows, up to the end -->"
END = "<!-- end of figures -->"
PICTURE = ".github/figures.svg"
NONE_YET = (
    "No measurements ship with this version yet: its kernels are correct starting points, to be measured and evolved\n"
    "on your GPU. Earlier runs on one H200 are in [archive/README.md](archive/README.md)."
)

COLUMNS = (
    "Geometric means over the workloads of the champions that ship. *faster*: on how many of them the champion is\n"
    "faster than the fastest of eager PyTorch, `torch.compile` and `max-autotune`; on the others an exported package\n"
    "runs PyTorch. *light*: share of the speed of light, *worst*: the least of these shares. *over PyTorch's best*:\n"
    "speedup over that fastest."
)


@dataclass(frozen=True)
class FamilyFigures:
    """The results of the champions of one family of ops on one GPU."""

    family: str
    ops: int
    workloads: int  # number of workloads of these ops, with or without a champion
    measurements: tuple[Measurement, ...]  # measurements of the champion on each workload

    @property
    def lights(self) -> list[float]:
        return [share for one in self.measurements if (share := one.share_of_light)]

    @property
    def speedups(self) -> list[float]:
        return [one.speedup for one in self.measurements]

    @property
    def over_eager(self) -> list[float]:
        return [one.eager_us / one.median_us for one in self.measurements]


@dataclass(frozen=True)
class DeviceFigures:
    """The figures of one GPU, with all families together as the last row."""

    device: str
    families: tuple[FamilyFigures, ...]
    toolchains: tuple[str, ...]
    dates: tuple[str, str]  # dates of the first and the last measurement

    @property
    def total(self) -> FamilyFigures:
        every = tuple(one for family in self.families for one in family.measurements)
        ops, workloads = (sum(getattr(one, name) for one in self.families) for name in ("ops", "workloads"))
        return FamilyFigures("all", ops, workloads, every)


def of_devices(ops: Iterable[Listed], shipped: Mapping[str, Sequence[MeasuredKernel]]) -> list[DeviceFigures]:
    """Return the figures of each GPU, the one with the most workloads first.

    `shipped` holds each op's shipped measurements.
    """
    listed = {op.name: op for op in ops}
    by_device: dict[str, dict[str, list[MeasuredKernel]]] = defaultdict(lambda: defaultdict(list))
    for name, found in shipped.items():
        for one in found:
            by_device[one.evaluation.device.name][name].append(one)
    figures = [_device(name, of_op, listed) for name, of_op in by_device.items()]
    kept = [one for one in figures if one.families]
    return sorted(kept, key=lambda one: (-len(one.total.measurements), one.device))


def _device(name: str, of_op: Mapping[str, Sequence[MeasuredKernel]], listed: Mapping[str, Listed]) -> DeviceFigures:
    families: dict[str, dict[str, list[Measurement]]] = defaultdict(dict)
    for op, found in sorted(of_op.items()):
        best = _champions(listed[op], found) if op in listed else []
        if best:
            families[listed[op].family][op] = best
    evaluations = [one.evaluation for found in of_op.values() for one in found]
    toolchains = {_toolchain(one.device) for one in evaluations if one.device.torch}
    dates = sorted(one.created for one in evaluations)
    return DeviceFigures(
        name,
        tuple(
            FamilyFigures(
                family, len(ops), sum(len(listed[op].gpu) for op in ops),
                tuple(one for best in ops.values() for one in best),
            )
            for family, ops in sorted(families.items())
        ),
        tuple(sorted(toolchains)),
        (_day(dates[0]), _day(dates[-1])),
    )  # fmt: skip


def _toolchain(device: DeviceInfo) -> str:
    """Return a phrase that names the versions; the driver's number for CUDA 13.0 is 13000."""
    number = int(device.driver) if device.driver.isdecimal() else 0
    return f"PyTorch {device.torch}" + (f", a driver for CUDA {number // 1000}.{number % 1000 // 10}" if number else "")


def _champions(op: Listed, found: Sequence[MeasuredKernel]) -> list[Measurement]:
    """Return the champions' times at the op's current workloads."""
    winners = population.leaders(one.evaluation for one in found)
    return [population.champion(w, evaluation).measurement for w, evaluation in winners.items() if w in op.gpu]


def section(devices: Sequence[DeviceFigures]) -> str:
    """Return the part of the README between its marks."""
    if not devices:
        return f"{BEGIN}\n{NONE_YET}\n{END}"
    parts = [f"![Share of the speed of light and speedup of each family]({PICTURE})"]
    parts += [table(one, every_family=number == 0) for number, one in enumerate(devices)]
    return "\n\n".join([BEGIN, *parts, COLUMNS, END])


def table(figures: DeviceFigures, *, every_family: bool) -> str:
    """Return a Markdown table with a row per family, or with all families in one row."""
    head = f"{figures.device}; {'; '.join(figures.toolchains)}; {' to '.join(dict.fromkeys(figures.dates))}."
    lines = [
        f"| {figures.device} | ops | workloads | faster | light | worst | over PyTorch's best | over eager |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in (*(figures.families if every_family else ()), figures.total):
        cells = [
            row.family, str(row.ops), _of(len(row.measurements), row.workloads),
            str(sum(speedup > 1 for speedup in row.speedups)), percent(geometric_mean(row.lights)),
            percent(min(row.lights, default=None)), times(geometric_mean(row.speedups)),
            times(geometric_mean(row.over_eager)),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", head])


def _of(number: int, every: int) -> str:
    return str(number) if number == every else f"{number} of {every}"


def with_section(readme: str, written: str) -> str | None:
    """Return the README with this section between its marks, or None if it has no marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{written}{after}" if begin and end else None


ROW, LEFT, PANEL, TOP, TICK_ROOM = 22, 150, 250, 56, 26  # pixels
RIGHT = LEFT + PANEL + 70  # left edge of the second panel
LIGHT_COLOUR, SPEED_COLOUR, WORST_COLOUR, TEXT_COLOUR = "#2f7ed8", "#3a9d5d", "#b03a2e", "#24292f"
SLOWER_COLOUR = "#c98a2b"
LEGEND = "bars: geometric means; red: the worst workload; dashed: the speed of light, and PyTorch"
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True)
class LogAxis:
    """The logarithmic axis of speedups: 2x and 0.5x are equally far from PyTorch."""

    low: float
    high: float

    def __call__(self, speedup: float) -> float:
        share = math.log(max(speedup, self.low) / self.low) / math.log(self.high / self.low)
        return RIGHT + PANEL * min(1.0, share)

    @property
    def ticks(self) -> list[float]:
        """The round numbers on the axis besides 1, without those that are too close to another."""
        kept: list[float] = []
        for tick in sorted((one for one in TICKS if self.low <= one <= self.high), key=lambda one: abs(math.log(one))):
            if all(abs(self(tick) - self(other)) >= TICK_ROOM for other in (1.0, *kept)):
                kept.append(tick)
        return sorted(kept)


def _axis_of(rows: Sequence[FamilyFigures]) -> LogAxis:
    """Return an axis for the mean and the worst speedup of each row."""
    drawn = [speedup for row in rows if row.speedups for speedup in (geometric_mean(row.speedups), min(row.speedups))]
    every = [speedup for speedup in drawn if speedup]
    return LogAxis(min(0.5, *every) / 1.1, max(2.0, *every) * 1.1)


def picture(figures: DeviceFigures) -> str:
    """Return an SVG with two bars per family: the share of the speed of light, and the speedup over PyTorch."""
    rows = (*figures.families, figures.total)
    axis, bottom = _axis_of(rows), TOP + ROW * len(rows)
    width, height = RIGHT + PANEL + 60, bottom + 42
    title = f"Champions that ship, on {figures.device}: {counted(len(figures.total.measurements), 'workload')}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="{TEXT_COLOUR}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(10, 20, title, 14),
        _text(LEFT, TOP - 12, "share of the speed of light"),
        _text(RIGHT, TOP - 12, "speedup over PyTorch's best, logarithmic"),
        *(_dashed(x, bottom) for x in (LEFT + PANEL, axis(1.0))),
        *(line for number, row in enumerate(rows) for line in _bars(row, TOP + ROW * number, axis)),
        *(_tick(axis(speedup), bottom, f"{speedup:g}x") for speedup in (1.0, *axis.ticks)),
        *(_tick(LEFT + PANEL * share, bottom, percent(share)) for share in (0.0, 0.5, 1.0)),
        _text(10, bottom + 34, LEGEND),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bars(row: FamilyFigures, y: int, axis: LogAxis) -> Iterator[str]:
    light, speedup = geometric_mean(row.lights), geometric_mean(row.speedups)
    yield _text(10, y + 14, row.family)
    if light is not None:
        yield from _bar(LEFT, LEFT + PANEL * min(light, 1.0), y, LIGHT_COLOUR, percent(light))
        yield _mark(LEFT + PANEL * min(1.0, *row.lights), y)
    if speedup is not None:
        begin, end = sorted((axis(1.0), axis(speedup)))
        yield from _bar(begin, end, y, SPEED_COLOUR if speedup >= 1 else SLOWER_COLOUR, times(speedup))
        yield _mark(axis(min(row.speedups)), y)


def _text(x: float, y: float, words: str, size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{escape(words)}</text>'


def _bar(begin: float, end: float, y: int, colour: str, label: str) -> Iterator[str]:
    yield f'<rect x="{begin:.1f}" y="{y + 3}" width="{end - begin:.1f}" height="{ROW - 8}" fill="{colour}"/>'
    outlined = 'stroke="white" stroke-width="4" paint-order="stroke"'
    yield f'<text x="{end + 5:.1f}" y="{y + 14}" {outlined}>{escape(label)}</text>'


def _tick(x: float, bottom: int, label: str) -> str:
    return f'<text x="{x:.1f}" y="{bottom + 13}" font-size="10" fill="#57606a" text-anchor="middle">{label}</text>'


def _dashed(x: float, bottom: int) -> str:
    return f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#999" stroke-dasharray="3 3"/>'


def _mark(x: float, y: int) -> str:
    return f'<rect x="{x - 1:.1f}" y="{y + 1}" width="2" height="{ROW - 4}" fill="{WORST_COLOUR}"/>'


def _day(created: float) -> str:
    return datetime.fromtimestamp(created, UTC).strftime("%d %B %Y")
