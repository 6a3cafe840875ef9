"""Where output goes: tables to a console, JSON through a plain print."""

import json
import os
import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from archive.characters import escaped

PIPED_WIDTH = 120  # of tables that no terminal gives a width


class SafeConsole(Console):
    """What it prints may come from a model, a compiler or another archive: it never steers the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            # Control segments are rich's own: nothing that is printed can become one.
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Nothing that is printed is taken for markup: kernels and logs are full of square brackets."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return SafeConsole(file=stream, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: object) -> None:
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_text(text: str, end: str = "\n") -> None:
    """As it stands, for people and programs to copy; still JSON where it was."""
    print(escaped(text), end=end)


def complain(message: str, hint: str = "") -> None:
    """What happened and what to do, a line each, where errors belong."""
    shown = console(stderr=True)
    shown.print(f"error: {message}", style="red", soft_wrap=True)
    if hint:
        shown.print(f"       {hint}", soft_wrap=True)
