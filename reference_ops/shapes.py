"""Held-out shapes: random workloads between the declared ones, for which a kernel cannot be tuned or special-cased."""

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

from reference_ops.op import DTYPES, Number, Op, Workload

TRIES_EACH = 120
BEST_OF = 24  # number of candidates that the kernel accepts; the one with the fewest listed sizes is chosen
TILE = 32
MULTIPLES = (8, 32, 128)  # multiples that the `when` of kernels with wide loads, warps and tiles requires
KEPT = 0.4  # probability that a dim keeps a declared size, for kernels made for a single size
NEARBY = 2  # large shapes are up to this many times smaller or larger than a declared one
RANK_OF_IMAGES = 3  # tensors of more dims are images or volumes
SHRINKS = 12  # number of times that a size is halved until it fits
STRETCH = (1.1, 1.5)  # range of a stretched size, relative to the greatest listed size
STRETCH_OF_IMAGES = (1.25, 1.5)  # range for each dim of an image, so that 224 x 224 becomes more than 2**16 elements
LESS = 0.95  # value of a multiple relative to a prime of almost the same size, which shows errors in tails, too
LITTLE_LESS = 0.97  # value of the prime below a multiple, which fits wherever the multiple does
# ratio of a size to the power of two below it, so that the prime below the size is beyond the power, too
PAST_POWER = 1.02
RANK_OF_VOLUMES, EDGE_OF_VOLUMES = 4, 43  # tensors of more dims; 41**3, from the prime below 43, exceeds 2**16
EDGE_OF_PLANES, INDEX_DTYPE = 256, "int64"
PAST_16_BITS = (66_000, 72_000)  # range of the size of a dim beyond 16 bits
PAST_8_BITS = (263, 300)  # range of the size of a dim beyond 8 bits; the prime below the size is beyond 8 bits, too
LONG, MANY = 1000, 48  # a dim with a listed size as long as this may be longer in use
MOST_TAPS = 16  # greatest listed size of a filter; a dim of which larger sizes are listed is not a filter
SPREAD = 30.0  # largest factor or divisor of a floating-point parameter, or of the distance of a decay from 1
MANY_ELEMENTS = 256  # with fewer elements, a fault that affects only a few may not appear
STEPS_UP = 8  # number of values above the least to try where an op requires more, such as half a window
MORE = (1, 2, 10**6)  # divisors: the greatest listed parameter divided by each is added to it, plus one
NEAREST = 3  # number of listed workloads of which another size is changed, too, where the op or the kernel requires it
LEAST_DECAY = 0.5  # a parameter from this value up to 1 is a decay, whose distance from 1 matters


def held_out(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, count: int, most_bytes: int, least_bytes: int = 0
) -> tuple[Workload, ...]:
    """Return up to `count` different workloads that `accepts` allows and the op's file does not list.

    Large workloads, of `least_bytes` or more, have odd sizes if possible; small ones show errors in loops and tails.
    """
    taken = {(workload.dims, workload.parameters) for workload in op.listed}
    ranges = ranges_of(op.listed)
    models = [workload for workload in op.listed if op.nbytes(workload) >= least_bytes]
    usual = {size for workload in op.listed for size in workload.dims if size[0] in ranges}
    numbers = {parameter for workload in op.listed for parameter in integers_of(workload)}

    def tries(dtype: str, kept: float) -> Iterator[Workload]:
        for attempt in range(TRIES_EACH):
            early = attempt < TRIES_EACH // 2  # later attempts are less strict, for kernels that accept few shapes
            near = rng.choice(models)
            within, kinds = (_nearby(near, ranges), ODD if early else ALL) if least_bytes else (ranges, ALL)
            near = replace(near, dtype=dtype if early else rng.choice(op.dtypes))
            tried = _drawn(op, near, within, rng, most_bytes, kinds, kept if early else KEPT)
            new = (tried.dims, tried.parameters) not in taken
            if new and op.is_valid(tried) and least_bytes <= op.nbytes(tried) <= most_bytes and accepts(tried):
                yield tried

    found: list[Workload] = []
    for dtype, new_sizes in _dtypes_in_turn(op, rng, count, first=not least_bytes):
        few = itertools.islice(tries(dtype, 0 if new_sizes else KEPT), BEST_OF)
        if chosen := _strangest(few, usual if new_sizes else set(), numbers):
            found.append(chosen)
            taken.add((chosen.dims, chosen.parameters))
    return tuple(found)


