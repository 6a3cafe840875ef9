"""Contents of a cubin: entries and their parameters, variables, and the traits of the machine code."""

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from archive.records import Resources, Traits, content_id
from evolve.devices import object_file
from evolve.devices.object_file import Section, Symbol

PARAMETER = 0x17
MAX_THREADS = 0x05
OF_SYMBOLS = (0x0A, 0x0F)  # attributes that hold numbers of symbols, which depend on other functions in the cubin
INLINE_FORMATS = (1, 2, 3)  # the two bytes after the attribute are its value; otherwise they are its length
INFO, TEXT = ".nv.info.", ".text."
CONSTANTS = re.compile(r"\.nv\.constant(\d+)\.(.+)")  # a constant bank of one entry
COMMON = re.compile(r"\.nv\.(constant\d+|global\.init)")  # sections of initialised variables and of addresses
RELOCATIONS = {".rel": "<QQ", ".rela": "<QQq"}  # a relocation's place, symbol and addend
ZEROED = ".nv.global"
LASTING = (ZEROED, ".nv.global.init", ".nv.constant3")
# the fields of an instruction that hold the operation (bits 0 to 15) and the width (bits 72 to 87)
WORDS = struct.Struct("<H7xH5x")
OPERATION, FORM = 0x1FF, 0xFFF
LD, LDG, ST, STG, LDGSTS = 0x180, 0x181, 0x185, 0x186, 0x1AE
LDG_256, STG_256 = 0x17E, 0x17F
ATOM, ATOMG, RED = {0x18A, 0x18B, 0x1A2}, {0x1A3, 0x1A8, 0x1A9}, {0x18E, 0x1A6}
MMA = {0x236, 0x23C, 0x237, 0x23D, 0x23F, 0x27A, 0x47F}  # HMMA since Volta, IMMA, BMMA, DMMA, QMMA, OMMA
GROUP_MMA = {0x1F0, 0x1F1, 0x1F2, 0x1F3}  # HGMMA, IGMMA, BGMMA, QGMMA
OF_A_WARPGROUP, WAITS = 0x1C5, 1 << 47  # WARPGROUP.ARRIVE, and .DEPBAR with this bit
HOPPER = range(90, 100)
TENSOR_MEMORY_MMA = {0x1EA}  # UTCHMMA, UTCQMMA, UTCOMMA
ATOMICS = ATOM | ATOMG | RED
ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)
BLACKWELL = 100
WARP = 32
REGISTERS, REGISTERS_AT_ONCE = 65536, 256  # registers of a multiprocessor, and the number that a warp gets at a time
PARTITIONS = 4  # number of partitions of a multiprocessor, which share its registers equally


@dataclass(frozen=True)
class EntryPoint:
    """A compiled `__global__` function."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int  # the limit of __launch_bounds__, or 0 without one


def entries(cubin: bytes) -> dict[str, EntryPoint]:
    """Return the entries of the cubin by symbol. Symbols are mangled unless declared extern "C"."""
    infos = {s.name.removeprefix(INFO): s.data for s in object_file.sections(cubin) if s.name.startswith(INFO)}
    return {name: _entry(name, info) for name, info in infos.items()}


def variables(symbols: list[Symbol]) -> tuple[Symbol, ...]:
    """Return the variables in global and constant memory, including those of headers; they outlive calls."""
    return tuple(s for s in symbols if s.kind == object_file.VARIABLE and s.section and s.section.name in LASTING)


def begins_empty(variable: Symbol) -> bool:
    return variable.section is not None and variable.section.name == ZEROED


def declared_in_inline_ptx(variable: Symbol) -> bool:
    """Return whether inline PTX declares the variable. Legitimate kernels never do that."""
    return variable.name.startswith("$__")


def _entry(name: str, info: bytes) -> EntryPoint:
    parameters: dict[int, int] = {}
    max_threads = 0
    for attribute, value in _attributes(info):
        if attribute == PARAMETER:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", value)
            parameters[ordinal] = packed >> 18
        elif attribute == MAX_THREADS:
            x, y, z = struct.unpack_from("<III", value)
            max_threads = x * y * z
    return EntryPoint(name, tuple(parameters[ordinal] for ordinal in sorted(parameters)), max_threads)


def traits_of(bound: Bound, image: bytes, resources: Sequence[Resources], arch: str) -> Traits:
    """Return the traits for one workload; `resources` are the compiler's figures by entry."""
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


def _described(bound: Bound, digests: Mapping[str, str], used: Mapping[str, Resources]) -> list[object]:
    """Return everything that determines the running code, without names chosen by the kernel."""
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
        case BoundMap(tensor=name):
            return ["map", scratch.get(name, name), value.dtype, value.shape, value.box, value.swizzle]
    return value


def serialised(cubin: bytes, arch: str) -> tuple[str, ...]:
    """Return the entries with several products of a warpgroup that wait for each product before the next."""
    found = []
    for section in object_file.sections(cubin) if compute_capability(arch) in HOPPER else ():
        if section.name.startswith(TEXT):
            words = [word for (word,) in struct.iter_unpack("<Q8x", section.data)]
            products = sum(word & OPERATION in GROUP_MMA for word in words)
            waits = sum(word & OPERATION == OF_A_WARPGROUP and bool(word & WAITS) for word in words)
            if products > 1 and waits >= products:
                found.append(section.name.removeprefix(TEXT))
    return tuple(found)


@dataclass(frozen=True)
class Use:
    """Features that code uses. `load_bytes` and `store_bytes` are the widths of a thread's widest accesses."""

    load_bytes: int
    store_bytes: int
    tensor_cores: bool
    atomics: bool


