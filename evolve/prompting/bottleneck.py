"""Rules that find a kernel's main bottleneck in a profiler's counters.

The rules are tried in a fixed order, causes before their effects. For example, bank conflicts and spills also keep
memory busy, and a low number of resident warps makes every wait longer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from evolve.devices import counters as c
from evolve.devices.counters import Counter

Counted = Mapping[str, float]
BUSY, HALF_BUSY = 75.0, 60.0  # percentages of a unit's peak
SPILLED, CONFLICTED = 0.1, 0.25  # fractions of all accesses
WASTED = 1.5  # ratio of the sectors accessed to those that accesses of this width need
SPARSE = 40.0  # percentage of the warps that a multiprocessor can hold
WAITING = 1.0  # number of warps waiting for the same reason, per issued instruction
BARELY_MORE = 0.35  # fraction of a full wave of blocks
WIDEST = 16  # number of bytes of the widest memory access


class Kind(StrEnum):
    """The kind of limit that a kernel reaches."""

    SPILLS = "register spills"
    UNCOALESCED = "uncoalesced access"
    CONFLICTS = "bank conflicts"
    BANDWIDTH = "memory bandwidth"
    CACHE = "L2 cache bandwidth"
    ARITHMETIC = "arithmetic"
    SMALL_GRID = "a grid too small for the GPU"
    BARRIERS = "barriers"
    OCCUPANCY = "low occupancy"
    LATENCY = "memory latency"
    SHARED_LATENCY = "latency of shared memory or special functions"
    TAIL = "a last round of blocks that is nearly empty"


@dataclass(frozen=True)
class Bottleneck:
    """The main limit of a kernel, with its figures and advice."""

    kind: Kind
    words: str


def bottleneck(counted: Counted, access_bytes: int = WIDEST) -> Bottleneck | None:
    """Return the bottleneck of the first rule that applies, or None.

    `access_bytes` is the width of the widest access to global memory. It determines how many sectors an access of a
    warp needs.
    """
    uncoalesced = partial(_uncoalesced, access_bytes=access_bytes)
    rules = (_spills, uncoalesced, _conflicts, _bandwidth, _cache, _arithmetic, _small_grid, _stalls, _tail)
    return next((found for rule in rules if (found := rule(counted))), None)


def side(counted: Counted) -> str:
    """Return a phrase on the kernel's side of the roofline, or an empty string without counters."""
    memory, compute = _get(counted, c.MEMORY), _get(counted, c.COMPUTE)
    if not memory and not compute:
        return ""
    figures = f"memory units {memory:.0f} %, arithmetic and issue units {compute:.0f} % of their peak"
    if max(memory, compute) < HALF_BUSY:
        return f"below the roofline, bound by latency ({figures})"
    return f"on the {'memory' if memory >= compute else 'compute'} side of the roofline ({figures})"


def _spills(counted: Counted) -> Bottleneck | None:
    local, loads = _get(counted, c.LOCAL_SECTORS), _get(counted, c.LOAD_SECTORS)
    if not local or local < SPILLED * (local + loads):
        return None
    share = local / (local + loads)
    return Bottleneck(
        Kind.SPILLS,
        f"{share:.0%} of the loaded sectors are local memory, that is registers that were spilled or arrays indexed at "
        "run time: keep fewer values alive at once, unroll so that indices are constants, or allow more registers per "
        "thread with __launch_bounds__.",
    )


def _uncoalesced(counted: Counted, access_bytes: int) -> Bottleneck | None:
    for what, sectors, requests in (
        ("load", c.LOAD_SECTORS, c.LOAD_REQUESTS),
        ("store", c.STORE_SECTORS, c.STORE_REQUESTS),
    ):
        each = _ratio(counted, sectors, requests)
        if each > WASTED * max(access_bytes, 4):
            return Bottleneck(
                Kind.UNCOALESCED,
                f"a warp's {what} touches {each:.1f} sectors of 32 bytes where neighbouring lanes at neighbouring "
                f"addresses need {max(access_bytes, 4)}: let lane i access element i, and transpose tiles in shared "
                "memory.",
            )
    return None


def _conflicts(counted: Counted) -> Bottleneck | None:
    conflicts = _get(counted, c.LOAD_CONFLICTS) + _get(counted, c.STORE_CONFLICTS)
    waves = _get(counted, c.SHARED_WAVES)
    if not waves or conflicts < CONFLICTED * waves:
        return None
    return Bottleneck(
        Kind.CONFLICTS,
        f"{conflicts / waves:.0%} of the passes over shared memory are bank conflicts: pad the rows by one element or "
        "swizzle the columns so that the 32 lanes hit 32 banks.",
    )


