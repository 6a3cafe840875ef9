"""`evolve confirm`: test champions again in a fresh process, with more checks than a first evaluation makes."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.claims import claims_on
from archive.records import Evaluation
from evolve import wiring
from evolve.cli import lookup, signals
from evolve.cli.options import (
    ArchiveOption,
    DeviceOption,
    ExampleOption,
    JsonOption,
    archive_option,
    op_names,
    with_example,
)
from evolve.cli.session import engine_on, print_waits
from evolve.cli.signals import Stopped
from evolve.engines import trial
from evolve.report import facts
from evolve.report.basis import known_basis
from evolve.report.kernel import duels_table, sanitizer_words
from evolve.report.live import confirmation_line
from evolve.report.progress import Phases
from evolve.report.words import complain, console, listed, print_json, say, say_command, short
from evolve.selection.population import Champion
from evolve.selection.sharing import Share
from evolve.selection.view import OpView

if TYPE_CHECKING:
    from archive.sqlite import SqliteStore
    from evolve.engines.engine import Engine


def confirm(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names of ops, or paths of Python files [default: all in the archive].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    example: ExampleOption = None,
    device: DeviceOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Test champions again in a fresh process. This adds held-out shapes, duels with PyTorch and compute-sanitizer."""
    output, named = console(stderr=as_json), with_example(tuple(ops or ()), example)
    try:
        with closing(wiring.archive(archive)) as store:
            locators = dict(_named(named)) if ops else dict(_archived(store))
            with engine_on(device, phases := Phases(), output) as engine, claims_on(store.path) as claims:
                share = Share(claims, phases.wait)
                print_waits(phases, output)
                parts = [_confirmed((op, locator), engine, store, share, output) for op, locator in locators.items()]
                any_champion = any(_champions(op, engine, store) for op in locators)
    except Stopped:
        output.print("stopped. Finished confirmations are in the archive; the same command continues from them.")
        raise
    verdicts = [verdict for part in parts for verdict in part]
    if as_json:
        print_json([facts.of_evaluation(verdict) for verdict in verdicts])
    if any_champion and not verdicts:
        output.print("nothing is left to confirm: every champion on this device is confirmed")
    elif not verdicts:
        of = f" of {listed(list(locators))}" if ops else ""
        lookup.absent(
            f"nothing to confirm: the archive has no champion{of} on this device",
            "`evolve top` shows the champions of each device",
        )
    if not all(verdict.confirmed for verdict in verdicts):
        raise typer.Exit(1)


def _named(ops: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the locator of each op on the command line."""
    for op in ops:
        yield trial.load(op).name, lookup.locator(op)


def _archived(store: "SqliteStore") -> Iterator[tuple[str, str]]:
    """Yield the name and the locator of each op that was evaluated here, and warn about those outside the catalog."""
    for op in sorted(store.count(Evaluation, "op", shipped=False)):
        if op in op_names():
            yield op, op
        else:
            complain(f"{op} is not in the catalog, so it is left out", lookup.how_to_name(store, op, "evolve confirm"))


def _champions(op: str, engine: "Engine", store: "SqliteStore") -> tuple[Champion, ...]:
    return OpView(store, op, engine.info).champions()


def _confirmed(
    named: tuple[str, str], engine: "Engine", store: "SqliteStore", share: Share, output: Console
) -> list[Evaluation]:
    """Confirm an op's champions, print each verdict as it arrives and all duels at the end."""
    from evolve import loop

    verdicts, (op, locator) = [], named
    for verdict in loop.confirm(locator, engine, OpView(store, op, engine.info), share):
        signals.check()
        style = "" if verdict.confirmed else "red"
        say(output, f"{op}: {confirmation_line(verdict)}", style)
        verdicts.append(verdict)
    on_gpu = known_basis(engine.info.kind).is_pytorch
    champions = [champion for champion in _champions(op, engine, store) if champion.duel and on_gpu]
    in_force = {
        evaluation.kernel_id: evaluation
        for evaluation in store.find(Evaluation, op, kernels=[champion.kernel_id for champion in champions])
        if evaluation.device.key == engine.info.key
    }
    if champions:
        output.print(f"\n{op} on {engine.info.name}", style="bold")
        duels = tuple(champion.duel for champion in champions if champion.duel)
        output.print(duels_table(duels, {champion.workload: champion.kernel_id for champion in champions}))
        for kernel_id in dict.fromkeys(champion.kernel_id for champion in champions):
            words, style = sanitizer_words(in_force[kernel_id])
            say(output, f"{short(kernel_id)} under the sanitizer: {words}", style)
    for verdict in verdicts:
        if not verdict.confirmed:
            command = f"evolve evaluate --explain {short(verdict.kernel_id)}{archive_option(store.path)}"
            say_command(output, f"why {short(verdict.kernel_id)} failed:", command, "dim")
    return verdicts
