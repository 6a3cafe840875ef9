"""A task at other sizes than its own: found by trying, since only the task knows which sizes go together."""

import contextlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from reference_ops.tasks.tracing import Case, Traced, shapes_of, traced

CAPS, FINER, HALVED = (128, 64, 32, 16, 8, 4), (32, 16, 8, 4, 2, 1), 12
PROBED = (32, 16, 8)
MOST_OUTPUTS, MOST_ELEMENTS, MOST_OPERATIONS = 20_000, 300_000, 4_000_000  # that a CPU can emulate
# Counted, not timed: every process must find the same.
MOST_TRIES, STEPS_TO_VARY, STEPS_TO_SHRINK = 200, 20_000, 10_000
ODD = (31, 33, 7, 1)
AWKWARD = 6
FEW, SEVERAL = (1, 3), 8
Sizes = dict[str, int]


@dataclass
class Tries:
    """What a task is like at the sizes tried so far, as long as it has the structure that it has at its own."""

    case_at: Callable[[Mapping[str, int]], Case]
    own: Traced
    known: dict[tuple[tuple[str, int], ...], Traced | None] = field(default_factory=dict)
    refused: set[tuple[str, int]] = field(default_factory=set)  # sizes that did not go with the others once
    left: int = STEPS_TO_VARY

    @property
    def found(self) -> list[Traced]:
        return [found for found in self.known.values() if found]

    def at(self, sizes: Sizes) -> Traced | None:
        key = tuple(sizes.items())
        if key not in self.known:
            if len(self.known) >= MOST_TRIES or self.left <= 0:
                return None
            self.known[key] = None
            with contextlib.suppress(Exception):  # sizes that do not go together fail in ways of the task's own
                found = traced(self.case_at(sizes))
                self.left -= found.steps
                self.known[key] = found if _alike(found, self.own) else None
        return self.known[key]


@dataclass(frozen=True)
class Smaller:
    """What was found: `varied` is the task at its own size but for one, or for all that its weights do not show."""

    emulated: tuple[Traced, ...]
    awkward: tuple[Traced, ...]
    varied: tuple[Traced, ...]


def smaller(case_at: Callable[[Mapping[str, int]], Case], own: Traced, sizes: Mapping[str, int]) -> Smaller:
    """The task small enough to be emulated, if it can be, at awkward sizes near that, and with one size changed."""
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
    kept = _kept(start, free)
    by_size = sorted(
        (name for name in free if start[name] > 2), key=lambda name: (start[name] // 2 in kept, -start[name])
    )
    halves = (tries.at({**start, name: start[name] // 2}) for name in by_size)
    half = next((found for found in halves if found and fits(found)), None)
    emulated = [found for found in (tries.at(start), half) if found]
    awkward = [other for changed in _odd(fitting, start, free, tries) if (other := tries.at(changed)) and fits(other)]
    listed = {other.case.sizes for other in emulated}
    others = [other for other in awkward if other.case.sizes not in listed][:AWKWARD]
    return Smaller(tuple(emulated), tuple(others), tuple(varied))


def _with_own_weights(tries: Tries, varied: Collection[Traced], own: Sizes) -> list[Traced]:
    """As small as it gets with all the channels that it has, of fewer and smaller images."""
    same = [_changed(found, own) for found in varied if found.weights == tries.own.weights]
    shown = {name for changed in same for name in changed}
    capped = ({name: min(size, cap) if name in shown else size for name, size in own.items()} for cap in PROBED)
    return [found for sizes in capped if sizes != own and (found := tries.at(sizes))]


def fits(found: Traced) -> bool:
    """Whether a CPU can emulate it in bearable time."""
    outputs = sum(math.prod(fact.shape) for fact in found.outputs)
    return 0 < outputs <= MOST_OUTPUTS and found.elements <= MOST_ELEMENTS and found.operations <= MOST_OPERATIONS


def _shown(tries: Tries, sizes: Sizes, name: str) -> bool:
    """Whether a kernel sees the size, in the shape of an input. One that it does not see must stay what it is.

    Where it cannot change alone, it may with those that are equal to it. What is one is there to be broadcast.
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
    while step := _a_step_down(tries, best, sizes, free):
        best = step
        if (found := tries.at(best)) and fits(found):
            return best
    return None


def _a_step_down(tries: Tries, best: Sizes, own: Sizes, free: Collection[str]) -> Sizes | None:
    """With the largest size that can be made smaller one step smaller."""
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
    """Larger again where there is room: sizes that differ tell dims apart, and channels should outnumber groups.

    First those that have shrunk to a size that must stay, as channels may to the number of groups, the smallest first;
    then the innermost.
    """
    kept = _kept(start, free)
    innermost_first = [*free][::-1]
    for name in sorted(innermost_first, key=lambda name: own[name] if start[name] in kept else math.inf):
        larger = {**start, name: min(own[name], 2 * start[name])}
        wanted = [larger]
        if start[name] in kept:  # if need be at the cost of another
            wanted += [{**larger, other: start[other] // 2} for other in free if other != name and start[other] > 2]
        start = next((sizes for sizes in wanted if (found := tries.at(sizes)) and fits(found)), start)
    return start


def _kept(sizes: Sizes, free: Collection[str]) -> set[int]:
    return {size for name, size in sizes.items() if name not in free}


def _others(tries: Tries, own: Sizes, free: Collection[str]) -> tuple[Traced, ...]:
    """What a GPU can check of a task that no CPU can emulate: the least that was found, and one size small and odd.

    All of them very small would be no good: a normalisation of two numbers jumps from one sign to the other.
    """
    least = [found for found in tries.found if all(size >= min(own[name], SEVERAL) for name, size in found.case.sizes)]
    tries.left = STEPS_TO_VARY
    odd = [found for name in free for size in FEW if size < own[name] and (found := tries.at({**own, name: size}))]
    chosen = [*sorted(least, key=_cost)[:1], *sorted(odd, key=_cost)]
    return tuple(found for found in chosen if _cost(found) < _cost(tries.own))[:AWKWARD]


def _odd(smallest: Sizes, start: Sizes, free: Collection[str], tries: Tries) -> Iterator[Sizes]:
    """Everything one larger, then one size at a time, of equal ones the innermost first."""
    yield {name: size + (name in free) for name, size in smallest.items()}
    innermost_first = [*free][::-1]
    for name in sorted(innermost_first, key=lambda name: -start[name]):
        changed = ((size, tries.at({**start, name: size})) for size in ODD if size != start[name])
        going = {size: found for size, found in changed if found}
        # Where no other size goes, one does by broadcasting alone, and computes something else.
        fitting = (size for size, found in going.items() if fits(found))
        if [*going] != [1] and (size := next(fitting, None)):
            yield {**start, name: size}


def _changed(found: Traced, sizes: Sizes) -> set[str]:
    return {name for name, size in found.case.sizes if size != sizes[name]}


def _cost(found: Traced) -> float:
    return found.elements / MOST_ELEMENTS + found.operations / MOST_OPERATIONS


def _alike(found: Traced, own: Traced) -> bool:
    """Whether the same kernel could compute both: the same tensors but for their sizes."""

    def structure(one: Traced) -> object:
        facts = (*one.inputs.values(), *one.weights.values(), *one.outputs)
        names = (tuple(one.inputs), tuple(one.weights), tuple(one.idle), tuple(one.constants), one.changed)
        return names, tuple((len(fact.shape), fact.dtype, fact.drawn) for fact in facts)

    return structure(found) == structure(own)
