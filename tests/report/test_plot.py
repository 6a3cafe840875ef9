"""Plots of runs: curves as braille or letters."""

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


def test_a_plot_without_unicode_is_plain_ascii() -> None:
    assert "".join(drawn(RISING, FLAT, unicode=False)).isascii()
    assert not "".join(drawn(RISING, FLAT)).isascii()


def test_the_axes_are_labelled_at_both_ends() -> None:
    rows = drawn(RISING)
    assert rows[0].startswith("4.00x")
    assert rows[7].startswith("1.00x")
    assert rows[-1].endswith("10 evaluations")


def test_a_rising_curve_begins_at_the_bottom_left_and_ends_at_the_top_right() -> None:
    rows = drawn(RISING, unicode=False)
    assert rows[0].endswith("A")
    assert rows[7].partition("|")[2].startswith("A")
    assert rows[7].count("A") < len(rows[7]) // 2 + 2


def test_a_curve_ends_where_its_run_ended() -> None:
    bottom = drawn(FLAT, Curve([(0, 2.0), (12, 2.0)]), width=59, unicode=False)[7]
    assert len(bottom.rstrip()) == len(bottom) - 26  # the curve covers half of the columns


def test_a_point_of_several_curves_is_drawn_as_a_star() -> None:
    assert "*" in drawn(RISING, FLAT, unicode=False)[7]


def test_braille_curves_are_marked_with_their_letters() -> None:
    text = "".join(drawn(RISING, FLAT))
    assert "A" in text
    assert "B" in text


@pytest.mark.parametrize("curve", [Curve([]), Curve([(0, 1.0)]), Curve([(0, 1.0), (0, 1.0)])])
def test_an_empty_or_constant_curve_can_be_drawn(curve: Curve) -> None:
    assert len(drawn(curve)) == 10


def test_letters_are_on_their_curves() -> None:
    steep = Curve([(step, float(step % 7)) for step in range(30)])
    for row in drawn(steep)[:-2]:
        drawing = row.partition("│")[2]
        for column, character in enumerate(drawing):
            assert character != "A" or drawing[max(0, column - 1) : column + 2].strip() != "A"
