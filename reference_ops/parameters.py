"""Workloads with unusual parameters: special, one unlike listed ones, far apart, crossed, beyond all listed values."""

import itertools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from reference_ops.op import (
    DTYPES,
    GRADIENT,
    INFINITE,
    NAN,
    NAN_IN_WEIGHTS,
    RUNS_OF_MINUS_INF,
    ZERO,
    Number,
    Op,
    Workload,
)
from reference_ops.shapes import (
    LEAST_DECAY,
    MANY_ELEMENTS,
    MORE,
    MOST_TAPS,
    NEAREST,
    STEPS_UP,
    dims_of,
    integer_parameters,
    listed_within,
    other_float,
    ranges_of,
    with_sizes,
)

# values of a floating-point parameter: no weight decay, a slope above 1, a scale far from the usual
SPECIAL = (0.0, 10.0)
LEAST_SIGNED = 0.01  # a parameter whose listed values are all below this is an eps, which is never 1 or negative
TERM_VANISHES = (0.0, 1.0)  # values at which the parameter, or its difference from 1, makes a term vanish
FEW = 4  # integers below this are tried for each parameter, even if they are not listed
FLOAT_TRIES = 16  # number of floating-point values that are tried, because an op may refuse smaller or larger ones
TAPS = range(2, MOST_TAPS + 1)  # greatest listed sizes of filters
MOST_CROSSED = 2  # number of workloads with parameters that are listed, but not together


