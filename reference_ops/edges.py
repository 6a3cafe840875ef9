"""Shapes at the edges of an op's range: dims of 1 to 4, equal dims, square matrices, and long rows."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from reference_ops.op import DTYPES, Op, Workload
from reference_ops.rows import with_rows
from reference_ops.shapes import (
    MANY_ELEMENTS,
    NEAREST,
    dims_of,
    integer_parameters,
    integers_of,
    listed_within,
    ranges_of,
    with_sizes,
)

# sizes up to this are special cases in kernels: one batch, two heads, three colours, the elements of a vector
MOST_SMALL = 4
MOST_LARGE = 2  # number of sizes beside a small size that must be larger
LEAST_EQUAL, MOST_EQUAL = 2, 6  # smallest size that two dims have in common, and number of workloads with equal sizes
EQUAL_TRIES = 12
FEW_SIZES = 3  # number of sizes above which the number of rows need not equal another size
EQUALS = (5, 6, 8, 12, 16, 24)
QUOTIENTS, DIVISORS = (2, 3, 4), (2, 3, 4, 5)
REACH = 17  # sizes below this are tried when a small size must follow from them
RANK_OF_MATRICES = 2


def with_other_elements(
    op: Op, workloads: Iterable[Workload], accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return these workloads with elements of another size, if the op and the kernel accept that.

    Kernels often have separate code for dtypes of 16 bits, with other loops and indices.
    """
    found: list[Workload] = []
    for one in workloads:
        own = DTYPES[one.dtype].itemsize
        others = [replace(one, dtype=name) for name in op.dtypes if DTYPES[name].itemsize != own]
        fitting = [tried for tried in others if op.fits(tried, most_bytes) and accepts(tried)]
        found += rng.sample(fitting, min(1, len(fitting)))
    return tuple(dict.fromkeys(found))


def exceeds_16_bits(op: Op, workload: Workload) -> bool:
    """Return whether a size, or the number of elements behind one index of the first dim, does not fit into 16 bits."""
    shapes = [op.shape(tensor, workload) for tensor in (*op.inputs, *op.outputs)]
    return max(max(*shape, math.prod(shape[1:])) for shape in shapes if shape) >= 2**16


