"""Reads from a cubin what its entries take and use, and which variables outlive them. No GPU needed."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from evolve.devices import elf
from evolve.devices.elf import Symbol

PARAMETER = 0x17
MAX_THREADS = 0x05
ZEROED = ".nv.global"
LASTING = (ZEROED, ".nv.global.init", ".nv.constant3")
INLINE_FORMATS = (1, 2, 3)  # the two bytes after the attribute are its value; otherwise they are its length


@dataclass(frozen=True)
class Entry:
    """A `__global__` function as compiled."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int  # from __launch_bounds__, 0 when there are none


def entries(cubin: bytes) -> dict[str, Entry]:
    """Every entry of the cubin by its symbol, mangled unless it was declared extern "C"."""
    prefix = ".nv.info."
    infos = {s.name.removeprefix(prefix): s.data for s in elf.sections(cubin) if s.name.startswith(prefix)}
    return {name: _entry(name, info) for name, info in infos.items()}


def variables(symbols: list[Symbol]) -> tuple[Symbol, ...]:
    """What lies in global or constant memory for as long as the cubin is loaded, the kernel's own and headers'."""
    return tuple(s for s in symbols if s.kind == elf.VARIABLE and s.section and s.section.name in LASTING)


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


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(info):
        form, attribute, length = struct.unpack_from("<BBH", info, at)
        at += 4
        if form not in INLINE_FORMATS:
            yield attribute, info[at : at + length]
            at += length
