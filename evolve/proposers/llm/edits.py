"""Edit blocks: what a model wants changed in a kernel's text, and the text once it is changed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = re.compile(r"^\s*(?:(<{5,9})\s*SEARCH\b.*|(={5,9})|(>{5,9})\s*REPLACE\b.*)\s*$", re.IGNORECASE)
MAX_EXCERPT = 80


class EditError(Exception):
    """Which block cannot be applied, and why."""


@dataclass(frozen=True)
class Edit:
    """Lines to be found, and the lines that take their place."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


def edits_in(text: str) -> tuple[Edit, ...]:
    """The blocks of a text in order, also where nobody put a fence around them; an EditError where one is not whole."""
    found: list[Edit] = []
    search: list[str] = []
    lines: list[str] | None = None  # of the part that is open
    part = ""
    for line in text.replace("\r\n", "\n").split("\n"):
        match = MARKS.match(line)
        opens, parts, closes = (bool(mark) for mark in match.groups()) if match else (False, False, False)
        if opens and part:
            raise EditError(f"edit block {len(found) + 1} is never closed with >>>>>>> REPLACE")
        if opens:
            part, lines = "search", []
        elif parts and part == "search":
            part, search, lines = "replace", lines or [], []
        elif closes and part == "replace":
            found.append(Edit(tuple(search), tuple(lines or [])))
            part, lines = "", None
        elif closes and part == "search":
            raise EditError(f"edit block {len(found) + 1} has no line ======= between its two parts")
        elif lines is not None:
            lines.append(line)
    if part:
        raise EditError(f"edit block {len(found) + 1} is never closed with >>>>>>> REPLACE")
    return tuple(found)


def applied(edits: Sequence[Edit], text: str) -> str:
    """The text with every block applied, one after the other; an EditError names the one that cannot be."""
    lines = text.split("\n")
    for number, edit in enumerate(edits, start=1):
        search = _without_blank_ends(edit.search)
        if not search:
            raise EditError(f"edit block {number} says nothing to search for")
        at = _found(search, lines, number)
        lines[at : at + len(search)] = _without_blank_ends(edit.replace)
    return "\n".join(lines)


def _found(search: Sequence[str], lines: Sequence[str], number: int) -> int:
    """Where the only match begins: of the lines as they stand, or else of what they say but for blanks."""
    for plain in (str.rstrip, _squeezed):
        wanted, there = [plain(line) for line in search], [plain(line) for line in lines]
        places = [at for at in range(len(there) - len(wanted) + 1) if there[at : at + len(wanted)] == wanted]
        if len(places) == 1:
            return places[0]
        if places:
            shown = ", ".join(str(at + 1) for at in places[:4])
            raise EditError(
                f"edit block {number} matches {len(places)} times, at lines {shown}: take more lines into SEARCH"
            )
    known = {_squeezed(line) for line in lines}
    strange = next((line for line in search if _squeezed(line) not in known), "")
    why = f"the kernel has no line `{_excerpt(strange)}`" if strange else "its lines do not follow each other there"
    raise EditError(f"edit block {number} matches nothing: {why}")


def _squeezed(line: str) -> str:
    return "".join(line.split())


def _without_blank_ends(lines: Sequence[str]) -> list[str]:
    first = next((at for at, line in enumerate(lines) if line.strip()), len(lines))
    last = next((at for at in range(len(lines), 0, -1) if lines[at - 1].strip()), 0)
    return list(lines[first:last])


def _excerpt(line: str) -> str:
    text = " ".join(line.split())
    return text if len(text) <= MAX_EXCERPT else f"{text[:MAX_EXCERPT]}..."