def use(code: bytes, arch: str) -> Use:
    """Return the features used by instructions, given as the bytes of a cubin's .text section."""
    blackwell = compute_capability(arch) >= BLACKWELL
    loads, stores = {0}, {0}
    tensor_cores = atomics = False
    for word, width in set(WORDS.iter_unpack(code)):
        operation = word & OPERATION
        if operation in (LD, LDG):
            loads.add(_bytes(width))
        elif operation in (ST, STG):
            stores.add(_bytes(width))
        elif operation == LDGSTS:
            loads.add(4 << (width >> 2 & 3) if blackwell else _bytes(width))
        elif operation == LDG_256:
            loads.add(32)
        elif operation == STG_256:
            stores.add(32)
        atomics |= operation in ATOMICS
        tensor_cores |= word & FORM in MMA or operation in GROUP_MMA or operation in TENSOR_MEMORY_MMA
    return Use(max(loads), max(stores), tensor_cores, atomics)


def compute_capability(arch: str) -> int:
    """Return the compute capability as a number, such as 90 for sm_90a."""
    return int(re.sub(r"\D", "", arch))


def _bytes(width: int) -> int:
    return ACCESS_BYTES[width >> 1 & 7]


@lru_cache(maxsize=256)  # several workloads may share a cubin
def _codes(image: bytes, names: tuple[str, ...], arch: str) -> dict[str, tuple[str, Use]]:
    return {name: (code.digest, use(code.instructions, arch)) for name, code in codes(image, names).items()}


@dataclass(frozen=True)
class Code:
    """The instructions that an entry can reach, and a hash of them and of everything they refer to except names."""

    instructions: bytes
    digest: str


def codes(cubin: bytes, names: Sequence[str]) -> dict[str, Code]:
    """Return the code of these entries, without functions that they do not call and without debug information."""
    sections = {section.name: section for section in object_file.sections(cubin)}
    symbols = object_file.symbols(cubin)
    return {name: _code(name, sections, symbols) for name in names}


def _code(entry: str, sections: Mapping[str, Section], symbols: Sequence[Symbol]) -> Code:
    own = {name: number for name in sections if (number := _bank(name, entry)) is not None}
    common = sorted(name for name in sections if COMMON.fullmatch(name))
    waiting = [f"{TEXT}{entry}", *sorted(own, key=lambda name: own[name]), *common]
    described: list[object] = [v for a, v in _attributes(sections[f"{INFO}{entry}"].data) if a not in OF_SYMBOLS]
    for name in waiting:  # the loop adds sections that are called or pointed to
        contents = hashlib.sha256(sections[name].data).hexdigest()
        described += [own.get(name), name if name in common else "", contents]
        for place, target, addend in _relocations(name, sections, symbols):
            there = target.section.name if target.section else target.name
            if there in sections and there not in waiting:
                waiting.append(there)
            described += [place, waiting.index(there) if there in waiting else there, target.at, addend]
    instructions = b"".join(sections[name].data for name in waiting if name.startswith(TEXT))
    return Code(instructions, hashlib.sha256(repr(described).encode()).hexdigest())


def _bank(name: str, entry: str) -> int | None:
    """Return the number of a constant bank if it belongs to this entry, otherwise None."""
    match = CONSTANTS.fullmatch(name)
    return int(match.group(1)) if match and match.group(2) == entry else None


def _relocations(
    name: str, sections: Mapping[str, Section], symbols: Sequence[Symbol]
) -> Iterator[tuple[int, Symbol, int]]:
    for prefix, form in RELOCATIONS.items():
        held = sections.get(f"{prefix}{name}")
        for place, kind, *addend in struct.iter_unpack(form, held.data if held else b""):
            yield place, symbols[kind >> 32], sum(addend)


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form in INLINE_FORMATS:
            yield attribute, length.to_bytes(2, "little")
        else:
            yield attribute, info[at : at + length]
            at += length


@dataclass(frozen=True)
class MultiprocessorLimits:
    """Upper limits of a multiprocessor."""

    warps: int
    blocks: int
    shared_kb: int
    shared_at_once: int = 128
    reserved: int = 1024  # bytes of shared memory that the system uses per block


LIMITS = {
    70: MultiprocessorLimits(64, 32, 96, 256, 0),
    75: MultiprocessorLimits(32, 16, 64, 256, 0),
    80: MultiprocessorLimits(64, 32, 164),
    86: MultiprocessorLimits(48, 16, 100),
    87: MultiprocessorLimits(48, 16, 164),
    88: MultiprocessorLimits(48, 16, 100),
    89: MultiprocessorLimits(48, 24, 100),
    90: MultiprocessorLimits(64, 32, 228),
    100: MultiprocessorLimits(64, 32, 228),
    110: MultiprocessorLimits(48, 24, 228),
    120: MultiprocessorLimits(48, 24, 100),
}


def most_shared(arch: str) -> int:
    """Return the bytes of shared memory that a block may have, static and dynamic together."""
    limits = _limits(arch)
    return limits.shared_kb * 1024 - limits.reserved


def occupancy(arch: str, registers: int, threads: int, shared_bytes: int) -> float:
    """Return the share of a multiprocessor's warps that are resident when it is filled with blocks of one launch."""
    limits = _limits(arch)
    warps = _up(threads, WARP) // WARP
    of_partition = REGISTERS // PARTITIONS // _up(max(registers, 1) * WARP, REGISTERS_AT_ONCE)
    blocks = [limits.blocks, limits.warps // warps, of_partition * PARTITIONS // warps]
    if shared := _up(shared_bytes + limits.reserved, limits.shared_at_once):
        blocks.append(limits.shared_kb * 1024 // shared)
    return min(blocks) * warps / limits.warps


def _limits(arch: str) -> MultiprocessorLimits:
    capability = compute_capability(arch)
    return LIMITS[max((known for known in LIMITS if known <= capability), default=min(LIMITS))]


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
