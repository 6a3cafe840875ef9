import pytest

from evolve.report.runs import Curve, plot

RISING, FLAT = Curve([(0, 1.0), (5, 2.0), (10, 4.0)]), Curve([(0, 1.0), (6, 1.0)])


def drawn(*lines: Curve, width: int = 60, unicode: bool = True) -> list[str]:
    return [row.plain for row in plot(lines, width, 8, unicode=unicode, unit="evaluations")]


@pytest.mark.parametrize("width", [20, 60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_a_plot_fits_its_width(width: int, unicode: bool) -> None:
    rows = drawn(RISING, FLAT, width=width, unicode=unicode)
    assert len(rows) == 8 + 2
    assert all(len(row) <= width for row in rows)


def test_a_plot_is_plain_ascii_where_it_has_to_be() -> None:
    assert "".join(drawn(RISING, FLAT, unicode=False)).isascii()
    assert not "".join(drawn(RISING, FLAT)).isascii()


def test_the_axes_name_the_ends() -> None:
    rows = drawn(RISING)
    assert rows[0].startswith("4.00x")
    assert rows[7].startswith("1.00x")
    assert rows[-1].endswith("10 evaluations")


def test_a_line_begins_low_on_the_left_and_ends_high_on_the_right() -> None:
    rows = drawn(RISING, unicode=False)
    assert rows[0].endswith("A")
    assert rows[7].partition("|")[2].startswith("A")
    assert rows[7].count("A") < len(rows[7]) // 2 + 2


def test_a_line_ends_where_its_run_ended() -> None:
    bottom = drawn(FLAT, Curve([(0, 2.0), (12, 2.0)]), width=59, unicode=False)[7]
    assert len(bottom.rstrip()) == len(bottom) - 26  # half of the columns


def test_where_letters_meet_there_is_a_star() -> None:
    assert "*" in drawn(RISING, FLAT, unicode=False)[7]


def test_every_line_is_named_by_its_letter_in_braille_too() -> None:
    text = "".join(drawn(RISING, FLAT))
    assert "A" in text
    assert "B" in text


@pytest.mark.parametrize("line", [Curve([]), Curve([(0, 1.0)]), Curve([(0, 1.0), (0, 1.0)])])
def test_a_run_in_which_nothing_happened_is_drawn_without_a_fault(line: Curve) -> None:
    assert len(drawn(line)) == 10


def test_letters_stand_on_their_lines() -> None:
    steep = Curve([(step, float(step % 7)) for step in range(30)])
    for row in drawn(steep)[:-2]:
        drawing = row.partition("│")[2]
        for column, character in enumerate(drawing):
            assert character != "A" or drawing[max(0, column - 1) : column + 2].strip() != "A"
