"""Where output goes: tables to a console, JSON through a plain print."""

import json
import os
import sys

from rich.console import Console

PIPED_WIDTH = 120  # of tables that no terminal gives a width


def console(*, stderr: bool = False) -> Console:
    """Nothing that is printed is taken for markup: kernels and logs are full of square brackets."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def complain(message: str, hint: str = "") -> None:
    """What happened and what to do, a line each, where errors belong."""
    shown = console(stderr=True)
    shown.print(f"error: {message}", style="red", soft_wrap=True)
    if hint:
        shown.print(f"       {hint}", soft_wrap=True)
