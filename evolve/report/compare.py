"""Runs beside each other: a table per axis, and a plot of each."""

import math
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from evolve import course
from evolve.course import Course
from evolve.report.plot import COLORS, LETTERS, Line, amount, plot
from evolve.report.spending import amounts, dollars
from evolve.report.tables import fitted, plain_table
from evolve.report.words import moment, times

PER = {"evals": "evaluation", "tokens": "token", "usd": "dollar"}
UNITS = {"evals": "evaluations", "tokens": "tokens", "usd": "dollars"}
PLOT_ROWS = 8
QUALITY = (
    "geometric mean over the workloads of the speedup {over} of the best kernel that the run itself proposed; "
    "-: none had passed"
)
OVER_PYTORCH = "over the best of PyTorch (1 where PyTorch is faster)"
OVER_SLOWEST = "over the slowest kernel of these runs (CPU times of an emulator: no statement about a GPU)"


def comparison(courses: Sequence[Course], shown: Console, *, emulated: bool) -> Iterator[RenderableType]:
    """Who the runs are, then best-so-far per evaluation, per token and per dollar."""
    yield runs_table(courses)
    yield Text(QUALITY.format(over=OVER_SLOWEST if emulated else OVER_PYTORCH), "dim")
    unicode = can_draw(shown)
    for axis, per in PER.items():
        rows = course.compared(courses, axis)
        yield Text()
        if not rows:
            yield Text(f"best so far per {per}: not every run has spent any", "dim")
            continue
        yield Text(f"best so far per {per}, up to what all have spent", "bold")
        yield _table(rows, courses, axis)
        if all(quality is None for _, qualities in rows for quality in qualities):
            continue  # a line along the bottom would look like a result
        lines = [Line(course.thinned(one, axis)) for one in courses]
        yield from plot(lines, shown.width, PLOT_ROWS, unicode=unicode, unit=UNITS[axis])


def can_draw(shown: Console) -> bool:
    return shown.encoding.lower().startswith("utf")


def runs_table(courses: Sequence[Course]) -> Table:
    table = plain_table("", "run", "when", "proposer", "strategy", "spent", "best", numbers=["best"])
    for index, one in enumerate(courses):
        run = one.run
        table.add_row(
            Text(LETTERS[index % len(LETTERS)], f"bold {COLORS[index % len(COLORS)]}"),
            run.id,
            moment(run.created),
            fitted(run.proposer),
            run.strategy,
            fitted(amounts(one.spent).partition(", ")[2]),  # without the time, which a course does not tell
            times(one.points[-1].quality if one.points else None),
        )
    return table


def _table(rows: Sequence[tuple[float, Sequence[float | None]]], courses: Sequence[Course], axis: str) -> Table:
    """The best of each row stands out."""
    names = [LETTERS[index % len(LETTERS)] for index in range(len(courses))]
    table = plain_table("share", UNITS[axis], *names, numbers=["share", UNITS[axis], *names])
    for share, (spent, qualities) in zip(course.SHARES, rows, strict=True):
        best = max((q for q in qualities if q is not None), default=0.0)
        table.add_row(
            f"{share:.0%}",
            dollars(spent) if axis == "usd" else amount(spent),
            *(Text(times(q), "green" if q is not None and math.isclose(q, best) else "") for q in qualities),
        )
    return table
