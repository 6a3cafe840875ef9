"""Sections and symbols of an object file."""

from pathlib import Path

import pytest
from compiled_object import compiled_object

from evolve.devices import object_file
from evolve.devices.object_file import Symbol

SOURCE = """
int zeroed[3];
int begins = 5;
extern const long constant;
const long constant = 7;
__thread int own;
extern int elsewhere;
int function() { return zeroed[begins] + own + elsewhere; }
"""


@pytest.fixture(scope="module")
def symbols(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Symbol]:
    image = compiled_object(SOURCE, tmp_path_factory.mktemp("object"))
    return {symbol.name: symbol for symbol in object_file.symbols(image)}


@pytest.mark.parametrize(
    ("name", "kind", "section", "size"),
    [
        ("zeroed", object_file.VARIABLE, ".bss", 12),
        ("begins", object_file.VARIABLE, ".data", 4),
        ("constant", object_file.VARIABLE, ".rodata", 8),
        ("own", object_file.OF_A_THREAD, ".tbss", 4),
    ],
)
def test_a_variable_is_found_in_its_section(
    symbols: dict[str, Symbol], name: str, kind: int, section: str, size: int
) -> None:
    found = symbols[name]
    assert found.section
    assert (found.kind, found.section.name, found.size) == (kind, section, size)


def test_a_symbol_of_another_file_has_no_section(symbols: dict[str, Symbol]) -> None:
    assert symbols["elsewhere"].section is None


def test_a_section_holds_its_bytes_and_whether_it_is_writable(symbols: dict[str, Symbol]) -> None:
    begins, constant, zeroed = (symbols[name] for name in ("begins", "constant", "zeroed"))
    assert begins.section
    assert constant.section
    assert zeroed.section
    assert begins.section.data[begins.at : begins.at + 4] == (5).to_bytes(4, "little")
    assert (begins.section.writable, constant.section.writable) == (True, False)
    assert zeroed.section.data == b""


def test_a_file_of_another_format_has_no_sections_and_no_symbols() -> None:
    image = Path(__file__).read_bytes()
    assert (object_file.sections(image), object_file.symbols(image)) == ([], [])