def special_parameters(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each floating-point parameter and each value in `SPECIAL` that the op accepts.

    A scale or a slope also gets a negative value. The other parameters are as listed. Of the listed workloads that fit,
    the largest that `accepts` allows is chosen.
    """
    small = [workload for workload in (*op.emulated, *op.awkward) if op.nbytes(workload) <= most_bytes]
    nearest = sorted(small, key=op.nbytes, reverse=True)
    listed: dict[str, set[float]] = {}
    for name, value in (parameter for workload in op.listed for parameter in workload.parameters):
        if isinstance(value, float):
            listed.setdefault(name, set()).add(value)
    found: list[Workload] = []
    for special in ((name, value) for name in sorted(listed) for value in _special(listed[name])):
        tries = (
            replace(near, parameters=tuple(special if pair[0] == special[0] else pair for pair in near.parameters))
            for near in nearest
        )
        found += itertools.islice((tried for tried in tries if op.is_valid(tried) and accepts(tried)), 1)
    return tuple(found)


def extremes_that_matter(op: Op, workload: Workload) -> tuple[str, ...]:
    """Return the extremes and arrangements, often with results that are not finite, on which unusual parameters matter.

    Where a term vanishes, its factors may be NaN or infinite. A negative parameter turns an infinity into the other.
    Without an eps, rows of zeros are divided by zero; gradients are left out, as the order of their divisions is open.
    """
    names: tuple[str, ...] = ()
    if has_vanishing_term(op, workload):
        names = (NAN, INFINITE, NAN_IN_WEIGHTS)
    elif has_negative(op, workload):
        names = (INFINITE, *_with_runs(op))
    if _has_zero(workload) and not any(spec.name.startswith(GRADIENT) for spec in op.inputs):
        names = (*names, ZERO)
    return tuple(name for name in names if name in (*op.extremes, *op.arrangements))


def _has_zero(workload: Workload) -> bool:
    return any(isinstance(value, float) and value == 0 for _, value in workload.parameters)


def _with_runs(op: Op) -> tuple[str, ...]:
    return tuple(name for name in op.arrangements if name.endswith(RUNS_OF_MINUS_INF))


def has_negative(op: Op, workload: Workload) -> bool:
    """Return whether a floating-point parameter is negative here, but in no listed workload."""
    least = {name: min(dict(one.parameters)[name] for one in op.listed) for name, _ in workload.parameters}
    return any(isinstance(value, float) and value < 0 <= least[name] for name, value in workload.parameters)


def has_vanishing_term(op: Op, workload: Workload) -> bool:
    """Return whether a floating-point parameter other than an eps is 0 or 1 here, but in no listed workload.

    A term is then multiplied by zero, and a kernel may leave it out. An eps is only added.
    """
    for name, value in workload.parameters:
        listed = {dict(one.parameters)[name] for one in op.listed}
        if isinstance(value, float) and value in TERM_VANISHES and value not in listed and max(listed) >= LEAST_SIGNED:
            return True
    return False


def _special(listed: set[float]) -> Iterator[float]:
    """Yield special values of a parameter that are not listed.

    They include one and a negative value if it is not an eps.
    """
    most = max(listed)
    values = SPECIAL if most < LEAST_SIGNED else (*SPECIAL, 1.0)
    yield from (value for value in values if value not in listed)
    if most >= LEAST_SIGNED and not LEAST_DECAY < most < 1:
        yield -most


def far_apart(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each integer parameter, with its greatest listed value and the least of related sizes.

    Related sizes are the other integer parameters and the sizes of filters: a stride beyond the window leaves gaps, and
    a padding beyond the filter makes windows outside the input. In a second workload they are at least one more than
    the least, so that gaps occur beside a padding. Sizes of tensors that are parameters do not change.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    parameters = [name for name in integer_parameters(op) if name in ranges and name not in dims]
    filters = [name for name, (_, most) in ranges.items() if name in dims and most <= MOST_TAPS]
    found: list[Workload] = []
    for name in parameters:
        others = [other for other in (*parameters, *filters) if other != name]
        near = [one for one in (*op.emulated, *op.awkward) if op.nbytes(one) <= most_bytes]
        # the most exact dtype shows errors best
        near.sort(key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one)))
        for first in range(2 if others else 1):
            tries = (
                tried
                for steps in range(first, STEPS_UP)
                for one in near
                if (tried := with_sizes(one, {name: ranges[name][1], **{at: ranges[at][0] + steps for at in others}}))
                and op.fits(tried, most_bytes)
                and accepts(tried)
            )
            found += itertools.islice(tries, 1)
    return tuple(dict.fromkeys(found))


def crossed_parameters(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return a few workloads with two parameters that are listed, but never together, such as padding and smoothing.

    If there is only one such pair, it is tried at a large workload and at a small one, in which means hide less.
    """
    dims = dims_of(op)
    listed = [{pair for pair in workload.parameters if pair[0] not in dims} for workload in op.listed]
    every = sorted(set().union(*listed), key=str)
    pairs = [(a, b) for a, b in itertools.combinations(every, 2) if a[0] != b[0]]
    apart = [pair for pair in pairs if not any(listed_ones.issuperset(pair) for listed_ones in listed)]
    near = sorted(
        listed_within(op, accepts, most_bytes), key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one))
    )
    found: list[Workload] = []
    exact = [one for one in near if one.dtype == near[0].dtype and 1 not in op.sizes(one).values()]
    for pair, at in itertools.product(
        rng.sample(apart, len(apart)), (near, exact[::-1]) if len(apart) == 1 else (near,)
    ):
        if len(found) == MOST_CROSSED:
            break
        changed = dict(pair)
        tries = (
            replace(one, parameters=tuple((name, changed.get(name, value)) for name, value in one.parameters))
            for one in at
        )
        fitting = (one for one in tries if op.fits(one, most_bytes) and accepts(one))
        found += itertools.islice(fitting, 1)
    return tuple(dict.fromkeys(found))


