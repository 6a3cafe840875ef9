"""Output other than tables on the screen: CSV for spreadsheets, and a pager for long text."""

import csv
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.table import Table
from rich.text import Text

from archive.characters import escaped

EVERYTHING = 10_000  # number of columns with which a table leaves nothing out
DECORATED = re.compile(r"\$?[\d,]+(\.\d+)?x?")  # numbers such as $0.05, 1,234 and 1.50x
FORMULA = ("=", "+", "@", "-", "\t")  # a spreadsheet would run text that begins with these characters
PAGER, LESS = "less", "FRX"  # F: no paging if the text fits the screen; R: colours; X: the text stays on the screen


def csv_of(table: Table) -> str:
    """Return a table as CSV with its headings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([_plain(column.header) for column in table.columns])
    cells = ([_plain(cell, number=column.justify == "right") for cell in column.cells] for column in table.columns)
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue()


def _plain(cell: object, *, number: bool = False) -> str:
    text = escaped(cell.plain if isinstance(cell, Text) else str(cell)).replace("\N{NO-BREAK SPACE}", " ")
    if number and DECORATED.fullmatch(text):
        return text.strip("$x").replace(",", "")
    if text.startswith(FORMULA) and not _is_number(text):
        return f"'{text}" if text != "-" else text
    return text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@contextmanager
def paged(output: Console) -> Iterator[None]:
    """Show text that is printed in the body in a pager if it does not fit the screen of a terminal.

    The pager is $PAGER, or `less`. If PAGER is empty, there is no pager.
    """
    pager = os.environ.get("PAGER", PAGER)
    if not output.is_terminal or not sys.stdin.isatty() or not pager or not shutil.which(pager.split()[0]):
        yield
        return
    with output.capture() as captured:
        yield
    text = captured.get()
    if text.count("\n") < output.height:
        output.file.write(text)
        output.file.flush()
    else:
        show(text, pager)


def show(text: str, pager: str) -> None:
    """Show text in a pager, and return when the pager has ended."""
    environment = {**os.environ, "LESS": os.environ.get("LESS", LESS)}
    process = subprocess.Popen(pager, shell=True, stdin=subprocess.PIPE, env=environment)  # noqa: S602 - the user's own
    with suppress(BrokenPipeError), process.stdin or io.BytesIO() as stream:
        stream.write(text.encode(errors="replace"))
    process.wait()