def stretched(op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each dim in which the dim exceeds its listed sizes, if the bytes allow it.

    A parameter that is the size of a tensor counts as a dim. The other sizes are those of a small listed workload, the
    largest that leaves enough bytes. The last two dims of an image are also stretched together. Such workloads reveal
    counters and indices of too few bits, and loops that end at the largest listed size.
    """
    greatest = {name: most for name, (_, most) in ranges_of(op.listed).items()}
    every = (*op.inputs, *op.outputs)
    names: list[tuple[str, ...]] = [(name,) for name in greatest if name in dims_of(op)]
    names += dict.fromkeys(tensor.dims[-2:] for tensor in every if len(tensor.dims) > RANK_OF_IMAGES)
    found: list[Workload] = []
    for together in (some for some in names if set(some) <= greatest.keys()):
        stretch = STRETCH if len(together) == 1 else STRETCH_OF_IMAGES
        sizes = {name: round(rng.uniform(*_beyond(greatest[name], *stretch))) for name in together}
        found += _longest(op, sizes, SHRINKS, lambda tried: op.nbytes(tried) <= most_bytes and accepts(tried))
    return tuple(dict.fromkeys(found))


def past_few_bits(
    op: Op, accepts: Callable[[Workload], bool], rng: random.Random, most_bytes: int
) -> tuple[Workload, ...]:
    """Return a workload for each long dim that makes it slightly too long for 16 bits, or for 8, if no listed size is.

    In another workload, a volume has too many places for 16 bits. `stretched` does the same for images.
    """
    greatest = {name: most for name, (_, most) in ranges_of(op.listed).items() if name in dims_of(op)}
    every = [
        {name: rng.randint(*past)}
        for name, most in greatest.items()
        for least, past in ((LONG, PAST_16_BITS), (MANY, PAST_8_BITS))
        if least <= most < past[0]
    ]
    tensors = (tensor for tensor in (*op.inputs, *op.outputs) if len(tensor.dims) > RANK_OF_VOLUMES)
    volumes = dict.fromkeys(tensor.dims[2:] for tensor in tensors)
    long = {name for name, (_, most) in ranges_of(op.listed).items() if most > MOST_TAPS}
    every += [dict.fromkeys(names, EDGE_OF_VOLUMES) for names in volumes if long.issuperset(names)]
    found: list[Workload] = []
    for sizes in every:
        found += _longest(op, sizes, 1, lambda tried: op.nbytes(tried) <= most_bytes and accepts(tried))
    if any(spec.dtype == INDEX_DTYPE and len(spec.dims) > RANK_OF_VOLUMES for spec in op.inputs):
        found += _with_planes(op, accepts, most_bytes)
    return tuple(dict.fromkeys(found))


def _with_planes(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> Iterator[Workload]:
    """Yield a workload per size of elements with two planes of 2**16 places, so that indices have equal low bits."""
    for names in dict.fromkeys(spec.dims for spec in op.outputs if len(spec.dims) > RANK_OF_VOLUMES):
        *leading, depth, height, width = names
        sizes = {**dict.fromkeys(leading, 1), depth: 2, height: EDGE_OF_PLANES, width: EDGE_OF_PLANES}
        tries = (with_sizes(near, sizes) for near in (*op.emulated, *op.awkward))
        fitting = [one for one in tries if op.fits(one, most_bytes) and accepts(one)]
        yield from {DTYPES[one.dtype].itemsize: one for one in reversed(fitting)}.values()


def powers_of_two(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> tuple[Workload, ...]:
    """Return a workload for each long dim, with the largest power of two that fits, and a workload for all other dims.

    Such sizes are multiples of every tile, and a kernel may treat the last whole tile as an empty rest. Dims of small
    listed workloads are rarely multiples of large tiles. Dims of images stay together, and independent rows are left
    out, because tiles lie within rows.
    """
    rows = op.varied[0].dims[:1] if op.by_rows and op.sharing_rows else ()
    greatest = {name: most for name, (_, most) in ranges_of(op.listed).items() if name in dims_of(op) and most >= MANY}
    powers = {name: 2 ** (most.bit_length() - 1) for name, most in greatest.items() if name not in rows}
    of_images = any(len(tensor.dims) > RANK_OF_IMAGES for tensor in (*op.inputs, *op.outputs))
    alone = [name for name in powers if greatest[name] >= LONG and not of_images]
    others = {name: power for name, power in powers.items() if name not in alone}
    found: list[Workload] = []
    for sizes in filter(None, (*({name: powers[name]} for name in alone), others)):
        tries = (_halved(op, near, sizes, accepts, most_bytes) for near in (*op.emulated, *op.awkward))
        in_order = sorted(
            filter(None, tries),
            key=lambda one: (1 not in op.sizes(one).values(), sizes_of(one)[next(iter(sizes))], -op.nbytes(one)),
        )
        found += in_order[-1:]
    return tuple(dict.fromkeys(found))


def _halved(
    op: Op, near: Workload, sizes: Mapping[str, int], accepts: Callable[[Workload], bool], most_bytes: int
) -> Workload | None:
    """Return the workload with other sizes of some dims; the largest is halved until the workload is valid and fits."""
    left = dict(sizes)
    while max(left.values()) > 1:
        tried = with_sizes(near, left)
        if op.fits(tried, most_bytes) and accepts(tried):
            return tried
        left[max(left, key=left.__getitem__)] //= 2
    return None


def dims_of(op: Op) -> set[str]:
    return {name for tensor in (*op.inputs, *op.outputs) for name in tensor.dims}


def _longest(op: Op, sizes: Mapping[str, int], shrinks: int, fits: Callable[[Workload], bool]) -> tuple[Workload, ...]:
    """Return the small listed workload that has the most bytes with these sizes; they are halved until one fits."""
    first = next(iter(sizes))
    for shrunk in range(shrinks):
        of_kinds = [
            ({name: kind(max(1, size >> shrunk)) for name, size in sizes.items()}, worth)
            for kind, worth in ((prime_below, 1.0), (_prime_below_multiple, LITTLE_LESS), (_to_multiple, LESS))
        ]
        tries = [
            (wanted[first] * worth, op.nbytes(tried), tried)
            for near in (*op.emulated, *op.awkward)
            for wanted, worth in of_kinds
            if (tried := _enlarged(op, near, wanted))
        ]
        in_order = sorted(tries, key=lambda one: one[:2], reverse=True)
        if longest := next((tried for _, _, tried in in_order if fits(tried)), None):
            return (longest,)
    return ()


def with_sizes(near: Workload, sizes: Mapping[str, int]) -> Workload:
    """Return the workload with other sizes of the dims and parameters that are named."""
    return Workload(
        near.dtype,
        tuple([(name, sizes.get(name, size)) for name, size in near.dims]),
        tuple([(name, sizes.get(name, value)) for name, value in near.parameters]),
    )


def _beyond(greatest: int, least: float, most: float) -> tuple[float, float]:
    """Return the range of a stretched size: beyond the next power of two, a common bound of kernels, if it is near."""
    bound = PAST_POWER * 2 ** greatest.bit_length()
    least, most = greatest * least, greatest * most
    return (max(least, bound) if bound < most else least), most


def _enlarged(op: Op, near: Workload, sizes: Mapping[str, int]) -> Workload | None:
    """Return the workload with other sizes of some dims; None if the sizes are not larger or not valid."""
    known = sizes_of(near)
    if all(size <= known[name] for name, size in sizes.items()):
        return None
    tried = with_sizes(near, sizes)
    return tried if op.is_valid(tried) else None


def sizes_of(workload: Workload) -> dict[str, int]:
    return dict((*workload.dims, *integers_of(workload)))


def _strangest(few: Iterable[Workload], usual: set[tuple[str, int]], numbers: set[tuple[str, int]]) -> Workload | None:
    """Return the workload with the fewest listed numbers or, if equal, the fewest new sizes that are tile multiples."""
    best: tuple[tuple[int, int], Workload] | None = None
    for tried in few:
        known = len(usual.intersection(tried.dims)) + len(numbers.intersection(integers_of(tried)))
        familiar = known, sum(size % TILE == 0 for _, size in tried.dims) if usual else 0
        if not best or familiar < best[0]:
            best = familiar, tried
        if not any(familiar):
            break
    return best[1] if best else None


def _dtypes_in_turn(op: Op, rng: random.Random, count: int, *, first: bool) -> Iterator[tuple[str, bool]]:
    """Yield each dtype once with new sizes only, if possible, and once with any sizes, so that no dtype is missed.

    With `first`, the most exact dtype with new sizes comes first, because it shows errors at such sizes best.
    """
    every = [(dtype, new_sizes) for dtype in op.dtypes for new_sizes in (True, False)]
    rng.shuffle(every)
    if first:
        widest = max(DTYPES[dtype].itemsize for dtype in op.dtypes)
        every.sort(key=lambda pair: not (pair[1] and DTYPES[pair[0]].itemsize == widest))
    return itertools.islice(itertools.cycle(every), count)


@lru_cache(maxsize=64)  # cached: each of the many ways to draw shapes needs them
def ranges_of(listed: tuple[Workload, ...]) -> Mapping[str, tuple[int, int]]:
    """Return the least and greatest size of every dim that varies."""
    sizes: dict[str, set[int]] = {}
    for workload in listed:
        for name, size in (*workload.dims, *integers_of(workload)):
            sizes.setdefault(name, set()).add(size)
    return {name: (min(seen), max(seen)) for name, seen in sizes.items() if len(seen) > 1}


def _nearby(near: Workload, ranges: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return ranges near the sizes of this workload, because the full ranges would hardly give any large workloads."""
    own = dict(near.dims)
    return {
        name: (max(least, own[name] // NEARBY), min(greatest, own[name] * NEARBY)) if name in own else (least, greatest)
        for name, (least, greatest) in ranges.items()
    }


def _drawn(
    op: Op,
    near: Workload,
    ranges: Mapping[str, tuple[int, int]],
    rng: random.Random,
    most_bytes: int,
    kinds: tuple["Kind", ...],
    kept: float,
) -> Workload:
    """Return a workload like a declared one, with some dims drawn anew and small enough."""
    dims, parameters = dict(near.dims), _parameters(near, ranges, rng)
    for name, (least, greatest) in ranges.items():
        if name in dims and rng.random() >= kept:
            dims[name] = _size(least, greatest, rng, kinds)
    tried = Workload(near.dtype, tuple(dims.items()), parameters)
    for name in rng.sample(list(ranges), len(ranges)):
        if name not in dims:
            continue
        if not op.is_valid(tried) or (excess := op.nbytes(tried) / most_bytes) <= 1:
            break
        fitting = max(1, int(dims[name] / excess))  # not the largest size that fits, which would be predictable
        dims[name] = max(ranges[name][0], _size(max(1, fitting // NEARBY), fitting, rng, kinds))
        tried = Workload(tried.dtype, tuple(dims.items()), parameters)
    return tried


def integers_of(workload: Workload) -> list[tuple[str, int]]:
    return [(name, value) for name, value in workload.parameters if isinstance(value, int)]


def integer_parameters(op: Op) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for workload in op.listed for name, _ in integers_of(workload)))


def listed_within(op: Op, accepts: Callable[[Workload], bool], most_bytes: int) -> list[Workload]:
    return [one for one in (*op.emulated, *op.awkward) if op.nbytes(one) <= most_bytes and accepts(one)]


def _parameters(
    near: Workload, ranges: Mapping[str, tuple[int, int]], rng: random.Random
) -> tuple[tuple[str, Number], ...]:
    """Draw floats within `SPREAD` of the listed values, and integers that are listed or lie between listed values."""
    drawn: list[tuple[str, Number]] = []
    for name, value in near.parameters:
        if isinstance(value, float):
            drawn.append((name, other_float(value, rng)))
        elif name not in ranges or rng.random() < KEPT:
            drawn.append((name, value))
        else:
            drawn.append((name, rng.randint(*ranges[name])))
    return tuple(drawn)


def other_float(value: float, rng: random.Random) -> float:
    """Draw a float that differs clearly from the value. A decay remains between 0 and 1."""
    if not LEAST_DECAY < value < 1:
        return float(value * rng.choice((1 / SPREAD, SPREAD)) ** rng.uniform(0.4, 1))
    most = min(SPREAD, (1 - LEAST_DECAY) / (1 - value))
    return float(1 - (1 - value) * rng.choice((1 / SPREAD, most)) ** rng.uniform(0.4, 1))


def _size(least: int, greatest: int, rng: random.Random, kinds: tuple["Kind", ...]) -> int:
    """Draw a size whose logarithm is uniform."""
    size = round(math.exp(rng.uniform(math.log(least), math.log(greatest))))
    drawn = rng.choice(kinds)(size, rng)
    return min(max(drawn, least), greatest)


def _rounded(size: int, rng: random.Random) -> int:
    """Round down to a multiple that a kernel may require, unless that is 0."""
    multiple = rng.choice((1, *MULTIPLES))
    return size // multiple * multiple or size


def _beside_a_tile(size: int, rng: random.Random) -> int:
    return max(1, round(size / TILE)) * TILE + rng.choice((-1, 1))


def _to_multiple(size: int) -> int:
    return size // MULTIPLES[-1] * MULTIPLES[-1] or size


def _prime_below_multiple(size: int) -> int:
    return prime_below(_to_multiple(size))


def _prime(size: int, _: random.Random) -> int:
    return prime_below(size)


@lru_cache(maxsize=4096)  # cached: several evaluations of an op need the same shapes
def prime_below(size: int) -> int:
    """Return the largest prime up to this size."""
    while size > 2 and not all(size % divisor for divisor in range(2, math.isqrt(size) + 1)):
        size -= 1
    return size


Kind = Callable[[int, random.Random], int]
ALL: tuple[Kind, ...] = (_rounded, _rounded, _beside_a_tile, _prime)
ODD: tuple[Kind, ...] = (_prime, _beside_a_tile)
