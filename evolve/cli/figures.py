"""`evolve figures`: draw the README's table and picture from the measurements that ship, or check them."""

from pathlib import Path
from typing import Annotated

import typer

from archive import library, seeds
from evolve.cli import lookup
from evolve.errors import UserError
from evolve.report.figures import BEGIN, END, PICTURE, of_devices, picture, section, with_section
from evolve.report.words import console, listed
from reference_ops import catalog

README = "README.md"


def figures(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit with code 1 if the files are not current.")
    ] = False,
    root: Annotated[
        Path | None,
        typer.Option("--root", metavar="DIR", help="Folder with README.md [default: the checkout evolve runs from].",
                     show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Draw the README's table and picture from the measurements that ship. For maintainers."""
    folder = root or Path(str(library.folder())).parents[1]
    wanted = _files(folder)
    stale = [name for name, text in wanted.items() if _read(folder / name) != text]
    if check and stale:
        lookup.absent(
            f"{listed(stale)} in {folder} {'is' if len(stale) == 1 else 'are'} not what the shipped measurements give",
            "run `evolve figures`, and review the difference",
        )
    for name in stale:
        _write(folder / name, wanted[name])
    there = [name for name, text in wanted.items() if text is not None]
    console().print(f"written: {listed(stale)}" if stale else f"current: {listed(there)}", soft_wrap=True)


def _files(folder: Path) -> dict[str, str | None]:
    """Return the text that each file should have; None if it should not be there."""
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
