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
def test_characters_that_control_a_terminal_or_reverse_text_are_found(character: str) -> None:
    found = hidden(f"a{character}b")
    assert found
    assert f"U+{ord(character):04X}" in described(found)


def test_ordinary_text_has_no_hidden_characters() -> None:
    assert hidden("int a;\n\t// größer, 大, λ, العربية, 😀\n") is None


def test_a_name_may_not_contain_line_breaks_or_tabs() -> None:
    assert hidden_in_name("NVIDIA\nH200")
    assert hidden_in_name("NVIDIA\tH200")
    assert hidden_in_name("NVIDIA H200 (größer)") is None


@pytest.mark.parametrize("character", DECEIVING)
def test_escaping_does_not_change_the_content_of_json(character: str) -> None:
    shown = escaped(json.dumps({"log": f"a{character}b"}, ensure_ascii=False))
    assert character not in shown
    assert json.loads(shown) == {"log": f"a{character}b"}