def _bandwidth(counted: Counted) -> Bottleneck | None:
    busy = _get(counted, c.DRAM)
    if busy < BUSY:
        return None
    words = (
        f"DRAM is at {busy:.0f} % of its peak: only moving fewer bytes helps (read each value once, keep it on the "
        f"chip)."
    )
    return Bottleneck(Kind.BANDWIDTH, words)


def _cache(counted: Counted) -> Bottleneck | None:
    busy = _get(counted, c.L2)
    if busy < BUSY:
        return None
    words = (
        f"the L2 cache is at {busy:.0f} % of its peak and DRAM at {_get(counted, c.DRAM):.0f} %: the same data is read "
        "repeatedly; keep it in registers or shared memory instead."
    )
    return Bottleneck(Kind.CACHE, words)


def _arithmetic(counted: Counted) -> Bottleneck | None:
    tensor, compute = _get(counted, c.TENSOR), _get(counted, c.COMPUTE)
    if tensor >= HALF_BUSY:
        return Bottleneck(
            Kind.ARITHMETIC, f"the tensor cores are busy {tensor:.0f} % of the time: supply their data without gaps."
        )
    if compute < BUSY or compute < _get(counted, c.MEMORY):
        return None
    return Bottleneck(
        Kind.ARITHMETIC,
        f"the arithmetic and issue units are at {compute:.0f} % of their peak: fewer instructions for each element "
        "help (wider accesses, no divisions, index arithmetic out of the loop, tensor cores where there are products).",
    )


def _small_grid(counted: Counted) -> Bottleneck | None:
    waves = _get(counted, c.WAVES)
    if not 0 < waves < 1:
        return None
    words = f"the grid fills {waves:.0%} of the places for blocks: split the work further (smaller tiles, split sums)."
    return Bottleneck(Kind.SMALL_GRID, words)


def _stalls(counted: Counted) -> Bottleneck | None:
    """Find the most frequent reason for waiting, unless instructions are issued nearly all the time."""
    reasons = (c.BARRIER, c.LONG_SCOREBOARD, c.SHORT_SCOREBOARD, c.MATH_THROTTLE)
    longest = max(reasons, key=lambda counter: _get(counted, counter))
    waiting = _get(counted, longest)
    if waiting < WAITING or _get(counted, c.ISSUE) >= BUSY:
        return None
    each = f"for each instruction issued {waiting:.1f} warps are {longest.words.removeprefix('warps ')}"
    if longest is c.BARRIER:
        words = f"{each}: reduce within warps by shuffles, let warps work on their own, use smaller blocks."
        return Bottleneck(Kind.BARRIERS, words)
    if longest is c.MATH_THROTTLE:
        words = f"{each}: use fewer of the slow instructions (divisions, double precision, conversions)."
        return Bottleneck(Kind.ARITHMETIC, words)
    occupancy = _get(counted, c.OCCUPANCY)
    if longest is c.LONG_SCOREBOARD and 0 < occupancy < SPARSE:
        words = f"{each}, and only {occupancy:.0f} % of the possible warps are resident{_limit(counted)}."
        return Bottleneck(Kind.OCCUPANCY, words)
    if longest is c.LONG_SCOREBOARD:
        words = f"{each}: have more loads in flight in each thread (several independent loads first, then their use)."
        return Bottleneck(Kind.LATENCY, words)
    words = (
        f"{each}: keep values in registers, shuffle instead of storing, use __expf and similar functions where they "
        "are exact enough."
    )
    return Bottleneck(Kind.SHARED_LATENCY, words)


def _limit(counted: Counted) -> str:
    registers, shared = _get(counted, c.BLOCKS_BY_REGISTERS), _get(counted, c.BLOCKS_BY_SHARED)
    if not registers or not shared:
        return ""
    scarce, blocks = ("registers", registers) if registers <= shared else ("shared memory", shared)
    return f" (at most {blocks:.0f} blocks per multiprocessor, limited by {scarce})"


def _tail(counted: Counted) -> Bottleneck | None:
    waves = _get(counted, c.WAVES)
    if not (1 < waves < 4 and 0 < waves % 1 < BARELY_MORE):
        return None
    words = f"the blocks run in {waves:.2f} rounds: choose a grid that fills the last round, or let blocks loop."
    return Bottleneck(Kind.TAIL, words)


def _get(counted: Counted, counter: Counter) -> float:
    return counted.get(counter.name, 0.0)


def _ratio(counted: Counted, of: Counter, to: Counter) -> float:
    return _get(counted, of) / _get(counted, to) if _get(counted, to) else 0.0
