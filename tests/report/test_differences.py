"""Differences side by side."""

from hypothesis import given
from hypothesis import strategies as st

from evolve.report.differences import side_by_side

LINES = st.lists(st.sampled_from(["int a = 1;", "int a = 2;", "return a;", "", "}"]), max_size=12).map("\n".join)


def test_a_changed_line_is_beside_the_line_that_it_replaces() -> None:
    ((pair,),) = side_by_side("int warps = 4;", "int warps = 8;")
    assert (pair.left.number, pair.right.number, pair.changed) == (1, 1, True)
    assert [part.text for part in pair.left.parts if part.changed] == ["4"]
    assert [part.text for part in pair.right.parts if part.changed] == ["8"]


def test_a_new_line_is_beside_an_empty_place() -> None:
    ((same, new),) = side_by_side("a", "a\nb")
    assert not same.changed
    assert (new.left.number, new.left.text, new.right.text) == (0, "", "b")


def test_only_lines_near_a_change_are_shown() -> None:
    text = "\n".join(map(str, range(100)))
    (group,) = side_by_side(text, text.replace("\n50\n", "\nfifty\n"))
    assert [pair.left.text for pair in group] == ["47", "48", "49", "50", "51", "52", "53"]


@given(LINES, LINES)
def test_both_texts_can_be_read_from_the_pairs(left: str, right: str) -> None:
    pairs = [pair for group in side_by_side(left, right, context=100) for pair in group]
    if left != right and pairs:
        assert [pair.left.text for pair in pairs if pair.left.number] == left.splitlines()
        assert [pair.right.text for pair in pairs if pair.right.number] == right.splitlines()
