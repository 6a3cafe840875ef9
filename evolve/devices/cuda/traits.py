"""What a compiled kernel is: how wide it reads and writes, how much of a multiprocessor it fills, and a hash of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from archive.binding import Bound, BoundLaunch, Pointer, Pointers, Value
from archive.records import Resources, Traits, content_id
from evolve.devices.cuda import cubin
from evolve.devices.cuda.sass import Use, compute_capability, use

WARP = 32
REGISTERS, REGISTERS_AT_ONCE = 65536, 256  # of a multiprocessor; a warp is given them by so many
PARTITIONS = 4  # of a multiprocessor, each with its share of the registers


@dataclass(frozen=True)
class Limits:
    """What a multiprocessor holds at once."""

    warps: int
    blocks: int
    shared_kb: int
    shared_at_once: int = 128
    reserved: int = 1024  # bytes of shared memory that the system takes of every block


LIMITS = {
    70: Limits(64, 32, 96, 256, 0),
    75: Limits(32, 16, 64, 256, 0),
    80: Limits(64, 32, 164),
    86: Limits(48, 16, 100),
    87: Limits(48, 16, 164),
    88: Limits(48, 16, 100),
    89: Limits(48, 24, 100),
    90: Limits(64, 32, 228),
    100: Limits(64, 32, 228),
    110: Limits(48, 24, 228),
    120: Limits(48, 24, 100),
}


def occupancy(arch: str, registers: int, threads: int, shared_bytes: int) -> float:
    """The share of a multiprocessor's warps that can be resident when blocks of one kind fill it."""
    capability = compute_capability(arch)
    limits = LIMITS[max((known for known in LIMITS if known <= capability), default=min(LIMITS))]
    warps = _up(threads, WARP) // WARP
    of_partition = REGISTERS // PARTITIONS // _up(max(registers, 1) * WARP, REGISTERS_AT_ONCE)
    blocks = [limits.blocks, limits.warps // warps, of_partition * PARTITIONS // warps]
    if shared := _up(shared_bytes + limits.reserved, limits.shared_at_once):
        blocks.append(limits.shared_kb * 1024 // shared)
    return min(blocks) * warps / limits.warps


def of(bound: Bound, image: bytes, resources: Sequence[Resources], arch: str) -> Traits:
    """Of one workload; `resources` are the compiler's figures by entry."""
    used = {resource.entry: resource for resource in resources}
    names = tuple(dict.fromkeys(launch.entry for launch in bound.launches))
    codes = _codes(image, names, arch)
    uses = [codes[name][1] for name in names]
    shared = [launch.shared + used[launch.entry].shared_bytes for launch in bound.launches]
    return Traits(
        code=content_id(_described(bound, {name: codes[name][0] for name in names}, used)),
        load_bytes=max((each.load_bytes for each in uses), default=0),
        store_bytes=max((each.store_bytes for each in uses), default=0),
        shared_bytes=max(shared, default=0),
        registers=max((used[name].registers for name in names), default=0),
        threads=max((prod(launch.block) for launch in bound.launches), default=0),
        launches=len(bound.launches),
        tensor_cores=any(each.tensor_cores for each in uses),
        atomics=any(each.atomics for each in uses),
        occupancy=min(
            (
                occupancy(arch, used[launch.entry].registers, prod(launch.block), size)
                for launch, size in zip(bound.launches, shared, strict=True)
            ),
            default=0.0,
        ),
    )


@lru_cache(maxsize=256)  # workloads that share their cubin
def _codes(image: bytes, names: tuple[str, ...], arch: str) -> dict[str, tuple[str, Use]]:
    return {name: (code.digest, use(code.instructions, arch)) for name, code in cubin.codes(image, names).items()}


def _described(bound: Bound, digests: Mapping[str, str], used: Mapping[str, Resources]) -> list[object]:
    """All that decides what runs, without the names that a kernel gives to its own things."""
    scratch = {workspace.name: index for index, workspace in enumerate(bound.workspace)}
    return [
        [[workspace.nbytes, workspace.zero] for workspace in bound.workspace],
        [_launch(launch, digests, used, scratch) for launch in bound.launches],
    ]


def _launch(
    launch: BoundLaunch, digests: Mapping[str, str], used: Mapping[str, Resources], scratch: Mapping[str, int]
) -> list[object]:
    taken = used[launch.entry]
    return [
        digests[launch.entry], taken.registers, taken.shared_bytes, taken.local_bytes,
        launch.grid, launch.block, launch.shared, launch.cooperative,
        [_argument(value, scratch) for value in launch.args],
    ]  # fmt: skip


def _argument(value: Value, scratch: Mapping[str, int]) -> object:
    match value:
        case Pointer(name=name):
            return ["tensor", scratch.get(name, name)]
        case Pointers(names=names):
            return ["tensors", *(scratch.get(name, name) for name in names)]
    return value


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
