"""Tables fitted to the width of the terminal, and the columns that show measurements."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from archive.records import Evaluation, Measurement
from evolve.report.words import figure, percent, times, workload_labels

WIDE = 100  # minimum width, in columns, at which notes are shown
WIDER = 120  # minimum width, in columns, at which max-autotune is shown beside torch.compile's default


def plain_table(*headings: str, numbers: Sequence[str] = ()) -> Table:
    """Return a table without lines, with the columns in `numbers` aligned to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading in numbers
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return table


def fitted(text: str, style: str = "") -> Text:
    """Return a cell that is cut off, never wrapped, if the column is too narrow."""
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def measurements_table(evaluation: Evaluation, width: int) -> Table:
    """Return a table with a row per workload that a kernel was timed on."""
    labels = workload_labels([measurement.workload for measurement in evaluation.measurements])
    tuned = width >= WIDE and any(measurement.autotune_us for measurement in evaluation.measurements)
    numbers = headings(interval=True, tuned=tuned)
    table = plain_table(labels.heading, *numbers, numbers=numbers)
    for measurement in evaluation.measurements:
        cells = measured(measurement, interval=True, tuned=tuned)
        table.add_row(fitted(labels.of[measurement.workload]), *cells)
    return table


def headings(*, interval: bool, tuned: bool) -> list[str]:
    return [
        "time µs",
        *(["95 %"] if interval else []),
        "eager",
        "compile",
        *(["autotune"] if tuned else []),
        "speedup",
        "light",
    ]


def measured(m: Measurement, *, interval: bool, tuned: bool) -> list[Text]:
    span = [Text(f"{figure(m.low_us)}–{figure(m.high_us)}", "dim")] if interval else []
    return [
        Text(figure(m.median_us), "bold"),
        *span,
        Text(figure(m.eager_us)),
        Text(figure(m.compile_us)),
        *([Text(figure(m.autotune_us))] if tuned else []),
        Text(times(m.speedup), speed_style(m.speedup)),
        Text(percent(m.share_of_light)),
    ]


def speed_style(speedup: float) -> str:
    return "green" if speedup > 1 else "yellow"
