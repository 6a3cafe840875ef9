"""The live display of a run: always as high as the terminal allows, the most telling parts first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from evolve.report.progress import Progress, Watcher
from evolve.report.spending import Meter
from evolve.report.tables import (
    champions_table,
    counts_line,
    fitted,
    made,
    population_table,
)
from evolve.report.words import short

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
