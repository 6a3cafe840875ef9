"""Rendering of the lines that a terminal of a given size shows."""

import io

from rich.console import Console, RenderableType


def drawn(shown: RenderableType, width: int = 80, height: int = 24) -> list[str]:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, height=height, force_terminal=True, color_system=None, legacy_windows=False
    )
    console.print(shown)
    return [line.rstrip() for line in stream.getvalue().splitlines()]
