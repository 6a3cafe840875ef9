"""`evolve ship`: write champions with their times into the folder of kernels that ship with the package."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from archive import library
from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, JsonOption, op_names
from evolve.errors import UserError
from evolve.export.ship import Champions, ship
from evolve.report.basis import geometric_mean
from evolve.report.tables import fitted, plain_table
from evolve.report.words import console, counted, percent, print_json, times
from evolve.selection import population

INTO_HELP = "Folder of shipped kernels to write to [default: archive/kernels of the checkout that evolve runs from]."
TRUST_HELP = "Also ship what was measured in merged archives; use it for your own archives."


def ship_champions(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names of ops [default: all in the archive].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    into: Annotated[Path | None, typer.Option("--into", metavar="DIR", help=INTO_HELP, show_default=False)] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="TEXT", help="Ship only what GPUs with TEXT in their name measured.")
    ] = "",
    trust_merged: Annotated[bool, typer.Option("--trust-merged", help=TRUST_HELP)] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write confirmed champions, with their times, into a checkout, so that they ship with it. For maintainers."""
    folder = _folder(into)
    with closing(wiring.archive(archive, read_only=True)) as store:
        names = [_named(op) for op in ops or ()] or sorted(
            op for op in store.count(EvaluationSummary, "op", shipped=False) if op in op_names()
        )
        every = [one for op in names for one in ship(store, op, folder, part=device, trust_merged=trust_merged)]
    found = [one for one in every if one.kernels or one.dropped]
    if as_json:
        print_json([_facts(one) for one in found])
    elif found:
        _print(found, folder, console())
    if not found:
        lookup.absent(
            "the archive has no confirmed champion that a GPU measured",
            "`evolve run OP` finds champions on a machine with an NVIDIA GPU, and `evolve confirm` confirms them",
        )


def _folder(given: Path | None) -> Path:
    if given is not None:
        if not given.is_dir():
            raise UserError(f"{given} is not a folder", "name the folder archive/kernels of a checkout")
        return given
    own = Path(str(library.folder()))
    if not (own.parents[1] / "pyproject.toml").is_file():
        raise UserError(f"{own} is not in a checkout", "name its folder archive/kernels with --into")
    return own


def _named(op: str) -> str:
    if op not in op_names():
        raise UserError(f"there is no op `{op}` in the catalog", "`evolve ops` lists those that can ship")
    return op


def _facts(one: Champions) -> dict[str, Any]:
    winners = population.leaders(kernel.evaluation for kernel in one.kernels)
    best = [population.champion(workload, evaluation).measurement for workload, evaluation in winners.items()]
    return {
        "op": one.op,
        "device": one.device,
        "kernels": len(one.kernels),
        "new": sorted(one.new),
        "dropped": sorted(one.dropped),
        "workloads": len(best),
        "light": geometric_mean(share for measurement in best if (share := measurement.share_of_light)),
        "speedup": geometric_mean(measurement.speedup for measurement in best),
    }


def _print(found: list[Champions], folder: Path, output: Console) -> None:
    numbers = ["kernels", "new", "dropped", "workloads", "light", "speedup"]
    table = plain_table("op", "device", *numbers, numbers=numbers)
    for one in found:
        summary = _facts(one)
        table.add_row(
            one.op, fitted(one.device), str(len(one.kernels)), str(len(one.new)), str(len(one.dropped)),
            str(summary["workloads"]), percent(summary["light"]), times(summary["speedup"]),
        )  # fmt: skip
    output.print(table)
    output.print(
        f"\n{counted(len(found), 'text')} of measurements in {folder}; review them with git diff", soft_wrap=True
    )
