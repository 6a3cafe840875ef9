"""Differences of two texts, line by line and side by side, with the words that changed within a line."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 3  # unchanged lines shown around a change
SIMILAR = 0.6  # smallest similarity of lines that are compared word by word
WORD = re.compile(r"\w+|\s+|[^\w\s]")
LONG = 400  # number of characters above which lines are not compared word by word


@dataclass(frozen=True)
class Part:
    """A part of a line, and whether it is in that line only."""

    text: str
    changed: bool = False


@dataclass(frozen=True)
class Side:
    """A line of one text; `number` is 0 where the text has no such line."""

    number: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True)
class Pair:
    """A line of the left text beside a line of the right text."""

    left: Side
    right: Side
    changed: bool


def side_by_side(left: str, right: str, context: int = CONTEXT) -> list[list[Pair]]:
    """Return the places where two texts differ, each with some unchanged lines around it."""
    ours, theirs = left.splitlines(), right.splitlines()
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return [
        [pair for opcode in group for pair in _pairs(ours, theirs, opcode)]
        for group in matcher.get_grouped_opcodes(context)
    ]


def _pairs(ours: Sequence[str], theirs: Sequence[str], opcode: tuple[str, int, int, int, int]) -> Iterator[Pair]:
    kind, start, end, begin, stop = opcode
    for offset in range(max(end - start, stop - begin)):
        a, b = start + offset, begin + offset
        left, right = ours[a] if a < end else None, theirs[b] if b < stop else None
        if kind == "equal":
            yield Pair(Side(a + 1, (Part(left or ""),)), Side(b + 1, (Part(right or ""),)), changed=False)
            continue
        old, new = _compared(left, right)
        yield Pair(
            Side() if left is None else Side(a + 1, old), Side() if right is None else Side(b + 1, new), changed=True
        )


def _compared(left: str | None, right: str | None) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    whole = tuple(() if one is None else (Part(one, changed=True),) for one in (left, right))
    if left is None or right is None or max(len(left), len(right)) > LONG:
        return whole[0], whole[1]
    ours, theirs = WORD.findall(left), WORD.findall(right)
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    if matcher.ratio() < SIMILAR:
        return whole[0], whole[1]
    old, new = [], []
    for kind, start, end, begin, stop in matcher.get_opcodes():
        if end > start:
            old.append(Part("".join(ours[start:end]), kind != "equal"))
        if stop > begin:
            new.append(Part("".join(theirs[begin:stop]), kind != "equal"))
    return tuple(old), tuple(new)
