"""Keeping a prompt within its bound: what matters least is shortened first, and says so."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from evolve.prompting.text import tokens


class Worth(IntEnum):
    """What is given up first stands first."""

    POPULATION = 0
    FAILURES = 1
    LESSONS = 2
    PROFILES = 3
    SECOND_PARENT = 4
    REFERENCE = 5  # from here on only shortened, and only where it alone is too long
    PARENT = 6
    NEEDED = 7


@dataclass(frozen=True)
class Part:
    """One section of a prompt, as it stands where there is room, and ever shorter where there is not."""

    worth: Worth
    renderings: tuple[str, ...]  # the fullest first


def fitted(parts: Sequence[Part], most: int) -> tuple[str, ...]:
    """The fullest text of each part with which all of them take at most so many tokens, if that can be done."""
    chosen = [0] * len(parts)
    costs = [[tokens(text) + 1 for text in part.renderings] for part in parts]
    while sum(cost[index] for cost, index in zip(costs, chosen, strict=True)) > most:
        longer = [place for place, part in enumerate(parts) if chosen[place] + 1 < len(part.renderings)]
        if not longer:
            break
        chosen[min(longer, key=lambda place: (parts[place].worth, -place))] += 1
    return tuple(part.renderings[index] for part, index in zip(parts, chosen, strict=True))
