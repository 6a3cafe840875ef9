"""Live display of a run or campaign, and the plain lines printed where there is no terminal."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from archive.proposals import Proposal
from archive.records import Evaluation
from evolve.budget import Spent
from evolve.report.kernel import NO_DUEL, sanitizer_words
from evolve.report.progress import Meter, Progress, Watcher, dollars
from evolve.report.standing import Standing
from evolve.report.tables import (
    champions_table,
    counts_line,
    fitted,
    made,
    plain_table,
    population_table,
)
from evolve.report.words import clock, counted, figure, one_line, short, times, workload_labels
from evolve.selection.population import Champion

REFRESHES_PER_SECOND = 4.0
MOST_WORKERS, MOST_FAILURES = 4, 4


@dataclass(frozen=True)
class Display:
    """Renders whatever the watcher knows at that moment; hand it to `rich.live.Live`."""

    watcher: Watcher
    workloads: Sequence[str]
    proposer: str
    meter: Meter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        progress = self.watcher.progress()
        width, height = options.max_width, console.size.height
        yield self._header(progress)
        yield self.meter.line([progress], width)
        below = [
            fitted(counts_line(progress.standing), "bold"),
            *trying_lines(progress, self.proposer),
            *failure_lines(progress, most=_failures_shown(height)),
        ]
        room = height - 1 - 2 - len(below)  # header and clock; one line stays free, or the terminal scrolls
        champions, population = _shares(room, len(self.workloads), len(progress.standing.population))
        yield Text()
        yield champions_table(progress.standing, width, self.workloads, interval=width >= 100, most=champions)
        if population:
            yield Text()
            yield population_table(progress.standing, width, most=population)
        yield Text()
        yield from below

    def _header(self, progress: Progress) -> Text:
        standing = progress.standing
        emulated = "" if standing.device.kind == "cuda" else " (emulated: CPU times)"
        device = f" on {standing.device.name}"
        return fitted_text(
            Text.assemble((standing.op, "bold"), device, (emulated, "yellow"), f", proposed by {self.proposer}")
        )


def fitted_text(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def trying_lines(progress: Progress, proposer: str) -> list[Text]:
    if not progress.trying:
        return [fitted_text(Text.assemble(("trying  ", "cyan"), f"waiting for {proposer}"))]
    return [
        fitted_text(
            Text.assemble(
                ("confirm ", "green") if trying.confirming else ("trying  ", "cyan"),
                f"{short(trying.kernel_id)} {trying.phase:<8} {made(progress.standing, trying.kernel_id)}",
            )
        )
        for trying in progress.trying[:MOST_WORKERS]
    ]


def failure_lines(progress: Progress, most: int) -> list[Text]:
    return [fitted_text(Text.assemble(("failed  ", "red"), (said, "dim"))) for said in progress.failures[:most]]


def _failures_shown(height: int) -> int:
    return 1 if height < 22 else 2 if height < 30 else MOST_FAILURES


def _shares(room: int, champions: int, population: int) -> tuple[int, int]:
    """Rows for both tables: champions first, but three of the population where there is any room at all."""
    left = room - 5  # blank lines and headings
    least = min(3, population)
    if champions > left - least:
        champions = max(1, left - least - 1)  # a line says how many more there are
        left -= 1
    return champions, max(0, min(population, left - champions))


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


MADE_SHOWN = 60
QUIET_SECONDS = 60.0  # after which a line says that the run still goes on


class Log:
    """Turns events into a line per improvement, and one per minute without any."""

    def __init__(self, watcher: Watcher, workloads: Sequence[str], started: float, name: str = "") -> None:
        self._watcher, self._started, self._name = watcher, started, f"{name}: " if name else ""
        self._labels = workload_labels(workloads)
        self._spoke = time.monotonic()

    def lines(self, event: Proposal | Evaluation) -> Iterator[str]:
        again = isinstance(event, Evaluation) and self._watcher.has_judged(event.kernel_id)
        won = self._watcher.take(event)
        now = time.monotonic()
        if isinstance(event, Evaluation) and again:
            yield self._stamped(confirmation(event))
        elif won:
            yield self._stamped(self._improvement(won))
        elif now - self._spoke > QUIET_SECONDS:
            yield self._stamped(counts_line(self._standing()))
        else:
            return
        self._spoke = now

    def _improvement(self, won: tuple[Champion, ...]) -> str:
        best = max(won, key=lambda champion: champion.measurement.speedup)
        label = self._labels.of.get(best.workload, best.workload)
        return (
            f"{short(best.kernel_id)} {one_line(made(self._standing(), best.kernel_id), MADE_SHOWN)}: fastest on "
            f"{counted(len(won), 'workload')}, such as {label} in {figure(best.measurement.median_us)} µs "
            f"({times(best.measurement.speedup)})"
        )

    def _standing(self) -> Standing:
        return self._watcher.standing()

    def _stamped(self, text: str) -> str:
        return f"{clock(time.monotonic() - self._started):>6}  {self._name}{text}"


def confirmation(evaluation: Evaluation) -> str:
    """A line on how a champion stood its confirmation, or that it fell."""
    kernel = short(evaluation.kernel_id)
    if evaluation.confirmed is None:
        return f"{kernel} fell when it was confirmed: {evaluation.outcome}: {one_line(evaluation.log)}"
    duels = evaluation.confirmed.duels
    won = sum(duel.won for duel in duels)
    best = max((duel.speedup for duel in duels), default=None)
    said, _ = sanitizer_words(evaluation)
    if not duels:
        return f"{kernel} confirmed; {NO_DUEL}; {said}"
    return f"{kernel} confirmed: won {won} of {counted(len(duels), 'duel')} with PyTorch, {times(best)} at best; {said}"
