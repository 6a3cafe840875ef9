"""Reads from a cubin what its entries take, what they run, and which variables outlive them. No GPU needed."""

import hashlib
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from evolve.devices import object_file
from evolve.devices.object_file import Section, Symbol

PARAMETER = 0x17
MAX_THREADS = 0x05
OF_SYMBOLS = (0x0A, 0x0F)  # attributes that number symbols: other functions beside this one change them
INFO, TEXT = ".nv.info.", ".text."
CONSTANTS = re.compile(r"\.nv\.constant(\d+)\.(.+)")  # of one entry
COMMON = re.compile(r"\.nv\.(constant\d+|global\.init)")  # the variables that begin with a value, and addresses
RELOCATIONS = {".rel": "<QQ", ".rela": "<QQq"}  # what the loader fills in: the place, the symbol, what to add
ZEROED = ".nv.global"
LASTING = (ZEROED, ".nv.global.init", ".nv.constant3")
INLINE_FORMATS = (1, 2, 3)  # the two bytes after the attribute are its value; otherwise they are its length


@dataclass(frozen=True)
class Entry:
    """A `__global__` function as compiled."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int  # from __launch_bounds__, 0 when there are none


@dataclass(frozen=True)
class Code:
    """The instructions that an entry may come to, and a hash of them with all that they refer to, names apart."""

    instructions: bytes
    digest: str


def entries(cubin: bytes) -> dict[str, Entry]:
    """Every entry of the cubin by its symbol, mangled unless it was declared extern "C"."""
    infos = {s.name.removeprefix(INFO): s.data for s in object_file.sections(cubin) if s.name.startswith(INFO)}
    return {name: _entry(name, info) for name, info in infos.items()}


def codes(cubin: bytes, names: Sequence[str]) -> dict[str, Code]:
    """What these entries run; the other functions of the cubin do not count, nor does what debuggers read."""
    sections = {section.name: section for section in object_file.sections(cubin)}
    symbols = object_file.symbols(cubin)
    return {name: _code(name, sections, symbols) for name in names}


def variables(symbols: list[Symbol]) -> tuple[Symbol, ...]:
    """What lies in global or constant memory for as long as the cubin is loaded, the kernel's own and headers'."""
    return tuple(s for s in symbols if s.kind == object_file.VARIABLE and s.section and s.section.name in LASTING)


def begins_empty(variable: Symbol) -> bool:
    return variable.section is not None and variable.section.name == ZEROED


def of_inline_ptx(variable: Symbol) -> bool:
    """Whether a kernel declared it where no constant needs to be declared; the driver does not find it by name."""
    return variable.name.startswith("$__")


def _entry(name: str, info: bytes) -> Entry:
    parameters: dict[int, int] = {}
    max_threads = 0
    for attribute, value in _attributes(info):
        if attribute == PARAMETER:
            _, ordinal, _, packed = struct.unpack_from("<IHHI", value)
            parameters[ordinal] = packed >> 18
        elif attribute == MAX_THREADS:
            x, y, z = struct.unpack_from("<III", value)
            max_threads = x * y * z
    return Entry(name, tuple(parameters[ordinal] for ordinal in sorted(parameters)), max_threads)


def _code(entry: str, sections: Mapping[str, Section], symbols: Sequence[Symbol]) -> Code:
    own = {name: number for name in sections if (number := _bank(name, entry)) is not None}
    common = sorted(name for name in sections if COMMON.fullmatch(name))
    waiting = [f"{TEXT}{entry}", *sorted(own, key=lambda name: own[name]), *common]
    described: list[object] = [v for a, v in _attributes(sections[f"{INFO}{entry}"].data) if a not in OF_SYMBOLS]
    for name in waiting:  # grows by whatever else is called or pointed to
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
    """The number of the constant bank, if it is this entry's own."""
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
