"""`evolve export`: write the champions as an installable Python package."""

from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from archive.records import Evaluation
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, ExampleOption, JsonOption, op_names, with_example
from evolve.engines import trial
from evolve.errors import UserError
from evolve.report.standing_tables import ELSEWHERE, ELSEWHERE_MEANS
from evolve.report.tables import fitted, plain_table
from evolve.report.words import complain, console, counted, listed, print_json, short, times, workload_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evolve.export.package import ExportReport

CALLS_SHOWN = 6  # largest number of calls without a kernel that are listed
OPS_HELP = "Ops, files or functions to export, named as for `evolve run` [default: all with champions]."
ALL_HELP = "Export every op of the catalog; where no kernel has won yet, PyTorch runs."
PYTORCH_HELP = "Also export ops for which no kernel has won on a GPU yet, as functions that run PyTorch."
FORMAT_HELP = "A folder for pip, a wheel, or the layout of Hugging Face's kernels."
TRUST_HELP = "Also export kernels of merged archives that were not tested here; only for archives of your own machines."


def export(  # noqa: PLR0913, PLR0917 - one per option
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPS]...", help=OPS_HELP,
                       autocompletion=op_names, show_default=False),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the Python package.")] = "primitives",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Folder to write to [default: the package's name].")
    ] = None,
    example: ExampleOption = None,
    every: Annotated[bool, typer.Option("--all", help=ALL_HELP)] = False,
    pytorch_too: Annotated[bool, typer.Option("--pytorch-too", help=PYTORCH_HELP)] = False,
    trust_merged: Annotated[bool, typer.Option("--trust-merged", help=TRUST_HELP)] = False,
    form: Annotated[
        Literal["folder", "wheel", "hf"], typer.Option("--format", help=FORMAT_HELP)
    ] = "folder",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write the kernels that beat PyTorch as a Python package. Only times on GPUs count."""
    from evolve.export.package import Packing
    from evolve.export.package import export as write_package
    from reference_ops import catalog

    if ops and every:
        raise UserError(f"--all exports every op of the catalog, got also {listed(ops)}", "leave out --all, or the ops")
    named = with_example(tuple(catalog.names() if every else ops or ()), example)
    with closing(wiring.archive(archive, read_only=True)) as store:
        evaluated = sorted(store.count(Evaluation, "op"))
        elsewhere = [op for op in named or evaluated if op in evaluated and op not in catalog.names()]
        for op in elsewhere:
            complain(f"{op} is not in the catalog, so it is left out", lookup.how_to_name(store, op, "evolve export"))
        if elsewhere and len(elsewhere) == len(named or evaluated):
            raise typer.Exit(2)
        chosen = [op for op in named or evaluated if op not in elsewhere]
        with _progress(f"exporting {counted(len(chosen), 'op')}") as watch:
            loaded = [(trial.load(op), catalog.locate(op)) for op in chosen]
            report = write_package(
                store,
                loaded,
                out or Path(name),
                name,
                trust_merged=trust_merged,
                pytorch_too=pytorch_too or every,
                packing=Packing(form, cubins=True, watch=watch),
            )
    if as_json:
        print_json({**asdict(report), "folder": str(report.folder)})
    else:
        _print_report(report, console(), form)


@contextmanager
def _progress(doing: str) -> "Iterator[Callable[[int, int], None]]":
    """Show the current step, and how many kernels are compiled once that is known."""
    words = TextColumn("{task.description}")
    compiled = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    output = console(stderr=True)
    hidden = not output.is_terminal
    with Progress(SpinnerColumn(), words, console=output, transient=True, disable=hidden) as progress:
        task = progress.add_task(doing, total=None)

        def watch(more: int, of: int) -> None:
            progress.columns = (words, *compiled)
            progress.update(task, description=f"{doing}: compiling kernels", total=of, advance=more)

        yield watch


def _print_report(report: "ExportReport", output: Console, form: str) -> None:
    output.print(f"{report.folder}: the package {report.package}", style="bold")
    without = [exported.name for exported in report.ops if not exported.kernels]
    if len(without) > CALLS_SHOWN:
        shown = f"{', '.join(without[:CALLS_SHOWN])} and {len(without) - CALLS_SHOWN} more"
        output.print(f"\nno kernel has won on a GPU yet, so PyTorch runs: {shown}")
    for exported in report.ops:
        if not exported.kernels:
            if len(without) <= CALLS_SHOWN:
                output.print(f"\n{exported.call}", style="bold")
                output.print("no kernel has won on a GPU yet: PyTorch runs")
            continue
        output.print(f"\n{exported.call}", style="bold")
        wins = [(kernel, win) for kernel in exported.kernels for win in kernel.wins]
        labels = workload_labels(list(dict.fromkeys(win.workload for _, win in wins)))
        table = plain_table("kernel", labels.heading, "speedup", "over", "device", "idea", numbers=["speedup"])
        for kernel, win in wins:
            table.add_row(
                short(kernel.id), fitted(labels.of[win.workload]), times(win.speedup), win.over,
                fitted(f"{win.device}{ELSEWHERE if win.elsewhere else ''}"),
                fitted(kernel.note, "dim"),
            )  # fmt: skip
        output.print(table)
    if any(win.elsewhere for exported in report.ops for kernel in exported.kernels for win in kernel.wins):
        output.print(f"\n{ELSEWHERE_MEANS}", style="dim")
    for skipped in report.skipped:
        hint = f" ({skipped.hint})" if skipped.hint else ""
        output.print(f"\nwithout {skipped.name}: {skipped.reason}{hint}", style="yellow")
    if report.cubins:
        output.print(f"\n{counted(report.cubins, 'compiled kernel')} for the sizes that were measured", style="dim")
    if report.without_cubins:
        output.print(f"\nkernels will be compiled when they first run: {report.without_cubins}", style="yellow")
    _print_next(report, output, form)


def _print_next(report: "ExportReport", output: Console, form: str) -> None:
    if form == "hf":
        output.print(f"\nnext\n  upload {report.folder} as a repository of kernels", soft_wrap=True)
        return
    # The path is absolute, because pip takes a bare name for a package of its index.
    wheel = max(report.folder.glob("*.whl"), default=report.folder) if form == "wheel" else report.folder
    install = f"pip install {wheel.absolute()}"
    output.print(f"\nnext\n  {install}\n  python -c 'import {report.package}'", soft_wrap=True)
