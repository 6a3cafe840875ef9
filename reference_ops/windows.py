"""Workloads with unusual windows: larger than their input, or overlapping more than any listed windows."""

import itertools
from collections.abc import Callable, Iterator, Sequence

from reference_ops.op import DTYPES, Op, Workload
from reference_ops.shapes import (
    MORE,
    STEPS_UP,
    dims_of,
    integer_parameters,
    listed_within,
    ranges_of,
    sizes_of,
    with_sizes,
)

WIDE, WIDER = 128, 48  # added to the input of a window: more than any stride, and a multiple of many strides


def windows_past_borders(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload in which every window is one larger than its input, if a padding allows that.

    Each window then crosses both borders, or several windows lie at different places, each beyond one border.
    """
    first: tuple[Workload, ...] = ()
    for one in _past_borders(op, accepts, most_bytes):
        first = first or (one,)
        if all(size > 1 for name, size in op.sizes(one).items() if name in op.derived):
            return (one,)
    return first


def _past_borders(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> Iterator[Workload]:
    """Yield, for each small listed workload, one in which every window is one larger than its input."""
    for one in listed_within(op, accepts, most_bytes) if op.derived else ():
        sizes = sizes_of(one)
        names = [name for name in sizes if name in ranges_of(op.listed)]
        moves = _windows(op, one, names, names)
        for larger in range(STEPS_UP if moves else 0):
            grown = {window: sizes[window] + larger for window, _ in moves}
            tried = with_sizes(one, {**grown, **{over: grown[window] - 1 for window, over in moves}})
            if min(grown.values()) > 1 and op.fits(tried, most_bytes) and accepts(tried):
                yield tried
                break


def overlapping_windows(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return workloads with windows larger than any listed window and the least stride, if both are parameters.

    They are parameters in pooling, which has no weights. A place then lies in more windows than at any listed
    workload. There is a workload for each size of elements, because a kernel may have separate code for 16 bits.
    `beyond_listed` combines such windows with large strides.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    parameters = [name for name in integer_parameters(op) if name in ranges and name not in dims and not op.weights]
    found: dict[int, Workload] = {}  # by size of elements
    for one in sorted(
        listed_within(op, accepts, most_bytes), key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one))
    ):
        if (itemsize := DTYPES[one.dtype].itemsize) in found:
            continue
        moved = [name for name in sizes_of(one) if name in ranges and name not in parameters]
        windows = list(dict.fromkeys(window for window, _ in _windows(op, one, parameters, moved)))
        least = {name: ranges[name][0] for name in parameters}
        for share in MORE if 0 < len(windows) < len(parameters) else ():
            larger = {name: ranges[name][1] + ranges[name][1] // share + 1 for name in windows}
            tried = with_sizes(one, {**least, **larger})
            if itemsize not in found and op.fits(tried, most_bytes) and accepts(tried):
                found[itemsize] = tried
    return tuple(found.values())


def _windows(op: Op, workload: Workload, names: Sequence[str], overs: Sequence[str]) -> list[tuple[str, str]]:
    """Return those pairs of a name and another size of which the first is a window over the second.

    If it is, a derived dim does not change when both grow equally.
    """
    sizes = sizes_of(workload)

    def derived(**more: int) -> dict[str, int]:
        tried = with_sizes(workload, {name: sizes[name] + many for name, many in more.items()})
        return {name: size for name, size in op.sizes(tried).items() if name not in sizes}

    found = set[tuple[str, str]]()
    for over in overs:
        alone, longer = derived(**{over: WIDE}), derived(**{over: WIDE + WIDER})
        grown = [name for name, size in alone.items() if size < longer[name]]
        for window in names if grown else ():
            both = derived(**{window: WIDER, over: WIDE + WIDER}) if window != over else longer
            if any(alone[name] == both[name] for name in grown):
                found.add((window, over))
    return [pair for pair in itertools.product(names, overs) if pair in found]