def small_sizes(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return workloads for the values 1 to 4 of each dim and integer parameter that no listed workload has.

    Half of the sizes of a workload, or two, are larger, because a size of 1 often matters only beside larger ones.
    Sizes that depend on each other, such as heads and groups of heads, change together. Dims of outputs follow from the
    others.
    """
    near, free = listed_within(op, accepts, most_bytes), _free_sizes(op)
    listed = [few for few in (_few(op, workload, free) for workload in near) if _is_mixed(few, free)]
    left = set(_small_pairs(op, free)).difference(*listed)

    given = {name for one in near[:1] for name, _ in _every_size(one)}
    following = _following(op, rng.sample(near, len(near)), {pair for pair in left if pair[0] not in given}, free)

    def fits(tried: Workload) -> bool:
        return op.fits(tried, most_bytes) and accepts(tried)

    found: list[Workload] = []
    for pair in rng.sample(sorted(left), len(left)):
        if pair not in left:
            continue
        left.discard(pair)
        at = sorted(rng.sample(near, len(near)), key=lambda one: math.prod(op.shape(op.varied[0], one)) < MANY_ELEMENTS)
        tries = following[pair] if pair in following else _with_small(op, at, pair, free)
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
            # parameters may have little influence
            found.append(exact if workload.parameters and fits(exact) else workload)
    return tuple(found)


def small_quotients(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return workloads in which a size is 2, 3 and 4 times another that must divide it, unless such sizes are listed.

    For example, the number of groups of heads must divide the number of heads. The divisor is above one, because a
    single group does not show where the next one begins.
    """
    near = sorted(listed_within(op, accepts, most_bytes), key=op.nbytes, reverse=True)
    names = [name for name, _ in _every_size(op.listed[0]) if name in ranges_of(op.listed)]
    found: list[Workload] = []
    for over, under in itertools.permutations(names, 2):
        sizes = [dict(_every_size(one)) for one in op.listed]
        if not all(one[under] > 0 == one[over] % one[under] for one in sizes) or not _must_divide(op, over, under):
            continue
        known = {one[over] // one[under] for one in sizes if one[under] > 1}
        for quotient in sorted(set(QUOTIENTS) - known):
            tries = (with_sizes(one, {over: quotient * least, under: least}) for one in near for least in DIVISORS)
            found += itertools.islice((one for one in tries if op.fits(one, most_bytes) and accepts(one)), 1)
    return tuple(dict.fromkeys(found))


def _must_divide(op: Op, over: str, under: str) -> bool:
    """Return whether, at every listed workload, the size plus one is not valid, but the size plus the divisor is."""
    several = [(one, dict(_every_size(one))) for one in op.listed if dict(_every_size(one))[under] > 1]
    grown = [
        [op.is_valid(with_sizes(one, {over: sizes[over] + more})) for more in (1, sizes[under])]
        for one, sizes in several
    ]
    return bool(grown) and all(valid == [False, True] for valid in grown)


def equal_sizes(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return workloads that make any two sizes equal that are equal in no listed workload.

    Each workload covers several pairs. Listed sizes differ, so that a kernel cannot confuse them. Many kernels treat
    square images and matrices, or as many groups as channels, differently. About half of the sizes of each workload
    equal no other size, because some faults show only if the height is unchanged and the width changes.
    """
    near, ranges = listed_within(op, accepts, most_bytes), ranges_of(op.listed)
    # a kernel rarely compares the number of rows with other sizes
    rows = op.varied[0].dims[:1] if len(ranges) > FEW_SIZES else ()
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
            fitting = (one for one in alike if op.fits(one, most_bytes) and accepts(one))
            if equal := next(fitting, None):
                workload = equal
                fixed.update(pair)
        if fixed:
            left -= _equal_pairs(workload)
            found.append(workload)
    return tuple(dict.fromkeys(found))


def square_matrices(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload of a product in which every matrix is square, unless a small listed one is like that.

    A kernel that takes such a matrix for its transpose reads no other memory. The weight of a convolution is a matrix
    if its window has one element, and kernels often treat it as one if the stride is one and there is no padding.
    `equal_sizes` leaves most sizes different.
    """
    ranges, near, dims = ranges_of(op.listed), listed_within(op, accepts, most_bytes), dims_of(op)
    if op.matrix_flops is None or not near:
        return ()
    of_weights = {name for spec in op.weights for name in spec.dims if name in ranges}
    elsewhere = {name for spec in (*op.inputs, *op.outputs) if spec not in op.weights for name in spec.dims}
    windows = of_weights - elsewhere
    of_matrices = {name for spec in op.inputs if len(spec.dims) == RANK_OF_MATRICES for name in spec.dims}
    sides = (of_weights | (of_matrices & ranges.keys())) - windows
    if len(sides) < RANK_OF_MATRICES:
        return ()
    least = {name: ranges[name][0] for name in integer_parameters(op) if name in ranges and name not in dims}
    tries = (
        with_sizes(one, {**least, **dict.fromkeys(windows, 1), **dict.fromkeys(sides, size)})
        for size in reversed(EQUALS)
        for one in near
    )
    found = next((one for one in tries if op.fits(one, most_bytes) and accepts(one)), None)
    return (found,) if found and found not in near else ()


def _with_equal(
    near: Workload, pair: tuple[str, str], fixed: set[str], common: range, rng: random.Random
) -> Iterator[Workload]:
    """Yield workloads in which both sizes are equal. A size that is already fixed does not change."""
    if not fixed.issuperset(pair):
        sizes = dict(_every_size(near))
        usual = [*(sizes[name] for name in pair), *rng.sample(EQUALS, len(EQUALS))]
        values = [sizes[name] for name in pair if name in fixed] or usual
        yield from (with_sizes(near, dict.fromkeys(pair, value)) for value in values if value in common)


def _alike(workload: Workload, names: Iterable[str]) -> int:
    """Return how many of these sizes are equal to another size."""
    sizes = dict(_every_size(workload))
    return sum(count for count in Counter(sizes[name] for name in names).values() if count > 1)


def long_rows(op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int) -> tuple[Workload, ...]:
    """Return the longest rows of small listed matrices: for each dtype one row per distribution, and a single row.

    A kernel may treat long rows, or few rows, differently, and listed workloads have only one or two of these.
    """
    of_matrices = op.by_rows and op.sharing_rows and len(op.varied[0].dims) == RANK_OF_MATRICES
    if not of_matrices or op.varied[0].dims[0] not in ranges_of(op.listed):
        return ()
    longest = sorted(
        listed_within(op, accepts, most_bytes), key=lambda one: op.shape(op.varied[0], one)[1], reverse=True
    )

    def with_dtype(dtype: str, rows: int) -> Iterator[Workload]:
        tries = (with_rows(op, replace(one, dtype=dtype), rows) for one in longest)
        fitting = (one for one in tries if op.fits(one, most_bytes) and accepts(one))
        return itertools.islice(fitting, 1)

    many = (with_dtype(dtype, 1 + len(op.values)) for dtype in op.dtypes)
    return (*itertools.chain.from_iterable(many), *with_dtype(rng.choice(op.dtypes), 1))


def _common(ranges: Mapping[str, tuple[int, int]], names: Iterable[str]) -> range:
    """Return the sizes above one that lie within the ranges of all names."""
    own = [ranges[name] for name in names]
    return range(max(LEAST_EQUAL, *(least for least, _ in own)), min(most for _, most in own) + 1)


def _equal_pairs(workload: Workload) -> set[tuple[str, str]]:
    sizes = sorted(_every_size(workload))
    return {(one, other) for (one, a), (other, b) in itertools.combinations(sizes, 2) if a == b >= LEAST_EQUAL}


def _free_sizes(op: Op) -> dict[str, tuple[int, int]]:
    """Return the ranges of the dims and integer parameters whose listed values are partly small and partly not."""
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
    """Return whether small dims exceed small parameters. A window that covers a whole dim does not end inside it."""
    dims = dims_of(op)
    most = max((size for name, size in few if name not in dims), default=0)
    return most <= 1 or all(size > most for name, size in few if name in dims)


def _with_small(
    op: Op, near: Sequence[Workload], pair: tuple[str, int], free: Mapping[str, object]
) -> Iterator[Workload]:
    """Yield workloads with this size: first beside many large sizes, then with another size changed, too."""
    name, size = pair
    alone = [with_sizes(one, {name: size}) for one in near]
    alone.sort(key=lambda tried: len(_few(op, tried, free)))
    yield from alone
    for tried in alone[:NEAREST]:
        own = (other for other, _ in _every_size(tried) if other in ranges_of(op.listed) and other != name)
        yield from (with_sizes(tried, {other: size * times}) for other in own for times in (1, 2))


def _with_larger(op: Op, workload: Workload, pair: tuple[str, int]) -> Iterator[Workload]:
    """Yield workloads in which another size is larger, up to its value in a listed workload."""
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
