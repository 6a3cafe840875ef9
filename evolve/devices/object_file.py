"""Sections and symbols of a cubin or a host's object file. Both are little-endian ELF files with 64 bits."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MAGIC = b"\x7fELF"
SECTION_HEADER, SYMBOL = "<IIQQQQIIQQ", "<IBBHQQ"
SYMBOL_TABLE, WITHOUT_DATA = 2, 8  # types of sections
WRITABLE = 1
# kinds of symbols; symbols of the last kind are resolved by running a function
VARIABLE, FUNCTION, OF_A_THREAD, RESOLVED = 1, 2, 6, 10


class ObjectFileError(ValueError):
    """Raised when an ELF file is cut short or damaged."""


@dataclass(frozen=True)
class Section:
    name: str
    data: bytes  # empty for a section that has no contents in the file, such as .bss
    writable: bool


@dataclass(frozen=True)
class Symbol:
    """A named variable or function; its section is None if it is defined in another file."""

    name: str
    kind: int
    section: Section | None
    at: int  # an offset in the section before linking, an address afterwards
    size: int


def sections(image: bytes) -> list[Section]:
    """Return the sections; an empty list for a file that is not ELF."""
    if not image.startswith(MAGIC):
        return []
    with _checked():
        headers, names = _headers(image)
        return [_section(image, header, names) for header in headers]


def symbols(image: bytes) -> list[Symbol]:
    """Return the symbols of all tables; an empty list for a file that is not ELF."""
    if not image.startswith(MAGIC):
        return []
    with _checked():
        headers, names = _headers(image)
        held = [_section(image, header, names) for header in headers]
        tables = [header for header in headers if header[1] == SYMBOL_TABLE]
        return [symbol for header in tables for symbol in _table(image, header, headers, held)]


@contextmanager
def _checked() -> Iterator[None]:
    try:
        yield
    except (struct.error, IndexError, ValueError) as error:
        raise ObjectFileError(f"the object file is cut short or damaged: {error}") from error


def _headers(image: bytes) -> tuple[list[tuple[int, ...]], int]:
    """Return the section headers, and the offset of the sections' names."""
    table = struct.unpack_from("<Q", image, 0x28)[0]
    size, count, names = struct.unpack_from("<HHH", image, 0x3A)
    if size != struct.calcsize(SECTION_HEADER) or table + count * size > len(image):
        raise ObjectFileError(f"{count} section headers of {size} bytes at {table} in a file of {len(image)} bytes")
    headers = [struct.unpack_from(SECTION_HEADER, image, table + index * size) for index in range(count)]
    return headers, headers[names][4]


def _section(image: bytes, header: tuple[int, ...], names: int) -> Section:
    name_at, kind, flags, _, offset, length, *_ = header
    if kind != WITHOUT_DATA and offset + length > len(image):
        raise ObjectFileError(f"a section ends at {offset + length} in a file of {len(image)} bytes")
    data = b"" if kind == WITHOUT_DATA else image[offset : offset + length]
    return Section(_text(image, names + name_at), data, bool(flags & WRITABLE))


def _table(
    image: bytes, header: tuple[int, ...], headers: list[tuple[int, ...]], held: list[Section]
) -> Iterator[Symbol]:
    _, _, _, _, offset, length, strings, *_ = header
    names = headers[strings][4]
    for name_at, info, _, place, at, size in struct.iter_unpack(SYMBOL, image[offset : offset + length]):
        section = held[place] if 0 < place < len(held) else None
        yield Symbol(_text(image, names + name_at), info & 15, section, at, size)


def _text(image: bytes, at: int) -> str:
    return image[at : image.index(b"\0", at)].decode(errors="replace")
