"""Shapes at the edges of an op's range: dims of 1 to 4, parameters at zero, at one, below zero and far apart."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from reference_ops.op import DTYPES, Op, Workload
from reference_ops.shapes import LEAST_DECAY, MOST_TAPS, dims_of, integers_of, ranges_of, with_rows, with_sizes

SPECIAL = (0.0, 10.0)  # of a floating-point parameter: no weight decay, a slope above 1, a scale far from the usual
LEAST_SIGNED = 0.01  # a parameter that is nowhere listed above this is an eps, which is never 1 or below zero
STEPS_UP = 8  # values above the least that are tried, where an op requires more: half a window for a padding
TERM_VANISHES = (0.0, 1.0)  # of the parameter, or of what it leaves to another term
MOST_SMALL = 4  # sizes that are special cases in kernels: one batch, two heads, three colours, the elements of a vector
MOST_LARGE = 2  # sizes beside small ones that must be larger
LEAST_EQUAL, MOST_EQUAL = 2, 6  # least size that two have in common; workloads with such sizes
EQUAL_TRIES = 12
FEW_SIZES = 3  # if an op has more, the number of rows need not equal another
EQUALS = (5, 6, 8, 12, 16, 24)
MOST_CROSSED = 2  # workloads with parameters that are listed, but not together
MORE = (1, 2, 10**6)  # parts of the greatest listed parameter that are added to it, and one
REACH = 17  # sizes below this are tried for a small one that follows from them
RANK_OF_MATRICES = 2
WIDE, WIDER = 128, 48  # added to the input of a window: more than any stride, and a multiple of many
NEAREST = 3  # listed workloads of which another size is changed too, where the op or the kernel requires it


def special_parameters(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each floating-point parameter and each value in `SPECIAL` that the op accepts.

    A scale or a slope is also drawn below zero. The other parameters are as listed. Of the listed workloads that fit,
    the largest that `accepts` takes is chosen.
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


def has_vanishing_term(op: Op, workload: Workload) -> bool:
    """Return whether a floating-point parameter other than an eps is 0 or 1 here, but in no listed workload.

    Then a term is multiplied by zero, and a kernel may leave it out. An eps is added.
    """
    for name, value in workload.parameters:
        listed = {dict(one.parameters)[name] for one in op.listed}
        if isinstance(value, float) and value in TERM_VANISHES and value not in listed and max(listed) >= LEAST_SIGNED:
            return True
    return False


def _special(listed: set[float]) -> Iterator[float]:
    """Yield special values of a parameter that are not listed; also one and a negative value if it is not an eps."""
    most = max(listed)
    values = SPECIAL if most < LEAST_SIGNED else (*SPECIAL, 1.0)
    yield from (value for value in values if value not in listed)
    if most >= LEAST_SIGNED and not LEAST_DECAY < most < 1:
        yield -most


def far_apart(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each integer parameter, with its greatest listed value and the least of related sizes.

    Related sizes are the other integer parameters and the sizes of filters: a stride beyond the window leaves gaps, and
    a padding beyond the filter makes windows outside the input. Sizes of tensors that are parameters stay as they are.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    parameters = [name for name in _integer_parameters(op) if name in ranges and name not in dims]
    filters = [name for name, (_, most) in ranges.items() if name in dims and most <= MOST_TAPS]
    found: list[Workload] = []
    for name in parameters:
        others = [other for other in (*parameters, *filters) if other != name]
        near = [one for one in (*op.emulated, *op.awkward) if op.nbytes(one) <= most_bytes]
        near.sort(key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one)))  # the most exact show errors best
        tries = (
            tried
            for steps in range(STEPS_UP)
            for one in near
            if (tried := with_sizes(one, {name: ranges[name][1], **{at: ranges[at][0] + steps for at in others}}))
            and op.is_valid(tried)
            and op.nbytes(tried) <= most_bytes
            and accepts(tried)
        )
        found += itertools.islice(tries, 1)
    return tuple(dict.fromkeys(found))


def crossed_parameters(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return a few workloads with two parameters that are listed, but never together, such as padding and smoothing.

    If there is one such pair, it is tried at a large workload and at a small one, whose means hide less.
    """
    dims = dims_of(op)
    listed = [{pair for pair in workload.parameters if pair[0] not in dims} for workload in op.listed]
    every = sorted(set().union(*listed), key=str)
    pairs = [(a, b) for a, b in itertools.combinations(every, 2) if a[0] != b[0]]
    apart = [pair for pair in pairs if not any(listed_ones.issuperset(pair) for listed_ones in listed)]
    near = sorted(_near(op, accepts, most_bytes), key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one)))
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
        fitting = (one for one in tries if op.is_valid(one) and op.nbytes(one) <= most_bytes and accepts(one))
        found += itertools.islice(fitting, 1)
    return tuple(dict.fromkeys(found))


