"""`evolve confirm`: test champions again, harder, where a run did not come to it."""

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.records import Evaluation
from archive.store import SqliteStore
from evolve import wiring
from evolve.cli import lookup, signals
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, archive_option, op_names
from evolve.cli.session import engine_on
from evolve.cli.signals import Stopped
from evolve.report import facts
from evolve.report.kernel import duels_table, sanitizer_words
from evolve.report.live import confirmation
from evolve.report.progress import Phases
from evolve.report.words import complain, console, print_json, short
from evolve.selection import population
from evolve.selection.population import Champion

if TYPE_CHECKING:
    from evolve.engines.engine import Engine


def confirm(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names, or paths of Python files [default: all in the archive].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    device: DeviceOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Test champions again in a fresh process: held-out shapes, duels with PyTorch, compute-sanitizer."""
    shown = console(stderr=as_json)
    try:
        with closing(wiring.archive(archive)) as store:
            wanted = dict(_named(ops)) if ops else dict(_archived(store))
            with engine_on(device, Phases(), shown) as engine:
                parts = [_confirmed(op, locator, engine, store, shown) for op, locator in wanted.items()]
                held = any(_champions(op, engine, store) for op in wanted)
    except Stopped:
        shown.print("stopped. What was confirmed is in the archive; the same command goes on from there.")
        raise
    verdicts = [verdict for part in parts for verdict in part]
    if as_json:
        print_json([facts.of_evaluation(verdict) for verdict in verdicts])
    if held and not verdicts:
        shown.print("nothing is left to confirm: every champion here has been confirmed before")
    elif not verdicts:
        of = f" of {', '.join(wanted)}" if ops else ""
        lookup.absent(
            f"there is nothing to confirm: no champion{of} is known on this device",
            "`evolve top` shows the champions of each device",
        )
    if not all(verdict.confirmed for verdict in verdicts):
        raise typer.Exit(1)


def _champions(op: str, engine: "Engine", store: SqliteStore) -> tuple[Champion, ...]:
    return population.champions(population.latest(store.find(Evaluation, op), engine.info.key).values())


def _named(ops: list[str]) -> Iterator[tuple[str, str]]:
    from reference_ops import catalog

    for op in ops:
        yield catalog.load(op).name, lookup.locator(op)


def _archived(store: SqliteStore) -> Iterator[tuple[str, str]]:
    """Every op that the archive holds verdicts on; those that nobody can load are named and passed over."""
    for op in sorted({evaluation.op for evaluation in store.find(Evaluation)}):
        if op in op_names():
            yield op, op
        else:
            complain(f"{op} is not in the catalog, so it was left out", "give its file: evolve confirm FILE.py")


def _confirmed(op: str, locator: str, engine: "Engine", store: SqliteStore, shown: Console) -> list[Evaluation]:
    """The verdicts on an op's champions, each said when it comes; in the end what was won where."""
    from evolve import loop

    verdicts = []
    for verdict in loop.confirm(op, locator, engine, store):
        signals.check()
        shown.print(f"{op}: {confirmation(verdict)}", style="" if verdict.confirmed else "red", soft_wrap=True)
        verdicts.append(verdict)
    in_force = population.latest(store.find(Evaluation, op), engine.info.key)
    champions = [champion for champion in _champions(op, engine, store) if champion.duel]
    if champions:
        shown.print(f"\n{op} on {engine.info.name}", style="bold")
        duels = tuple(champion.duel for champion in champions if champion.duel)
        shown.print(duels_table(duels, {champion.workload: champion.kernel_id for champion in champions}))
        for kernel_id in dict.fromkeys(champion.kernel_id for champion in champions):
            said, style = sanitizer_words(in_force[kernel_id])
            shown.print(f"{short(kernel_id)} under the sanitizer: {said}", style=style, soft_wrap=True)
    for verdict in verdicts:
        if not verdict.confirmed:
            why = f"why {short(verdict.kernel_id)} fell: evolve evaluate --explain {short(verdict.kernel_id)}"
            shown.print(f"{why}{archive_option(store.path)}", style="dim", soft_wrap=True)
    return verdicts