def with_one_change(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return workloads whose parameters and filters are listed together, except one parameter.

    Each combination that is listed without one parameter occurs with another value of it. A kernel may take the
    parameter for granted where the others are as usual: a padding of one for three taps with a stride of one. An
    integer of which only one value is listed does not change, because it may be an axis.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    names = [name for name in op.parameters if name not in dims]
    of_filters = {*integer_parameters(op), *(name for spec in op.weights for name in spec.dims)} & dims
    names += sorted(name for name in of_filters if ranges.get(name, (0, 0))[1] in TAPS)
    near = sorted(
        listed_within(op, accepts, most_bytes),
        key=lambda one: (-DTYPES[one.dtype].itemsize, _few_results(op, one), op.nbytes(one)),
    )

    def fits(tried: Workload) -> bool:
        several = all(size > 1 for name, size in op.sizes(tried).items() if name in op.derived)
        return several and op.fits(tried, most_bytes) and accepts(tried)

    able = [name for name in names if name in ranges or isinstance(op.parameters.get(name), float)]
    found: list[Workload] = []
    for changed in (name for name in able if name not in of_filters and len(names) > 1):
        known: dict[tuple[tuple[str, Number], ...], list[Number]] = {}
        for given in ({**dict(one.dims), **dict(one.parameters)} for one in op.listed):
            known.setdefault(tuple((name, given[name]) for name in names if name != changed), []).append(given[changed])
        for kept, listed in known.items():
            others = _others(listed, list(itertools.chain.from_iterable(known.values())), rng)
            tries = (_with(one, {**dict(kept), changed: value}) for value in others for one in near)
            found += itertools.islice(filter(fits, tries), 1)
    return tuple(dict.fromkeys(found))


def _with(near: Workload, known: Mapping[str, Number]) -> Workload:
    sized = with_sizes(near, {name: value for name, value in known.items() if isinstance(value, int)})
    return replace(sized, parameters=tuple((name, known.get(name, value)) for name, value in near.parameters))


def _others(listed: Collection[Number], elsewhere: Collection[Number], rng: random.Random) -> list[Number]:
    """Return values of a parameter other than the listed ones, which `elsewhere` includes, in random order."""
    if isinstance(value := next(iter(listed)), float):
        return [other_float(value, rng) for _ in range(FLOAT_TRIES)]
    values = sorted({*elsewhere, *range(max(0, int(min(elsewhere))), FEW)}.difference(listed))
    return rng.sample(values, len(values))


def _few_results(op: Op, workload: Workload) -> bool:
    return math.prod(op.shape(op.outputs[0], workload)) < MANY_ELEMENTS


def beyond_listed(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return workloads in which integer parameters exceed all listed ones, together if possible, else one at a time.

    A kernel may store a window, a stride or a number of groups in too few bits, or use an array of the largest listed
    size. Filters are the largest ones that are listed, if possible: a tap reaches farthest with the largest dilation.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    filters = dims.difference(op.varied[0].dims[:1])
    widest = {name: most for name, (_, most) in ranges.items() if name in filters and most <= MOST_TAPS}
    own = {name: ranges[name] for name in integer_parameters(op) if name in ranges and name not in dims}
    greatest = {name: max(-least, most) for name, (least, most) in own.items()}  # -100 is not a class, but 201 is

    def fits(tried: Workload) -> bool:
        return op.fits(tried, most_bytes) and accepts(tried)

    def first(names: Iterable[str]) -> list[Workload]:
        tries = _with_greater(op, {name: greatest[name] for name in names})
        both = ([with_sizes(one, widest), one] for one in tries)
        return list(itertools.islice(filter(fits, itertools.chain.from_iterable(both)), 1))

    together = first(greatest) if len(greatest) > 1 else []
    return tuple(together or itertools.chain.from_iterable(first((name,)) for name in greatest))


def _with_greater(op: Op, greatest: Mapping[str, int]) -> Iterator[Workload]:
    """Yield small listed workloads with parameters up to twice as large.

    A dim may have to be a multiple of a parameter.
    """
    near = sorted((*op.emulated, *op.awkward), key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one)))
    for share in MORE:
        sizes = {name: most + most // share + 1 for name, most in greatest.items()}
        tries = [with_sizes(one, sizes) for one in near]
        yield from tries
        for tried, times in itertools.product(tries[:NEAREST] if len(sizes) == 1 else (), (1, 2)):
            multiple = times * next(iter(sizes.values()))
            few = [name for name, _ in tried.dims if name in ranges_of(op.listed)]
            for names in itertools.chain.from_iterable(itertools.combinations(few, count) for count in (1, 2)):
                yield with_sizes(tried, dict.fromkeys(names, multiple))