def windows_past_borders(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload in which every window is one larger than its input, if a padding allows that.

    Then each window crosses both borders at once.
    """
    for one in _near(op, accepts, most_bytes):
        sizes = dict(_every_size(one))
        names = [name for name in sizes if name in ranges_of(op.listed)]
        moves = [pair for pair in itertools.permutations(names, 2) if _moves_over(op, one, *pair)]
        if not moves:
            continue
        for larger in range(STEPS_UP):
            grown = {window: sizes[window] + larger for window, _ in moves}
            tried = with_sizes(one, {**grown, **{over: grown[window] - 1 for window, over in moves}})
            if min(grown.values()) > 1 and op.is_valid(tried) and op.nbytes(tried) <= most_bytes and accepts(tried):
                return (tried,)
    return ()


def overlapping_windows(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload with windows larger than any listed one and the least stride, if parameters give both.

    Both are parameters in pooling, which has no weights. A place then lies in more windows than at any listed workload.
    `beyond_listed` has large strides beside such windows.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    parameters = [name for name in _integer_parameters(op) if name in ranges and name not in dims and not op.weights]
    for one in sorted(_near(op, accepts, most_bytes), key=lambda one: (-DTYPES[one.dtype].itemsize, -op.nbytes(one))):
        moved = [name for name, _ in _every_size(one) if name in ranges and name not in parameters]
        windows = [name for name in parameters if any(_moves_over(op, one, name, over) for over in moved)]
        least = {name: ranges[name][0] for name in parameters}
        for share in MORE if 0 < len(windows) < len(parameters) else ():
            larger = {name: ranges[name][1] + ranges[name][1] // share + 1 for name in windows}
            tried = with_sizes(one, {**least, **larger})
            if op.is_valid(tried) and op.nbytes(tried) <= most_bytes and accepts(tried):
                return (tried,)
    return ()


def _moves_over(op: Op, workload: Workload, window: str, over: str) -> bool:
    """Return whether one size is a window over the other: then a derived dim is unchanged if both grow equally."""
    sizes = dict(_every_size(workload))

    def derived(**more: int) -> dict[str, int]:
        tried = with_sizes(workload, {name: sizes[name] + many for name, many in {over: WIDE, **more}.items()})
        return {name: size for name, size in op.sizes(tried).items() if name not in sizes}

    alone, both, longer = derived(), derived(**{window: WIDER, over: WIDE + WIDER}), derived(**{over: WIDE + WIDER})
    return any(size == both[name] < longer[name] for name, size in alone.items())


def _integer_parameters(op: Op) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for workload in op.listed for name, _ in integers_of(workload)))


def small_sizes(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return workloads in which each dim and integer parameter is once 1, 2, 3 and 4, unless a listed workload has it.

    Half of the sizes of a workload, or two, are larger, because a size of 1 often matters only beside larger ones.
    Sizes that depend on each other, such as heads and groups of heads, change together. Dims of outputs follow from the
    others.
    """
    near, free = _near(op, accepts, most_bytes), _free_sizes(op)
    listed = [few for few in (_few(op, workload, free) for workload in near) if _is_mixed(few, free)]
    left = set(_small_pairs(op, free)).difference(*listed)

    given = {name for one in near[:1] for name, _ in _every_size(one)}
    following = _following(op, rng.sample(near, len(near)), {pair for pair in left if pair[0] not in given}, free)

    def fits(tried: Workload) -> bool:
        return op.is_valid(tried) and op.nbytes(tried) <= most_bytes and accepts(tried)

    found: list[Workload] = []
    for pair in rng.sample(sorted(left), len(left)):
        if pair not in left:
            continue
        left.discard(pair)
        tries = following[pair] if pair in following else _with_small(op, rng.sample(near, len(near)), pair, free)
        if workload := next(filter(fits, tries), None):
            for other in rng.sample(sorted(left), len(left)):
                tried = with_sizes(workload, dict((other,)))
                few = _few(op, tried, free)
                if {pair, other} <= few and _is_mixed(few, free) and _has_room(op, few) and fits(tried):
                    workload = tried
            if max(op.sizes(workload).values()) <= MOST_SMALL:
                beside = (one for one in _with_larger(op, workload, pair) if pair in _few(op, one, free))
                workload = next(filter(fits, beside), workload)
            left -= _few(op, workload, free)
            exact = replace(workload, dtype=max(op.dtypes, key=lambda name: DTYPES[name].itemsize))
            found.append(exact if workload.parameters and fits(exact) else workload)  # parameters may matter little
    return tuple(found)


def equal_sizes(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return workloads in which any two sizes are equal that are equal in no listed one.

    Each workload covers several pairs. Listed sizes differ, so that a kernel cannot confuse them. Many kernels treat
    square images and matrices, or as many groups as channels, differently. About half of the sizes of each workload
    equal no other, because an unchanged height shows a fault only if the width changes.
    """
    near, ranges = _near(op, accepts, most_bytes), ranges_of(op.listed)
    rows = op.varied[0].dims[:1] if len(ranges) > FEW_SIZES else ()  # a kernel rarely compares their number with sizes
    names = sorted(name for name in ranges if name not in rows)
    pairs = {pair for pair in itertools.combinations(names, 2) if _common(ranges, pair)}
    left = pairs.difference(*(_equal_pairs(workload) for workload in near))
    unlike = sorted(near, key=lambda one: _alike(one, names))[: (len(near) + 1) // 2]
    found: list[Workload] = []
    for _ in range(EQUAL_TRIES if near else 0):
        if not left or len(found) == MOST_EQUAL:
            break
        workload, fixed = rng.choice(unlike), set[str]()
        most = max((len(names) + 1) // 2, 2 + _alike(workload, names))
        for pair in rng.sample(sorted(left), len(left)):
            tries = _with_equal(workload, pair, fixed, _common(ranges, pair), rng)
            alike = (one for one in tries if _alike(one, names) <= most)
            fitting = (one for one in alike if op.is_valid(one) and op.nbytes(one) <= most_bytes and accepts(one))
            if equal := next(fitting, None):
                workload = equal
                fixed.update(pair)
        if fixed:
            left -= _equal_pairs(workload)
            found.append(workload)
    return tuple(dict.fromkeys(found))


def _with_equal(
    near: Workload, pair: tuple[str, str], fixed: set[str], common: range, rng: random.Random
) -> Iterator[Workload]:
    """Yield workloads in which both sizes are equal; a size that is fixed already does not change."""
    if not fixed.issuperset(pair):
        sizes = dict(_every_size(near))
        usual = [*(sizes[name] for name in pair), *rng.sample(EQUALS, len(EQUALS))]
        values = [sizes[name] for name in pair if name in fixed] or usual
        yield from (with_sizes(near, dict.fromkeys(pair, value)) for value in values if value in common)


def _alike(workload: Workload, names: Iterable[str]) -> int:
    """Return how many of these sizes are equal to another."""
    sizes = dict(_every_size(workload))
    return sum(count for count in Counter(sizes[name] for name in names).values() if count > 1)


def long_rows(op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int) -> tuple[Workload, ...]:
    """Return the longest rows of small listed matrices: for each dtype one row per distribution, and a single row.

    A kernel may treat long rows, or few rows, differently, and listed workloads have one or two of these.
    """
    of_matrices = op.by_rows and op.sharing_rows and len(op.varied[0].dims) == RANK_OF_MATRICES
    if not of_matrices or op.varied[0].dims[0] not in ranges_of(op.listed):
        return ()
    longest = sorted(_near(op, accepts, most_bytes), key=lambda one: op.shape(op.varied[0], one)[1], reverse=True)

    def with_dtype(dtype: str, rows: int) -> Iterator[Workload]:
        tries = (with_rows(op, replace(one, dtype=dtype), rows) for one in longest)
        fitting = (one for one in tries if op.is_valid(one) and op.nbytes(one) <= most_bytes and accepts(one))
        return itertools.islice(fitting, 1)

    many = (with_dtype(dtype, 1 + len(op.values)) for dtype in op.dtypes)
    return (*itertools.chain.from_iterable(many), *with_dtype(rng.choice(op.dtypes), 1))


def _near(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> list[Workload]:
    return [one for one in (*op.emulated, *op.awkward) if op.nbytes(one) <= most_bytes and accepts(one)]


def _common(ranges: Mapping[str, tuple[int, int]], names: Iterable[str]) -> range:
    """Return the sizes above one that lie within the ranges of all names."""
    own = [ranges[name] for name in names]
    return range(max(LEAST_EQUAL, *(least for least, _ in own)), min(most for _, most in own) + 1)


def _equal_pairs(workload: Workload) -> set[tuple[str, str]]:
    sizes = sorted(_every_size(workload))
    return {(one, other) for (one, a), (other, b) in itertools.combinations(sizes, 2) if a == b >= LEAST_EQUAL}


def _free_sizes(op: Op) -> dict[str, tuple[int, int]]:
    """Return the ranges of the dims and integer parameters of which some listed ones are small and others are not."""
    seen: dict[str, set[int]] = {}
    for workload in op.listed:
        for name, size in {**op.sizes(workload), **dict(integers_of(workload))}.items():
            seen.setdefault(name, set()).add(size)
    used = dims_of(op).union(*({name for name, _ in integers_of(workload)} for workload in op.listed[:1]))
    ranges = {name: (min(sizes), max(sizes)) for name, sizes in seen.items() if name in used}
    return {name: (least, most) for name, (least, most) in ranges.items() if least <= MOST_SMALL <= most != least}


def _small_pairs(op: Op, free: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, int]]:
    """Yield each small size of each name; a parameter that is not a dim stays within its listed range."""
    for name, (least, most) in free.items():
        yield from ((name, size) for size in range(max(least, name in dims_of(op)), min(most, MOST_SMALL) + 1))


def _few(op: Op, workload: Workload, free: Mapping[str, object]) -> set[tuple[str, int]]:
    sizes = {**op.sizes(workload), **dict(integers_of(workload))}
    return {(name, size) for name, size in sizes.items() if name in free and size <= MOST_SMALL}


def _every_size(workload: Workload) -> tuple[tuple[str, int], ...]:
    return (*workload.dims, *integers_of(workload))


def _is_mixed(few: set[tuple[str, int]], free: Mapping[str, object]) -> bool:
    return len(free) - len(few) >= min(MOST_LARGE, len(free) // 2)


def _has_room(op: Op, few: Iterable[tuple[str, int]]) -> bool:
    """Return whether small dims exceed small parameters: a window that covers a whole dim has no end inside it."""
    dims = dims_of(op)
    most = max((size for name, size in few if name not in dims), default=0)
    return most <= 1 or all(size > most for name, size in few if name in dims)


def _with_small(
    op: Op, near: Sequence[Workload], pair: tuple[str, int], free: Mapping[str, object]
) -> Iterator[Workload]:
    """Yield workloads with this size: first beside many large ones, then with another size changed, too."""
    name, size = pair
    alone = [with_sizes(one, {name: size}) for one in near]
    alone.sort(key=lambda tried: len(_few(op, tried, free)))
    yield from alone
    for tried in alone[:NEAREST]:
        own = (other for other, _ in _every_size(tried) if other in ranges_of(op.listed) and other != name)
        yield from (with_sizes(tried, {other: size * times}) for other in own for times in (1, 2))


def _with_larger(op: Op, workload: Workload, pair: tuple[str, int]) -> Iterator[Workload]:
    """Yield workloads in which another size is larger, up to its value in a listed one."""
    for name, (_, most) in ranges_of(op.listed).items():
        if name != pair[0] and most > MOST_SMALL:
            yield with_sizes(workload, {name: min(most, REACH)})


def _following(
    op: Op, near: Sequence[Workload], pairs: set[tuple[str, int]], free: Mapping[str, object]
) -> dict[tuple[str, int], list[Workload]]:
    """Return workloads for each of these derived sizes, first those with many large sizes."""
    found: dict[tuple[str, int], list[Workload]] = {pair: [] for pair in pairs}
    tries = (
        with_sizes(one, {name: size})
        for one in near[: 2 * NEAREST if pairs else 0]
        for name in ranges_of(op.listed)
        for size in range(1, REACH)
    )
    for tried in tries:
        few = _few(op, tried, free)
        for pair in few & pairs:
            found[pair].append(tried)
    return {pair: sorted(some, key=lambda tried: len(_few(op, tried, free))) for pair, some in found.items()}


def beyond_listed(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return workloads in which integer parameters exceed all listed ones, together if possible, else one at a time.

    A kernel may keep a window, a stride or a number of groups in too few bits, or in an array of the largest listed
    size.
    """
    ranges, dims = ranges_of(op.listed), dims_of(op)
    own = {name: ranges[name] for name in _integer_parameters(op) if name in ranges and name not in dims}
    greatest = {name: max(-least, most) for name, (least, most) in own.items()}  # -100 is no class, but 201 is

    def fits(tried: Workload) -> bool:
        return op.is_valid(tried) and op.nbytes(tried) <= most_bytes and accepts(tried)

    def first(names: Iterable[str]) -> list[Workload]:
        return list(itertools.islice(filter(fits, _with_greater(op, {name: greatest[name] for name in names})), 1))

    together = first(greatest) if len(greatest) > 1 else []
    return tuple(together or itertools.chain.from_iterable(first((name,)) for name in greatest))


def _with_greater(op: Op, greatest: Mapping[str, int]) -> Iterator[Workload]:
    """Yield small listed workloads with parameters twice as great or less; a dim may have to be a multiple of one."""
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
