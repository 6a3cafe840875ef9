"""Smaller and awkward sizes of a task, found by trial: only the task determines which sizes are valid together."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from reference_ops.tasks.tracing import Case, Traced, shapes_of, traced

CAPS, FINER, HALVED = (128, 64, 32, 16, 8, 4), (32, 16, 8, 4, 2, 1), 12
PROBED = (32, 16, 8)
MOST_OUTPUTS, MOST_ELEMENTS, MOST_OPERATIONS = 20_000, 300_000, 4_000_000  # limits for emulating on a CPU
# Limits are counts, not times, because every process must find the same sizes.
MOST_TRIES, STEPS_TO_VARY, STEPS_TO_SHRINK = 200, 20_000, 10_000
ODD = (31, 33, 7, 1)
AWKWARD = 6
FEW, SEVERAL = (1, 3), 8
Sizes = dict[str, int]
At = Callable[[Mapping[str, int]], Traced | None]


@dataclass
class Tries:
    """The traces of a task at the sizes tried so far. Sizes that change the task's structure are rejected."""

    case_at: Callable[[Mapping[str, int]], Case]
    own: Traced
    known: dict[tuple[tuple[str, int], ...], Traced | None] = field(default_factory=dict)
    refused: set[tuple[str, int]] = field(default_factory=set)  # sizes that were rejected once
    left: int = STEPS_TO_VARY  # operations that may still be traced

    @property
    def found(self) -> list[Traced]:
        return [found for found in self.known.values() if found]

    def at(self, sizes: Sizes) -> Traced | None:
        key = tuple(sizes.items())
        if key not in self.known:
            if len(self.known) >= MOST_TRIES or self.left <= 0:
                return None
            self.known[key] = None
            with contextlib.suppress(Exception):  # at invalid sizes a task may raise any exception
                found = traced(self.case_at(sizes))
                self.left -= found.steps
                self.known[key] = found if alike(found, self.own) else None
        return self.known[key]


@dataclass(frozen=True)
class Smaller:
    """The sizes found. Those in `varied` differ in one size, or in all sizes on which the weights do not depend."""

    emulated: tuple[Traced, ...]
    awkward: tuple[Traced, ...]
    varied: tuple[Traced, ...]


