"""A campaign over several ops: its table, and the live display while it goes on."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from evolve.budget import Spent
from evolve.report.live import failure_lines, fitted_text, trying_lines
from evolve.report.progress import Watcher
from evolve.report.spending import Meter, dollars
from evolve.report.tables import counts_line, fitted, plain_table
from evolve.report.words import clock, counted, times

FIXED_LINES = 8  # header, meter, blank lines, headings, counts, what is being tried, and one free below


@dataclass(frozen=True)
class Row:
    """What one op had of the budget, and what came of it."""

    op: str
    spent: Spent
    before: float | None  # headroom, as a logarithm; None where nothing was measured
    after: float | None
    best: float | None  # speedup over the best of PyTorch


@dataclass
class Board:
    """The rows as the campaign goes on; hand it to `rich.live.Live`."""

    device: str
    proposer: str
    meter: Meter
    rows: dict[str, Row]
    watchers: dict[str, Watcher]
    current: str = ""
    emulated: bool = False

    def update(self, row: Row) -> None:
        self.rows = {**self.rows, row.op: row}  # a new dict: another thread may be drawing the old one

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        parts = {op: watcher.progress() for op, watcher in self.watchers.items()}
        yield fitted_text(
            Text.assemble(
                (counted(len(self.rows), "op"), "bold"),
                f" on {self.device}",
                (" (emulated: CPU times)" if self.emulated else "", "yellow"),
                f", proposed by {self.proposer}",
            )
        )
        yield self.meter.line(list(parts.values()), options.max_width)
        current = parts.get(self.current)
        below = []
        if current:
            below = [fitted(f"{self.current}: {counts_line(current.standing)}", "bold")]
            below += [*trying_lines(current, self.proposer)[:1], *failure_lines(current, most=1)]
        yield Text()
        yield rows_table(self._shown(console.size.height), current=self.current)
        yield Text()
        yield from below

    def _shown(self, height: int) -> list[Row]:
        """As many as there is room for, the current one among them."""
        rows, room = list(self.rows.values()), max(1, height - FIXED_LINES - 2)
        if len(rows) <= room:
            return rows
        at = next((index for index, row in enumerate(rows) if row.op == self.current), 0)
        first = min(max(0, at - room // 2), len(rows) - room)
        return rows[first : first + room]


def rows_table(rows: Sequence[Row], current: str = "", total: Spent | None = None) -> Table:
    """A line per op: what it cost, how far it was from the speed of light and is now, and its best speedup."""
    paid = [row.spent for row in rows] + ([total] if total else [])
    tokens = ["tokens"] if any(spent.tokens for spent in paid) else []
    usd = ["usd"] if any(spent.usd for spent in paid) else []
    numbers = ["evals", *tokens, *usd, "time", "before", "now", "best"]
    table = plain_table("op", *numbers, "", numbers=numbers)
    sums = [replace(rows[0], op="all", spent=total)] if total else []
    for row in [*rows, *sums]:
        spent, is_total = row.spent, row in sums
        table.add_row(
            fitted(row.op, "bold" if row.op == current or is_total else ""),
            str(spent.evals),
            *([f"{spent.tokens:,}"] if tokens else []),
            *([dollars(spent.usd)] if usd else []),
            clock(spent.seconds),
            "" if is_total else room(row.before),
            "" if is_total else room(row.after),
            "" if is_total else times(row.best),
            fitted("at work" if row.op == current else "", "cyan"),
        )
    return table


def room(headroom: float | None) -> str:
    """How many times the speed of light the champions take, on average."""
    return "-" if headroom is None else f"{math.exp(headroom):.2f}x"
