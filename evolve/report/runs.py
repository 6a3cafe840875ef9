"""Comparison of runs: tables and plots of their best kernels by evaluations, tokens and dollars spent."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from archive.records import kind_in
from archive.runs import Run
from archive.store import Store, workloads_of
from archive.summaries import RankedTimes
from evolve import budget
from evolve.budget import History, Spent
from evolve.report.basis import PYTORCH, Basis, known_basis
from evolve.report.standing import first_kernel
from evolve.report.tables import fitted, narrowed, plain_table
from evolve.report.words import amounts, dollars, moment, times
from evolve.selection import population

AXES = ("evals", "tokens", "usd")
SHARES = (0.1, 0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Sample:
    """The cost of a run up to a moment, and the quality of its best kernels at that moment."""

    spent: Spent
    # Geometric mean over the workloads of the best ratio to the basis, clipped at 1; None until a kernel has passed.
    quality: float | None


@dataclass(frozen=True)
class Trajectory:
    """The samples of one run, in chronological order."""

    run: Run
    points: tuple[Sample, ...]

    @property
    def spent(self) -> Spent:
        return self.points[-1].spent if self.points else Spent()

    def quality(self, axis: str, amount: float) -> float | None:
        """Return the quality after `amount` evaluations, tokens or dollars, or None if no kernel had passed."""
        reached = [point.quality for point in self.points if getattr(point.spent, axis) <= amount]
        return reached[-1] if reached else None


def trajectories(store: Store, found: Sequence[Run]) -> list[Trajectory]:
    """Return the trajectories of runs of one op on one device."""
    op, device = found[0].op, found[0].device
    ranked = store.find(RankedTimes, op, device=device)
    basis = PYTORCH if known_basis(kind_in(device)).is_pytorch else first_kernel(store, op, ranked)
    keys = workloads_of(store, population.leaders(store.find(RankedTimes, op, device=device, contending=True)))
    past = budget.history(store, op, device)
    return [trajectory(run, past, ranked, keys, basis) for run in found]


def trajectory(
    run: Run, past: History, ranked: Iterable[RankedTimes], workloads: Sequence[str], basis: Basis = PYTORCH
) -> Trajectory:
    """Return the trajectory of a run, counting only its own proposals whose latest verdict is a pass.

    `ranked` are the times of the kernels that pass, which are compared with those of the basis.
    """
    in_force = {one.kernel_id: one for one in ranked}
    best = dict[str, float]()
    spent, points = Spent(), []
    for step in budget.steps(run.id, past):
        spent += step.spent
        verdict = in_force.get(step.kernel_id)
        for m in verdict.measurements if verdict else ():
            best[m.workload] = max(best.get(m.workload, 1.0), basis.ratio(m) or 1.0)
        mean = sum(math.log(best.get(key, 1.0)) for key in workloads) / max(1, len(workloads))
        points.append(Sample(spent, math.exp(mean) if best else None))
    return Trajectory(run, tuple(points))


def common(trajectories: Sequence[Trajectory], axis: str) -> float:
    """Return the largest amount that every run has spent."""
    return min((float(getattr(one.spent, axis)) for one in trajectories), default=0.0)


def compared(trajectories: Sequence[Trajectory], axis: str) -> list[tuple[float, list[float | None]]]:
    """Return the quality of each run at fractions of the amount that every run has spent."""
    most = common(trajectories, axis)
    amounts = [math.ceil(share * most) if axis != "usd" else share * most for share in SHARES]
    return [(amount, [one.quality(axis, amount) for one in trajectories]) for amount in amounts] if most > 0 else []


def thinned(one: Trajectory, axis: str) -> list[tuple[float, float]]:
    """Return the points to plot: from the first kernel that passed to the end, those where the quality changes."""
    points = [(float(getattr(one.spent, axis)), one.quality) for one in one.points if one.quality is not None]
    kept = points[:1]
    for amount, quality in points:
        if quality != kept[-1][1]:
            kept.append((amount, quality))
    return [*kept, points[-1]] if points else kept


PER = {"evals": "evaluation", "tokens": "token", "usd": "dollar"}
UNITS = {"evals": "evaluations", "tokens": "tokens", "usd": "dollars"}
PLOT_ROWS = 8
QUALITY = (
    "quality: geometric mean over the workloads of the speedup {over} of the best kernel that the run itself proposed; "
    "-: no kernel had passed"
)
OVER_PYTORCH = "over the best of PyTorch, 1 where PyTorch is faster,"
OVER_FIRST_KERNEL = "over the op's first kernel, 1 where the first kernel is faster ({note}),"


def comparison(trajectories: Sequence[Trajectory], output: Console, note: str) -> Iterator[RenderableType]:
    """Yield the runs, then their quality per evaluation, token and dollar; `note` is a warning about the times."""
    yield narrowed(runs_table(trajectories), output.width, ["strategy", "when", "proposer", "spent"])
    yield Text(QUALITY.format(over=OVER_FIRST_KERNEL.format(note=note) if note else OVER_PYTORCH), "dim")
    unicode = has_unicode(output)
    for axis, per in PER.items():
        rows = compared(trajectories, axis)
        yield Text()
        if not rows:
            yield Text(f"best so far per {per}: not shown, because some run has spent none", "dim")
            continue
        yield Text(f"best so far per {per}, up to the amount that all runs have spent", "bold")
        yield _table(rows, trajectories, axis)
        if all(quality is None for _, qualities in rows for quality in qualities):
            continue  # omitted, because a flat line at the bottom would look like a result
        curves = [Curve(thinned(one, axis)) for one in trajectories]
        yield from plot(curves, output.width, PLOT_ROWS, unicode=unicode, unit=UNITS[axis])


def has_unicode(output: Console) -> bool:
    return output.encoding.lower().startswith("utf")


def runs_table(trajectories: Sequence[Trajectory]) -> Table:
    """Return a table with a row per run, with the letter that denotes the run in the other tables and plots."""
    table = plain_table("", "run", "when", "proposer", "strategy", "spent", "best", numbers=["best"])
    for index, one in enumerate(trajectories):
        run = one.run
        table.add_row(
            Text(LETTERS[index % len(LETTERS)], f"bold {COLORS[index % len(COLORS)]}"),
            run.id,
            moment(run.created),
            fitted(run.proposer),
            run.strategy,
            fitted(amounts(one.spent).partition(", ")[2]),  # omits the time, which a trajectory does not record
            times(one.points[-1].quality if one.points else None),
        )
    return table


def _table(
    rows: Sequence[tuple[float, Sequence[float | None]]], trajectories: Sequence[Trajectory], axis: str
) -> Table:
    """Return a table with a row per fraction of the amount, and the best value of each row highlighted."""
    names = [LETTERS[index % len(LETTERS)] for index in range(len(trajectories))]
    table = plain_table("share", UNITS[axis], *names, numbers=["share", UNITS[axis], *names])
    for share, (spent, qualities) in zip(SHARES, rows, strict=True):
        best = max((q for q in qualities if q is not None), default=0.0)
        table.add_row(
            f"{share:.0%}",
            dollars(spent) if axis == "usd" else amount(spent),
            *(Text(times(q), "green" if q is not None and math.isclose(q, best) else "") for q in qualities),
        )
    return table


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLORS = ("cyan", "magenta", "yellow", "green", "red", "blue")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # bits of a braille character, by row and column
BLANK = 0x2800
CROSSING = "*"  # printed where the letters of two curves coincide
LABEL_EVERY = 16  # number of columns between the letters that name a braille curve


@dataclass(frozen=True)
class Curve:
    """A step function: the value of each point holds until the next."""

    points: Sequence[tuple[float, float]]


def plot(curves: Sequence[Curve], width: int, height: int, *, unicode: bool = True, unit: str = "") -> list[Text]:
    """Draw the curves, called A, B and so on, as rows of text at most `width` wide."""
    right = max((x for curve in curves for x, _ in curve.points), default=0.0) or 1.0
    values = [y for curve in curves for _, y in curve.points] or [1.0]
    low, high = min(values), max(values)
    high = high if high > low else low + 0.1
    labels = [_tick(high), _tick((low + high) / 2), _tick(low)]
    margin = max(map(len, labels))
    columns = max(8, width - margin - 2)
    canvas = _braille(curves, columns, height, (right, low, high)) if unicode else None
    rows = canvas or _letters(curves, columns, height, (right, low, high))
    axis = "│" if unicode else "|"
    named = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    drawn = [Text.assemble((f"{named.get(row, ''):>{margin}} {axis}", "dim"), text) for row, text in enumerate(rows)]
    corner, dash = ("└", "─") if unicode else ("+", "-")
    drawn.append(Text(f"{'':>{margin}} {corner}{dash * columns}", "dim"))
    end = f"{amount(right)} {unit}".strip()
    end = end if len(end) < columns - 2 else amount(right)
    drawn.append(Text(f"{'':>{margin}}  0{end:>{columns - 1}}", "dim"))
    return drawn


def amount(value: float) -> str:
    """Format a number of evaluations, tokens or dollars."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.4g}"


