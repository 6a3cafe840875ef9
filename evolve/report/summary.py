"""Where things stand, printed: after a run, for `top`, and after evaluating."""

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from evolve.report.standing import Standing
from evolve.report.tables import (
    UNCONFIRMED,
    champions_table,
    counts_line,
    fitted,
    footnotes,
    headline,
    plain_table,
    population_table,
)
from evolve.report.words import short, times

ALIVE_MEANS = (
    "fittest first: best time over its own, as a geometric mean over all workloads, where one that it does not accept "
    "counts as slow; mean: geometric mean of its speedups; on: workloads it accepts"
)
WON_MEANS = (
    "won: workloads on which a confirmed champion beats the best of PyTorch in a duel; "
    f"{UNCONFIRMED}: some champion is not confirmed yet"
)


def print_standing(
    shown: Console, standing: Standing, workloads: Sequence[str] = (), *, population: bool = True
) -> None:
    """Champions against PyTorch, the population if wanted, and what became of everything else."""
    shown.print(headline(standing))
    if standing.champions or workloads:
        shown.print(champions_table(standing, shown.width, workloads))
        shown.print(footnotes(standing, workloads), style="dim")
    if population and standing.population:
        shown.print("\nalive", style="bold")
        shown.print(population_table(standing, shown.width))
        shown.print(ALIVE_MEANS, style="dim")
    shown.print(f"\n{counts_line(standing)}")


def standings_table(found: Sequence[Standing]) -> Table:
    """A line per op and device."""
    numbers = ["won", "best", "worst", "alive", "judged", "pending"]
    table = plain_table("op", "device", *numbers, "fittest", numbers=numbers)
    for standing in found:
        speedups = [champion.measurement.speedup for champion in standing.champions]
        won = sum(champion.won for champion in standing.champions)
        unsure = UNCONFIRMED if any(champion.confirmed is None for champion in standing.champions) else ""
        name = standing.device.name if standing.device.kind == "cuda" else f"{standing.device.name} (CPU times)"
        table.add_row(
            fitted(standing.op, "bold"),
            fitted(name, "" if standing.device.kind == "cuda" else "yellow"),
            f"{won}/{len(speedups)}{unsure}",
            times(max(speedups, default=None)),
            times(min(speedups, default=None)),
            str(len(standing.population)),
            str(len(standing.verdicts)),
            str(standing.pending),
            short(standing.population[0].kernel_id) if standing.population else "-",
        )
    return table


def print_next_steps(shown: Console, standing: Standing, locator: str, given: str) -> None:
    """What can be typed now. Commands find the op by the locator, and need what is given to find the archive."""
    op = shlex.quote(locator)
    steps = []
    if standing.verdicts:
        alive = "everything that is alive" if standing.population else "what became of every kernel"
        steps.append((f"evolve top {standing.op}{given}", alive))
    if standing.population:
        fittest = standing.population[0].kernel_id
        steps.append((f"evolve show {short(fittest)}{given}", "the fittest kernel"))
    if any(champion.confirmed is None for champion in standing.champions):
        there = "" if standing.device.kind == "cuda" else f" --device {standing.device.kind}"
        steps.append((f"evolve confirm {op}{there}{given}", "tests the champions again, harder, in a fresh process"))
    if standing.champions and standing.device.kind == "cuda":
        steps.append((f"evolve export {op}{given}", "a package of the champions"))
    elif standing.champions:
        steps.append((f"evolve run {op}{given}", "on a machine with a GPU: measures the same kernels there"))
    if not steps:
        return
    longest = max(len(command) for command, _ in steps)
    narrow = longest + max(len(purpose) for _, purpose in steps) + 5 > shown.width
    shown.print("\nnext")
    for command, purpose in steps:
        lines = (f"  # {purpose}\n", f"  {command}") if narrow else (f"  {command:<{longest}}   ", purpose)
        styles = ("dim", "cyan") if narrow else ("cyan", "dim")
        shown.print(Text.assemble(*zip(lines, styles, strict=True)), soft_wrap=True)  # commands are copied whole
