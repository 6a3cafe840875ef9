"""Tables fitted to the width of the terminal, and the columns that show measurements."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from archive.records import Evaluation, Measurement
from evolve.report.basis import Basis, known_basis
from evolve.report.output import EVERYTHING
from evolve.report.words import figure, moment, percent, times, workload_labels

WIDE = 100  # minimum width, in columns, at which notes are shown
WIDER = 120  # minimum width, in columns, at which max-autotune is shown beside torch.compile's default
GAP = 2  # width of the gap between two columns of a table
LEAST_TEXT = 16  # smallest width, in columns, that a column of text gets before another column is left out
OVER_FIRST = "over first"
# Columns of a table of champions or measurements that are left out, in this order, if the table is too wide.
LESS_IMPORTANT = ("autotune", "95 %", "eager", "compile", "light", "idea", "bytes/load", "launches")


def plain_table(*headings: str, numbers: Sequence[str] = (), whole: Sequence[str] = ()) -> Table:
    """Return a table without lines. Columns in `numbers` are aligned right; neither they nor `whole` are cut off."""
    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading in numbers
        table.add_column(heading, justify="right" if right else "left", no_wrap=right or heading in whole)
    return table


def narrowed(table: Table, width: int, less_important: Sequence[str] = LESS_IMPORTANT) -> Table:
    """Return the table without as many of the less important columns, given by their headings, as do not fit."""
    for heading in less_important:
        if _least_width(table) <= width:
            break
        table = _without(table, heading)
    return table


def _least_width(table: Table) -> int:
    """Return the width that a table needs if only its columns of text are cut off, to a readable length."""
    columns = [(max(map(_length, [column.header, *column.cells])), column.no_wrap) for column in table.columns]
    return sum(longest if whole else min(longest, LEAST_TEXT) for longest, whole in columns) + GAP * (len(columns) - 1)


def _length(cell: RenderableType) -> int:
    return cell_len(cell.plain if isinstance(cell, Text) else str(cell))


def _without(table: Table, heading: str) -> Table:
    kept = [column for column in table.columns if column.header != heading]
    copy = Table(
        *(Column(header=one.header, justify=one.justify, no_wrap=one.no_wrap) for one in kept),
        box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold", show_header=table.show_header,
    )  # fmt: skip
    for row in zip(*(column.cells for column in kept), strict=True):
        copy.add_row(*row)
    return copy


def fitted(text: str, style: str = "") -> Text:
    """Return a cell that is cut off, never wrapped, if the column is too narrow."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def measurements_table(evaluation: Evaluation, width: int, basis: Basis | None = None) -> Table:
    """Return a table with a row per workload that a kernel was timed on, beside PyTorch only if these are GPU times."""
    basis = basis or known_basis(evaluation.device.kind)
    labels = workload_labels([measurement.workload for measurement in evaluation.measurements])
    tuned = width >= WIDE and any(measurement.autotune_us for measurement in evaluation.measurements)
    numbers = headings(basis, tuned=tuned)
    table = plain_table(labels.heading, *numbers, numbers=numbers)
    for measurement in evaluation.measurements:
        table.add_row(fitted(labels.of[measurement.workload]), *measured(measurement, basis, tuned=tuned))
    return narrowed(table, width)


def headings(basis: Basis, *, interval: bool = True, tuned: bool = False) -> list[str]:
    timed = ["time µs", *(["95 %"] if interval else [])]
    if not basis.is_pytorch:
        return [*timed, *([OVER_FIRST] if basis.first_us else [])]
    return [*timed, "eager", "compile", *(["autotune"] if tuned else []), "speedup", "light"]


def measured(m: Measurement, basis: Basis, *, interval: bool = True, tuned: bool = False) -> list[Text]:
    span = [Text(f"{figure(m.low_us)}–{figure(m.high_us)}", "dim")] if interval else []
    timed, ratio = [Text(figure(m.median_us), "bold"), *span], basis.ratio(m)
    if not basis.is_pytorch:
        return [*timed, *([Text(times(ratio), speed_style(ratio))] if basis.first_us else [])]
    return [
        *timed,
        Text(figure(m.eager_us)),
        Text(figure(m.compile_us)),
        *([Text(figure(m.autotune_us))] if tuned else []),
        Text(times(ratio), speed_style(ratio)),
        Text(percent(m.share_of_light)),
    ]


def when(created: float, width: int) -> str:
    """Return a date and time without line breaks, on a screen without the year."""
    text = moment(created) if width >= EVERYTHING else moment(created).partition("-")[2]
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def speed_style(ratio: float | None) -> str:
    return "" if ratio is None else "green" if ratio > 1 else "yellow"