def smaller(case_at: Callable[[Mapping[str, int]], Case], own: Traced, sizes: Mapping[str, int]) -> Smaller:
    """Find sizes small enough to emulate, awkward sizes near them, and the task's own sizes with one size changed."""
    tries = Tries(case_at, own)
    free = {name: size for name, size in sizes.items() if _shown(tries, dict(sizes), name)}
    own_sizes = dict(sizes)
    varied = [found for found in tries.found if _changed(found, own_sizes) <= free.keys()]
    varied += _with_own_weights(tries, varied, own_sizes)
    tries.left = STEPS_TO_SHRINK
    fitting = _fitting(tries, dict(sizes), free)
    if fitting is None:
        return Smaller((), _others(tries, dict(sizes), free), tuple(varied))
    start = _grown(tries, fitting, dict(sizes), free)
    fixed = _fixed(start, free)
    by_size = sorted(
        (name for name in free if start[name] > 2), key=lambda name: (start[name] // 2 in fixed, -start[name])
    )
    halves = (tries.at({**start, name: start[name] // 2}) for name in by_size)
    half = next((found for found in halves if found and fits(found)), None)
    emulated = [found for found in (tries.at(start), half) if found]
    awkward = [other for changed in _odd(fitting, start, free, tries) if (other := tries.at(changed)) and fits(other)]
    listed = {other.case.sizes for other in emulated}
    others = [other for other in awkward if other.case.sizes not in listed][:AWKWARD]
    return Smaller(tuple(emulated), tuple(others), tuple(varied))


def _with_own_weights(tries: Tries, varied: Collection[Traced], own: Sizes) -> list[Traced]:
    """Return small sizes that leave all weights unchanged, such as fewer and smaller images with all channels."""
    same = [_changed(found, own) for found in varied if found.weights == tries.own.weights]
    shown = {name for changed in same for name in changed}
    capped = ({name: min(size, cap) if name in shown else size for name, size in own.items()} for cap in PROBED)
    return [found for sizes in capped if sizes != own and (found := tries.at(sizes))]


def fits(found: Traced) -> bool:
    """Return whether a CPU can emulate this size in acceptable time."""
    outputs = sum(math.prod(fact.shape) for fact in found.outputs)
    return 0 < outputs <= MOST_OUTPUTS and found.elements <= MOST_ELEMENTS and found.operations <= MOST_OPERATIONS


def _shown(tries: Tries, sizes: Sizes, name: str) -> bool:
    """Return whether a kernel can read the size from an input's shape. Only such sizes may be changed.

    If a size cannot change alone, sizes equal to it change together with it. Sizes of 1 are broadcast and never change.
    """
    own = sizes[name]
    if own == 1:
        return False
    equal = [other for other, size in sizes.items() if size == own]
    for together in ([name], equal) if len(equal) > 1 else ([name],):
        for size in (own // 2, 2 * own, own + 1):
            if size and (found := tries.at({**sizes, **dict.fromkeys(together, size)})):
                pairs = zip(shapes_of(tries.own), shapes_of(found), strict=True)
                return any((own, size) in zip(before, changed, strict=True) for before, changed in pairs)
    return False


def _fitting(tries: Tries, sizes: Sizes, free: Collection[str]) -> Sizes | None:
    best = sizes
    for cap in CAPS:
        capped = {name: min(size, cap) if name in free else size for name, size in sizes.items()}
        if found := tries.at(capped):
            best = capped
            if fits(found):
                return capped
    while step := _step_down(tries, best, sizes, free):
        best = step
        if (found := tries.at(best)) and fits(found):
            return best
    return None


def _step_down(tries: Tries, best: Sizes, own: Sizes, free: Collection[str]) -> Sizes | None:
    """Reduce, by one step, the largest size that can be reduced."""
    current = tries.own if best == own else tries.at(best)
    for name in sorted(free, key=lambda name: -best[name]):
        halves = (own[name] >> times for times in range(1, HALVED) if own[name] >> times > FINER[0])
        for cap in (*halves, *FINER):
            if cap >= best[name] or (name, cap) in tries.refused:
                continue
            found = tries.at({**best, name: cap})
            if found and current and _cost(found) < _cost(current):
                return {**best, name: cap}
            tries.refused.add((name, cap))
    return None


def _grown(tries: Tries, start: Sizes, own: Sizes, free: Collection[str]) -> Sizes:
    """Make sizes larger again within the limits, so that dims differ in size and channels outnumber groups.

    Sizes that now equal a fixed one come first, such as channels that shrank to the number of groups, then the
    innermost.
    """
    fixed = _fixed(start, free)
    innermost_first = [*free][::-1]
    for name in sorted(innermost_first, key=lambda name: own[name] if start[name] in fixed else math.inf):
        larger = {**start, name: min(own[name], 2 * start[name])}
        candidates = [larger]
        if start[name] in fixed:  # if necessary, another size shrinks instead
            candidates += [{**larger, other: start[other] // 2} for other in free if other != name and start[other] > 2]
        start = next((sizes for sizes in candidates if (found := tries.at(sizes)) and fits(found)), start)
    return start


def _fixed(sizes: Sizes, free: Collection[str]) -> set[int]:
    return {size for name, size in sizes.items() if name not in free}


def _others(tries: Tries, own: Sizes, free: Collection[str]) -> tuple[Traced, ...]:
    """Return sizes to check on a GPU for a task that no CPU can emulate: the cheapest one, and single small sizes.

    Sizes are not all very small at once, because a normalisation of two numbers gives only 1 and -1.
    """
    least = [found for found in tries.found if all(size >= min(own[name], SEVERAL) for name, size in found.case.sizes)]
    tries.left = STEPS_TO_VARY
    odd = [found for name in free for size in FEW if size < own[name] and (found := tries.at({**own, name: size}))]
    chosen = [*sorted(least, key=_cost)[:1], *sorted(odd, key=_cost)]
    return tuple(found for found in chosen if _cost(found) < _cost(tries.own))[:AWKWARD]


def _odd(smallest: Sizes, start: Sizes, free: Collection[str], tries: Tries) -> Iterator[Sizes]:
    """Yield all free sizes plus one, then one odd size at a time, the innermost of equal sizes first."""
    yield {name: size + (name in free) for name, size in smallest.items()}
    innermost_first = [*free][::-1]
    for name in sorted(innermost_first, key=lambda name: -start[name]):
        if size := _odd_size(tries, start, name):
            yield {**start, name: size}


def _odd_size(tries: Tries, start: Sizes, name: str) -> int | None:
    """Return the first odd size that the task accepts and that fits.

    Size 1 counts only if the task also accepts another odd size, because otherwise it is broadcast and computes
    something else.
    """
    accepted = False
    for size in ODD:
        if size != start[name] and (found := tries.at({**start, name: size})):
            if fits(found) and (size != 1 or accepted):
                return size
            accepted = True
    return None


def _changed(found: Traced, sizes: Sizes) -> set[str]:
    return {name for name, size in found.case.sizes if size != sizes[name]}


def _cost(found: Traced) -> float:
    return found.elements / MOST_ELEMENTS + found.operations / MOST_OPERATIONS


def tracer(case_at: Callable[[Mapping[str, int]], Case], own: Traced) -> At:
    """Return a function that traces a task at other sizes, and returns None for sizes that the task does not accept."""

    def at(sizes: Mapping[str, int]) -> Traced | None:
        with contextlib.suppress(Exception):  # at invalid sizes a task may raise any exception
            found = traced(case_at(sizes))
            return found if alike(found, own) else None
        return None

    return at


def alike(found: Traced, own: Traced) -> bool:
    """Return whether one kernel could compute both: all tensors agree in all but their sizes."""

    def structure(one: Traced) -> object:
        facts = (*one.inputs.values(), *one.weights.values(), *one.outputs)
        names = (tuple(one.inputs), tuple(one.weights), tuple(one.idle), tuple(one.constants), one.changed)
        return names, tuple((len(fact.shape), fact.dtype, fact.drawn) for fact in facts)

    return structure(found) == structure(own)
