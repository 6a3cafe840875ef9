"""Live display of a run or a campaign, and the log lines that replace it if the output is not a terminal."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from archive.kernel import Proposal
from archive.records import DeviceInfo, Evaluation
from evolve.budget import Spent
from evolve.errors import kind_of
from evolve.report.basis import known_basis
from evolve.report.failures import tally
from evolve.report.kernel import NO_DUEL, held_out_words, sanitizer_words
from evolve.report.progress import BudgetMeter, Progress, Watcher
from evolve.report.standing_tables import champions_table, counts_line, origin, population_table
from evolve.report.tables import fitted, plain_table
from evolve.report.words import (
    clock,
    counted,
    dollars,
    figure,
    listed,
    one_line,
    short,
    times,
    times_label,
    workload_labels,
)
from evolve.selection.population import Champion

REFRESHES_PER_SECOND = 4.0
MOST_WORKERS, MOST_FAILURES = 4, 4


@dataclass(frozen=True)
class RunDisplay:
    """A renderable of a run's current state, to be passed to `rich.live.Live`."""

    watcher: Watcher
    workloads: Sequence[str]
    proposer: str
    meter: BudgetMeter

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        progress = self.watcher.progress()
        width, height = options.max_width, console.size.height
        yield self._header(progress)
        yield self.meter.line([progress], width)
        below = [
            fitted(counts_line(progress.standing), "bold"),
            *active_lines(progress, self.proposer),
            *failure_lines(progress, most=_failures_shown(height)),
            *waiting_lines(progress),
        ]
        free = height - 1 - 2 - len(below)  # lines of header and budget; a last empty line prevents scrolling
        champions, population = _table_rows(free, len(self.workloads), len(progress.standing.population))
        yield Text()
        yield champions_table(progress.standing, width, self.workloads, interval=width >= 100, most=champions)
        if population:
            yield Text()
            yield population_table(progress.standing, width, most=population)
        yield Text()
        yield from below

    def _header(self, progress: Progress) -> Text:
        standing = progress.standing
        return one_line_text(
            (standing.op, "bold"),
            f" on {standing.device.name}",
            (device_note(standing.device.kind), "yellow"),
            f", proposed by {self.proposer}",
        )


def one_line_text(*parts: str | tuple[str, str]) -> Text:
    """Return text, styled if styles are given, that is cut off at the right edge instead of wrapped."""
    text = Text.assemble(*parts)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def device_note(kind: str) -> str:
    """Return the text after a device's name if its times are not GPU times."""
    label = times_label(kind)
    return f" ({kind}: {label})" if label else ""


def active_lines(progress: Progress, proposer: str) -> list[Text]:
    """Return a line per kernel that a worker is evaluating or confirming."""
    if not progress.active:
        return [one_line_text(("trying  ", "cyan"), f"waiting for {proposer}")]
    return [
        one_line_text(
            ("confirm ", "green") if active.confirming else ("trying  ", "cyan"),
            f"{short(active.kernel_id)} {active.phase:<8} {origin(progress.standing, active.kernel_id)}",
        )
        for active in progress.active[:MOST_WORKERS]
    ]


def failure_lines(progress: Progress, most: int) -> list[Text]:
    return [one_line_text(("failed  ", "red"), (failure, "dim")) for failure in progress.failures[:most]]


def waiting_lines(progress: Progress) -> list[Text]:
    """Return a line on the requests without a kernel, and a line on a wait for a server, if there are any."""
    lines = []
    if progress.unread:
        lines.append(one_line_text(("no kernel ", "red"), (tally(progress.unread), "dim")))
    if progress.waits:
        more = f" (and {len(progress.waits) - 1} more)" if len(progress.waits) > 1 else ""
        lines.append(one_line_text(("waiting ", "yellow"), f"{one_line(progress.waits[0])}{more}"))
    return lines


