"""`evolve evaluate`: give verdicts on what is pending."""

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from evolve import wiring
from evolve.cli import lookup
from evolve.cli.explaining import explained
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, archive_option, kernel_ids, op_names
from evolve.cli.signals import Stopped
from evolve.cli.starting import engine_on
from evolve.report import facts
from evolve.report.console import console, print_json
from evolve.report.details import evaluation_details
from evolve.report.progress import Phases
from evolve.report.standing import Standing
from evolve.report.summary import print_next_steps, print_standing
from evolve.report.words import short

if TYPE_CHECKING:
    from evolve.cli.evaluating import Asked

EXPLAIN_HELP = "Evaluate nothing: say what was checked on a kernel, and why it passed or failed."
TARGETS_HELP = "Ops, or kernels in files (with their op, if it is your own) [default: all that is pending]."


def evaluate(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP | FILE.cu]...", help=TARGETS_HELP, autocompletion=op_names, show_default=False),
    ] = None,
    explain: Annotated[
        str, typer.Option("--explain", metavar="ID", help=EXPLAIN_HELP, autocompletion=kernel_ids, show_default=False)
    ] = "",
    device: DeviceOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate what was proposed and has no verdict on this device yet, or explain a verdict."""
    if explain:
        explained(explain, targets or [], device, archive, as_json=as_json)
        return
    shown = console(stderr=as_json)
    try:
        with closing(wiring.archive(archive)) as store:
            from evolve.cli import evaluating

            asked = evaluating.asked(targets or [], store)
            with engine_on(device, Phases(), shown) as engine:
                works = list(evaluating.works(asked, engine.info, store))
                results = [evaluating.worked(work, engine, store, shown) for work in works]
            given = archive_option(store.path)
    except Stopped:
        shown.print("stopped. What was evaluated is in the archive; the same command goes on from there.")
        raise
    if as_json:
        print_json([facts.of_standing(result) for result in results])
    else:
        for result in results:
            _print_result(result, asked, given, shown)
    if not results:
        lookup.absent(
            "nothing was evaluated: no kernel that can be is pending on this device",
            "`evolve run` or `evolve tell FILE.cu` brings new kernels",
        )
    judged = [result.verdicts[kernel_id] for result in results for kernel_id in asked.kernels & result.verdicts.keys()]
    if not (any(verdict.passed for verdict in judged) if judged else any(result.champions for result in results)):
        raise typer.Exit(1)


def _print_result(result: Standing, asked: "Asked", given: str, shown: Console) -> None:
    for kernel_id in sorted(asked.kernels & result.verdicts.keys()):
        shown.print(f"\n{short(kernel_id)}", style="bold", end="")
        for part in evaluation_details(result.verdicts[kernel_id], shown.width):
            shown.print(part)
    shown.print()
    print_standing(shown, result, population=False)
    print_next_steps(shown, result, asked.ops.get(result.op, result.op), given)
