"""`evolve ship` and `figures`: write champions and their times into the package, and its figures into the README."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from archive import library, seeds
from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, JsonOption, op_names
from evolve.errors import UserError
from evolve.export.ship import Champions, ship
from evolve.report.basis import geometric_mean
from evolve.report.figures import BEGIN, END, PICTURE, of_devices, picture, section, with_section
from evolve.report.tables import fitted, plain_table
from evolve.report.words import console, counted, listed, percent, print_json, times
from evolve.selection import population
from reference_ops import catalog

INTO_HELP = "Folder of shipped kernels to write to [default: archive/kernels of the checkout that evolve runs from]."
TRUST_HELP = "Also ship measurements of merged archives; only for archives of your own machines."


def ship_champions(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names of ops [default: all in the archive].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    into: Annotated[Path | None, typer.Option("--into", metavar="DIR", help=INTO_HELP, show_default=False)] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="TEXT", help="Ship only measurements of GPUs with TEXT in their name.")
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
        raise UserError(f"{own} is not in a checkout", "name the folder archive/kernels of a checkout with --into")
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


README = "README.md"


def figures(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with code 1 if the files are not current.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Folder with README.md [default: the checkout that evolve runs "
                     "from].",
                     show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Draw the README's table and picture from the measurements that ship. For maintainers."""
    folder = root or Path(str(library.folder())).parents[1]
    wanted = _files(folder)
    stale = [name for name, text in wanted.items() if _read(folder / name) != text]
    if check and stale:
        lookup.absent(
            f"{listed(stale)} in {folder} {'does' if len(stale) == 1 else 'do'} not match the shipped measurements",
            "run `evolve figures`, and review the difference",
        )
    for name in stale:
        _write(folder / name, wanted[name])
    there = [name for name, text in wanted.items() if text is not None]
    console().print(f"written: {listed(stale)}" if stale else f"current: {listed(there)}", soft_wrap=True)


def _files(folder: Path) -> dict[str, str | None]:
    """Return the text that each file should have; None if the file should not exist."""
    found = of_devices(catalog.listing(), {op: seeds.measurements(op) for op in library.op_names()})
    readme = _read(folder / README)
    changed = with_section(readme, section(found)) if readme is not None else None
    if changed is None:
        raise UserError(
            f"{folder / README} has no place for the figures", f"add two lines to it: {BEGIN} and, below, {END}"
        )
    return {README: changed, PICTURE: picture(found[0]) if found else None}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _write(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
