"""Replies: extraction of a kernel from the text of a model's reply.

A reply contains a kernel in a fenced block, a whole kernel without a fence, or edits to a parent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from archive.binding import parse_for
from archive.exchange import LEFT_OUT
from archive.kernel import CLOSE, OPEN, Kernel, Proposal
from archive.plan import PlanError
from evolve.op_on_device import signature
from reference_ops.op import Op

MARKS = re.compile(r"^\s*(?:(<{5,9})\s*SEARCH\b.*|(={5,9})|(>{5,9})\s*REPLACE\b.*)\s*$", re.IGNORECASE)
MAX_EXCERPT = 80
THOUGHT_TAGS = "think|thinking|thought|reasoning|analysis"
THOUGHT = re.compile(rf"<({THOUGHT_TAGS})>.*?</\1>", re.DOTALL | re.IGNORECASE)
THOUGHT_END = re.compile(rf"</(?:{THOUGHT_TAGS})>", re.IGNORECASE)
THOUGHT_START = re.compile(rf"^[ \t]*<(?:{THOUGHT_TAGS})>", re.IGNORECASE | re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(?:>[ \t]*)?(`{3,}|~{3,})(.*)$")
COMMENT_LINES = re.compile(r"(?:\s*//[^\n]*\n)*\s*")


def proposal_from(reply: str, op: Op, origin: Proposal, parents: Sequence[Kernel] = ()) -> Proposal:
    """Return the proposal `origin` with the kernel in the reply, or with the reason why there is none.

    `parents` are the kernels to which edits in the reply may apply.
    """
    origin = replace(origin, kernel=None, reply=reply, failure="")
    try:
        text = _edited(reply, parents) or kernel_in(reply)
        if not text:
            return replace(origin, failure=_missing(reply))
        return replace(origin, kernel=parse_for(text, signature(op)))
    except EditError as error:
        return replace(origin, failure=f"the edits cannot be applied: {error}")
    except PlanError as error:
        return replace(origin, failure=f"the kernel in the reply is malformed: {error}")


def kernel_in(reply: str) -> str:
    """Return the text of the last complete kernel in a reply, or else an incomplete one, or else an empty string."""
    text = without_thoughts(reply).replace("\r\n", "\n")
    closed, opened = _blocks(text)
    candidates = [found for block in closed if (found := _from_plan(block))]
    complete = [found for found in candidates if CLOSE in found]
    if complete:
        return complete[-1]
    bare = _from_plan(opened) or (_from_plan(_unfenced(text)) if not candidates else "")
    return bare or (candidates[-1] if candidates else "")


def without_thoughts(reply: str) -> str:
    """Return the reply without the model's reasoning, even if a chat template dropped the opening tag."""
    text = THOUGHT.sub("", reply)
    text = THOUGHT_END.split(text)[-1]
    # An opening tag without a closing one means that the reply was cut off during the reasoning.
    return THOUGHT_START.split(text)[0]


def _missing(reply: str) -> str:
    text = without_thoughts(reply)
    if not text.strip():
        return "the reply contains only reasoning" if reply.strip() else "the reply is empty"
    if LEFT_OUT.partition("{}")[2] in text:
        return (
            f"the reply is too long to be stored completely, and the stored part contains no code that begins with "
            f"{OPEN}"
        )
    if "__global__" in text:
        return f"the code in the reply has no plan: a kernel begins with its plan in a comment, {OPEN}"
    return f"the reply contains no kernel: no code that begins with {OPEN}"


def _blocks(text: str) -> tuple[list[str], str]:
    """Return the fenced blocks of a Markdown text, and the block that is never closed."""
    closed: list[str] = []
    fence, lines = "", list[str]()
    for line in text.split("\n"):
        match = FENCE.match(line)
        if not fence and match:
            fence, lines = match.group(1), []
        elif match and match.group(1).startswith(fence) and not match.group(2).strip():
            closed.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
    return closed, "\n".join(lines) if fence else ""


def _from_plan(block: str) -> str:
    """Return the block if it is a kernel, without comment lines before the plan, such as a file name."""
    start = COMMENT_LINES.match(block)
    begin = start.end() if start else 0
    return block[begin:].rstrip() + "\n" if block.startswith(OPEN, begin) else ""


def _unfenced(text: str) -> str:
    """Return the text from the last plan that starts a line to the next fence or the end."""
    begin = max((match.start() for match in re.finditer(rf"^{re.escape(OPEN)}", text, re.MULTILINE)), default=-1)
    if begin < 0:
        return ""
    return re.split(r"^\s*```", text[begin:], maxsplit=1, flags=re.MULTILINE)[0]


def _edited(reply: str, parents: Sequence[Kernel]) -> str:
    """Return the parent with the reply's edits applied, or an empty string without edits.

    If the edits cannot be applied, a whole kernel in the same reply is used instead.
    """
    try:
        edits = edits_in(without_thoughts(reply))
        return _applied(edits, parents) if edits else ""
    except EditError:
        whole = kernel_in(reply)
        if CLOSE in whole:
            return whole
        raise


def _applied(edits: "Sequence[Edit]", parents: Sequence[Kernel]) -> str:
    first_error = EditError("the prompt showed no kernel to edit, and asked for a whole kernel")
    for number, kernel in enumerate(parents):
        try:
            return applied(edits, kernel.text)
        except EditError as error:
            first_error = first_error if number else error
    raise first_error


class EditError(Exception):
    """Raised for an edit that cannot be read or applied; the message says why."""


@dataclass(frozen=True)
class Edit:
    """Lines to find, and the lines that replace them."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


def edits_in(text: str) -> tuple[Edit, ...]:
    """Return the edit blocks of a text in order, with or without fences. An incomplete block raises an EditError."""
    found: list[Edit] = []
    search: list[str] = []
    lines: list[str] | None = None  # lines of the part being read
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
    """Return the text with all edits applied in order; an EditError names the first that cannot be applied."""
    lines = text.split("\n")
    for number, edit in enumerate(edits, start=1):
        search = _without_blank_ends(edit.search)
        if not search:
            raise EditError(f"edit block {number} has an empty SEARCH part")
        at = _found(search, lines, number)
        lines[at : at + len(search)] = _without_blank_ends(edit.replace)
    return "\n".join(lines)


def _found(search: Sequence[str], lines: Sequence[str], number: int) -> int:
    """Return the index of the only match, comparing exact lines first and then lines without whitespace."""
    for normalise in (str.rstrip, _squeezed):
        wanted, present = [normalise(line) for line in search], [normalise(line) for line in lines]
        places = [at for at in range(len(present) - len(wanted) + 1) if present[at : at + len(wanted)] == wanted]
        if len(places) == 1:
            return places[0]
        if places:
            shown = ", ".join(str(at + 1) for at in places[:4])
            raise EditError(
                f"edit block {number} matches {len(places)} times, at lines {shown}: include more lines in SEARCH"
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
