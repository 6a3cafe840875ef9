import json

import pytest

from archive.characters import described, escaped, hidden, hidden_in_name

DECEIVING = [
    "\x00",
    "\x07",
    "\x08",
    "\x0c",
    "\r",
    "\x1b",
    "\x7f",
    "\x85",
    "\x9b",
    "\u202a",
    "\u202e",
    "\u2066",
    "\u2069",
]


@pytest.mark.parametrize("character", [*DECEIVING, "\ud800"])
def test_what_steers_a_terminal_or_turns_the_writing_is_found(character: str) -> None:
    found = hidden(f"a{character}b")
    assert found
    assert f"U+{ord(character):04X}" in described(found)


def test_what_people_write_is_not_found() -> None:
    assert hidden("int a;\n\t// größer, 大, λ, العربية, 😀\n") is None


def test_a_name_has_one_line() -> None:
    assert hidden_in_name("NVIDIA\nH200")
    assert hidden_in_name("NVIDIA\tH200")
    assert hidden_in_name("NVIDIA H200 (größer)") is None


@pytest.mark.parametrize("character", DECEIVING)
def test_escaped_json_is_the_same_json(character: str) -> None:
    shown = escaped(json.dumps({"log": f"a{character}b"}, ensure_ascii=False))
    assert character not in shown
    assert json.loads(shown) == {"log": f"a{character}b"}
