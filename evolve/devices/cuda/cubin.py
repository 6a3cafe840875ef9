"""Reads from a cubin what its entries take and use: an ELF file's `.nv.info.<entry>` sections, no GPU needed."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

PARAMETER = 0x17
MAX_THREADS = 0x05
INLINE_FORMATS = (1, 2, 3)  # the two bytes after the attribute are its value; otherwise they are its length
SECTION_HEADER = "<IIQQQQIIQQ"


@dataclass(frozen=True)
class Entry:
    """A `__global__` function as compiled."""

    name: str
    parameter_bytes: tuple[int, ...]
    max_threads: int  # from __launch_bounds__, 0 when there are none


def entries(cubin: bytes) -> dict[str, Entry]:
    """Every entry of the cubin by its symbol, mangled unless it was declared extern "C"."""
    prefix = ".nv.info."
    infos = ((name.removeprefix(prefix), data) for name, data in _sections(cubin) if name.startswith(prefix))
    return {name: _entry(name, info) for name, info in infos}


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    table, size, count, names_index = (
        struct.unpack_from("<Q", elf, 0x28)[0],
        *struct.unpack_from("<HHH", elf, 0x3A),
    )
    headers = [struct.unpack_from(SECTION_HEADER, elf, table + index * size) for index in range(count)]
    names = elf[headers[names_index][4] :]
    for name_at, _, _, _, offset, length, *_ in headers:
        yield names[name_at : names.index(b"\0", name_at)].decode(), elf[offset : offset + length]


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