def _failures_shown(height: int) -> int:
    return 1 if height < 22 else 2 if height < 30 else MOST_FAILURES


def _table_rows(free: int, champions: int, population: int) -> tuple[int, int]:
    """Return the rows of both tables: champions have priority, but three of the population are shown if they fit."""
    left = free - 5  # number of blank lines and headings
    least = min(3, population)
    if champions > left - least:
        champions = max(1, left - least - 1)  # one line is left for the number of hidden rows
        left -= 1
    return champions, max(0, min(population, left - champions))


# number of other lines: header, budget, blank lines, headings, counts, the active kernel, and an empty line below
FIXED_LINES = 8


@dataclass(frozen=True)
class CampaignRow:
    """The part of the budget that one op spent, and its results."""

    op: str
    spent: Spent
    before: float | None  # logarithm of the headroom; None before the first measurement
    after: float | None
    best: float | None  # speedup over the best of PyTorch, or over the first kernel if times are not GPU times


@dataclass
class CampaignDisplay:
    """A renderable of a campaign's current state, a row per op, to be passed to `rich.live.Live`."""

    devices: Sequence[DeviceInfo]
    proposer: str
    meter: BudgetMeter
    rows: dict[str, CampaignRow]
    watchers: dict[str, Watcher]
    current: str = ""

    def update(self, row: CampaignRow) -> None:
        self.rows = {**self.rows, row.op: row}  # a new dict, because the display's thread may be reading the old one

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        progress = {op: watcher.progress() for op, watcher in self.watchers.items()}
        yield one_line_text(
            (counted(len(self.rows), "op"), "bold"),
            f" on {listed([device.name for device in self.devices])}",
            (device_note(self.devices[0].kind), "yellow"),
            f", proposed by {self.proposer}",
        )
        yield self.meter.line(list(progress.values()), options.max_width)
        current = progress.get(self.current)
        below = []
        if current:
            below = [fitted(f"{self.current}: {counts_line(current.standing)}", "bold")]
            below += [*active_lines(current, self.proposer)[:1], *failure_lines(current, most=1)]
            below += waiting_lines(current)
        yield Text()
        gpu_times = not times_label(self.devices[0].kind)
        yield campaign_table(self._visible_rows(console.size.height), self.current, gpu_times=gpu_times)
        yield Text()
        yield from below

    def _visible_rows(self, height: int) -> list[CampaignRow]:
        """Return as many rows as fit, including the current op's."""
        rows, most = list(self.rows.values()), max(1, height - FIXED_LINES - 2)
        if len(rows) <= most:
            return rows
        at = next((index for index, row in enumerate(rows) if row.op == self.current), 0)
        first = min(max(0, at - most // 2), len(rows) - most)
        return rows[first : first + most]


def campaign_table(
    rows: Sequence[CampaignRow], current: str = "", total: Spent | None = None, *, gpu_times: bool = True
) -> Table:
    """Return a table with a row per op: cost, GPU times as a multiple of the speed of light, and best speedup."""
    paid = [row.spent for row in rows] + ([total] if total else [])
    tokens = ["tokens"] if any(spent.tokens for spent in paid) else []
    usd = ["usd"] if any(spent.usd for spent in paid) else []
    goal = ["before", "now"] if gpu_times else []
    numbers = ["evals", *tokens, *usd, "time", *goal, "best"]
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
            *(["" if is_total else multiple_of_light(room) for room in (row.before, row.after)] if goal else []),
            "" if is_total else times(row.best),
            fitted("running" if row.op == current else "", "cyan"),
        )
    return table


def multiple_of_light(headroom: float | None) -> str:
    """Return the champions' times as a multiple of the speed of light, averaged over the workloads."""
    return "-" if headroom is None else f"{math.exp(headroom):.2f}x"


MADE_SHOWN = 60
QUIET_SECONDS = 60.0  # seconds without a line after which a line with the counts is printed


class EventLog:
    """A log of events: a line per improvement, confirmation or new failure, and a line per minute without events."""

    def __init__(self, watcher: Watcher, workloads: Sequence[str], started: float, name: str = "") -> None:
        self._watcher, self._started, self._name = watcher, started, f"{name}: " if name else ""
        self._labels = workload_labels(workloads)
        self._printed = time.monotonic()
        self._kinds = set[str]()  # kinds of failures and waits that have been printed
        self._waited, self._found = float("-inf"), False

    def waits(self, reason: str) -> Iterator[str]:
        """Yield a line on a wait for a server, unless one was printed shortly before."""
        now = time.monotonic()
        if kind_of(reason) not in self._kinds or now - self._waited > QUIET_SECONDS:
            self._kinds.add(kind_of(reason))
            self._waited = now
            yield self._stamped(f"waiting: {one_line(reason)}")

    def found(self, kernel_id: str, phase: str) -> Iterator[str]:
        """Yield a line on a kernel that is right and waits for its baselines; of several kernels, only on the first."""
        if not self._found:
            self._found, self._printed = True, time.monotonic()
            yield self._stamped(f"{short(kernel_id)} {phase}")

    def lines(self, event: Proposal | Evaluation) -> Iterator[str]:
        again = isinstance(event, Evaluation) and self._watcher.has_judged(event.kernel_id)
        won = self._watcher.take(event)
        now = time.monotonic()
        if isinstance(event, Proposal) and event.failure and kind_of(event.failure) not in self._kinds:
            self._kinds.add(kind_of(event.failure))
            yield self._stamped(f"no kernel ({event.operator}): {one_line(event.failure)}")
        elif isinstance(event, Evaluation) and again:
            yield self._stamped(confirmation_line(event))
        elif won:
            yield self._stamped(self._improvement(won))
        elif now - self._printed > QUIET_SECONDS:
            unread = self._watcher.unread()
            also = f"; no kernel: {tally(unread)}" if unread else ""
            yield self._stamped(f"{counts_line(self._watcher.standing())}{also}")
        else:
            return
        self._printed = now

    def _improvement(self, won: tuple[Champion, ...]) -> str:
        standing = self._watcher.standing()
        best = max(won, key=lambda champion: standing.basis.ratio(champion.measurement) or 0.0)
        label, ratio = self._labels.of.get(best.workload, best.workload), times(standing.basis.ratio(best.measurement))
        begin = f"{short(best.kernel_id)} {one_line(origin(standing, best.kernel_id), MADE_SHOWN)}:"
        fastest = f"fastest on {counted(len(won), 'workload')}, such as {label}"
        if standing.basis.is_pytorch:
            return f"{begin} {fastest} in {figure(best.measurement.median_us)} µs ({ratio})"
        return f"{begin} correct, {fastest} ({ratio} the first kernel)"

    def _stamped(self, text: str) -> str:
        return f"{clock(time.monotonic() - self._started):>6}  {self._name}{text}"


def confirmation_line(evaluation: Evaluation) -> str:
    """Return a line on the result of a champion's confirmation."""
    kernel = short(evaluation.kernel_id)
    if evaluation.confirmed is None:
        return f"{kernel} failed its confirmation: {evaluation.outcome}: {one_line(evaluation.log)}"
    duels = evaluation.confirmed.duels
    if not known_basis(evaluation.device.kind).is_pytorch:
        return f"{kernel} confirmed: {held_out_words(evaluation.confirmed)}"
    won = sum(duel.won for duel in duels)
    best = max((duel.speedup for duel in duels), default=None)
    sanitizer, _ = sanitizer_words(evaluation)
    if not duels:
        return f"{kernel} confirmed; {NO_DUEL}; {sanitizer}"
    score = f"won {won} of {counted(len(duels), 'duel')} with PyTorch, at best {times(best)}"
    return f"{kernel} confirmed: {score}; {sanitizer}"