def _tick(value: float) -> str:
    return times(value)


def _at(curve: Curve, x: float) -> float | None:
    """Return the value at x, or None before the first and beyond the last point."""
    if not curve.points or x > curve.points[-1][0] * (1 + 1e-9):
        return None
    return next((y for at, y in reversed(curve.points) if at <= x * (1 + 1e-9)), None)


def _heights(curve: Curve, columns: int, rows: int, scale: tuple[float, float, float]) -> list[int | None]:
    """Return the row of the curve in each column, counted from the top."""
    right, low, high = scale
    found: list[int | None] = []
    for column in range(columns):
        y = _at(curve, right * column / max(1, columns - 1))
        found.append(None if y is None else round((high - y) / (high - low) * (rows - 1)))
    return found


def _braille(curves: Sequence[Curve], columns: int, height: int, scale: tuple[float, float, float]) -> list[Text]:
    dots = [[0] * columns for _ in range(height)]
    owners = [[-1] * columns for _ in range(height)]
    for index, curve in enumerate(curves):
        before: int | None = None
        for column, row in enumerate(_heights(curve, 2 * columns, 4 * height, scale)):
            for filled in _between(before, row):
                dots[filled // 4][column // 2] |= DOTS[filled % 4][column % 2]
                owners[filled // 4][column // 2] = index
            before = row
    rows = []
    for drawn, row_owners in zip(dots, owners, strict=True):
        text = Text()
        for bits, index in zip(drawn, row_owners, strict=True):
            text.append(chr(BLANK + bits) if bits else " ", _color(index))
        rows.append(text)
    return _labelled(rows, curves, columns, scale)


def _labelled(rows: list[Text], curves: Sequence[Curve], columns: int, scale: tuple[float, float, float]) -> list[Text]:
    """Print each curve's letter on the curve at intervals, for terminals without colours, and return the rows."""
    for index, curve in enumerate(curves):
        fine = _heights(curve, 2 * columns, 4 * len(rows), scale)
        at = [None if row is None else row // 4 for row in fine[::2]]
        last = max((column for column, row in enumerate(at) if row is not None), default=-1)
        first = (index + 1) * LABEL_EVERY // (len(curves) + 1)
        for column in {*range(first, last, LABEL_EVERY), last}:
            if (row := at[column] if column >= 0 else None) is not None:
                letter = Text(LETTERS[index % len(LETTERS)], f"bold {_color(index)}")
                rows[row] = Text.assemble(rows[row][:column], letter, rows[row][column + 1 :])
    return rows


def _letters(curves: Sequence[Curve], columns: int, height: int, scale: tuple[float, float, float]) -> list[Text]:
    cells = [[" "] * columns for _ in range(height)]
    for index, curve in enumerate(curves):
        before: int | None = None
        for column, row in enumerate(_heights(curve, columns, height, scale)):
            for filled in _between(before, row):
                held = cells[filled][column]
                letter = LETTERS[index % len(LETTERS)]
                cells[filled][column] = letter if held in (" ", letter) else CROSSING
            before = row
    return [Text("".join(row)) for row in cells]


def _between(before: int | None, row: int | None) -> Sequence[int]:
    """Return the rows of a vertical line from the last column's row to this column's row."""
    if row is None:
        return ()
    start = row if before is None else before
    return range(min(start, row), max(start, row) + 1)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)] if index >= 0 else ""
