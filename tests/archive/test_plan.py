import pytest
from each import each

from archive.kernel import parse
from archive.plan import PlanError

TEXT = """/*---
op = "softmax"
[knobs]
WARPS = [4]
[let]
wide = 1
[workspace]
sums = { shape = [1], dtype = "float32" }
[[launch]]
entry = "first"
grid = [1]
block = [32]
shared = 0
args = ["x", 1]
---*/
void first() {}
"""
PLACES = [
    ("WARPS = [4]", 4),
    ("wide = 1", 6),
    ("shape = [1]", 8),
    ("grid = [1]", 11),
    ("shared = 0", 13),
    ('"x", 1', 14),
]
HOSTILE = [
    "9" * 5000, "-" + "9" * 5000, "0x" + "f" * 5000, "0o" + "7" * 9000, "0b" + "1" * 18_000,
    str(2**63), str(-(2**63) - 1),
    "[" * 400 + "]" * 400, "{a=" * 300 + "1" + "}" * 300, "[" * 5000, "inf", "nan", "1979-05-27", "1979-13-45",
    "07:32:00",
    '"\\ud800"', '"\ud800"', '"\0"', '"\x01"', "{ a = 1, a = 2 }", "{ a.b = 1, a = 2 }", "'''",
    '{ "a.b" = [' + "9" * 4400 + "] }",
]  # fmt: skip


def with_value(place: str, value: str) -> str:
    assert place in TEXT
    return TEXT.replace(place, place.rstrip("014]") + value + ("]" if place.endswith("]") else ""), 1)


@each(
    {
        f"{value[:12]!a} ({number}) in {place}": (place, line, value)
        for number, value in enumerate(HOSTILE)
        for place, line in PLACES
    }
)
def test_a_hostile_value_anywhere_is_an_error_in_the_plan(place: str, line: int, value: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse(with_value(place, value))
    assert caught.value.line in (line, 1) or "TOML" in str(caught.value)
    str(caught.value).encode()


@each(
    {
        f"{name} in {place}": (place, line, HOSTILE[number])
        for name, number in {"decimal": 0, "hex": 2, "above": 5, "below": 6}.items()
        for place, line in PLACES
    }
)
def test_an_integer_of_more_than_64_bits_is_refused_with_its_line(place: str, line: int, value: str) -> None:
    with pytest.raises(PlanError, match="64 bits") as caught:
        parse(with_value(place, value))
    assert caught.value.line == line


@pytest.mark.parametrize("value", [str(2**63 - 1), str(-(2**63))])
def test_an_integer_of_64_bits_is_read(value: str) -> None:
    assert parse(with_value("wide = 1", value)).plan.let == (("wide", int(value)),)


@pytest.mark.parametrize(
    "text",
    ["\ud800" + TEXT, TEXT + "\ud800", TEXT.replace("void", "\ud800void"), TEXT.replace('op = "', 'op = "\udfff')],
)
def test_a_lone_surrogate_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(PlanError, match="lone surrogate") as caught:
        parse(text)
    assert 1 <= caught.value.line <= text.count("\n") + 1


def test_a_line_separator_in_a_string_does_not_shift_the_lines() -> None:
    with pytest.raises(PlanError) as caught:
        parse(TEXT.replace('op = "softmax"', 'op = "softmax"\nnote = "a\u2028b"').replace("shared", "shred"))
    assert caught.value.line == 14
