"""The live display of a run: always as high as the terminal allows, the most telling parts first."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from evolve.report.progress import Progress, Watcher
from evolve.report.tables import (
    champions_table,
    counts_line,
    fitted,
    made,
    population_table,
)
from evolve.report.words import clock, short

REFRESHES_PER_SECOND = 4.0
MOST_WORKERS, MOST_FAILURES = 4, 4


@dataclass(frozen=True)
class Display:
    """Renders whatever the watcher knows at that moment; hand it to `rich.live.Live`."""

    watcher: Watcher
    workloads: Sequence[str]
    proposer: str
    started: float  # by time.monotonic, like the deadline
    deadline: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        progress = self.watcher.progress()
        width, height = options.max_width, console.size.height
        yield self._header(progress)
        yield self._clock(progress, width)
        below = [
            fitted(counts_line(progress.standing), "bold"),
            *_trying(progress, self.proposer),
            *_failures(progress, most=_failures_shown(height)),
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

    def _clock(self, progress: Progress, width: int) -> Table:
        now = time.monotonic()
        total, gone = self.deadline - self.started, now - self.started
        said = f"{clock(gone)} of {clock(total)}" if now < self.deadline else "time is up: finishing what is in hand"
        if any(trying.confirming for trying in progress.trying):
            said = "confirming the champions"
        speed = f"{progress.evaluated} evaluated, {progress.per_second:.1f}/s"
        row = Table.grid(padding=(0, 2, 0, 0), expand=False)
        row.add_row(
            ProgressBar(
                total=total,
                completed=min(gone, total),
                width=max(10, width - len(said) - len(speed) - 4),
                complete_style="cyan",
                finished_style="green",
            ),
            fitted(said),
            fitted(speed),
        )
        return row


def fitted_text(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _trying(progress: Progress, proposer: str) -> list[Text]:
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


def _failures(progress: Progress, most: int) -> list[Text]:
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
