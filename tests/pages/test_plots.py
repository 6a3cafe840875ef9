"""Plots: complete for any data, and text in them is escaped."""

from xml.etree import ElementTree as ET

import pytest

from evolve.pages.render import models
from evolve.pages.svg import Axis, Bar, BarGroup, Dot, Line, bars, plot, ranges

X, Y, LOG = Axis("x", "{:g}".format), Axis("y", "{:g}".format), Axis("y", "{:g}".format, log=True)


@pytest.mark.parametrize("axis", [Y, LOG])
@pytest.mark.parametrize(
    "points", [[(1.0, 1.0)], [(0.0, 1.0), (9.0, 1.0)], [(1.0, 1e-6), (2.0, 1e9)], [(0.0, 3.0), (1e9, 4.0)]]
)
def test_any_points_give_a_well_formed_picture_with_ticks(points: list[tuple[float, float]], axis: Axis) -> None:
    drawn = ET.fromstring(plot("title", (X, axis), [Line("a", points)]))
    assert len(drawn.findall("path")) == 1
    assert len(drawn.findall("text")) > 1
    assert not {"nan", "inf"} & {value for one in drawn.iter() for value in one.attrib.values()}


def test_no_points_give_no_picture() -> None:
    assert not plot("title", (X, Y))


def test_a_step_is_drawn_horizontally_before_vertically() -> None:
    drawn = ET.fromstring(plot("title", (X, Y), [Line("a", [(0.0, 1.0), (1.0, 2.0)])]))
    assert drawn.findall("path")[0].attrib["d"].count("H") == 1


def test_text_in_a_plot_is_escaped() -> None:
    hostile = '"><script>x</script>\x1b'
    drawn = ET.fromstring(
        f"<g>{plot(hostile, (X, Y), [], [Dot(1, 1, hostile, '#/a')])}"
        f"{bars(hostile, [BarGroup(hostile, [Bar(1, hostile, 'k')], 1.0)])}"
        f"{ranges(hostile, X, [(hostile, '', [])])}</g>"
    )
    assert not list(drawn.iter("script"))
    assert len([one for one in drawn.iter("title") if (one.text or "").startswith('"><script>x</script>\\u001b')]) == 4


def test_thousands_of_dots_are_thinned_out() -> None:
    drawn = plot("title", (X, Y), [], [Dot(n, n, "") for n in range(10_000)])
    assert 1_000 < drawn.count("<circle") <= 1_500


def test_devices_are_named_by_as_many_words_as_distinguish_them() -> None:
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA H100 PCIe")
    assert list(models(names[:2]).values()) == ["H100", "H200"]
    assert list(models(names).values()) == ["H100 80GB", "H200", "H100 PCIe"]
    assert models(["NVIDIA H100", "NVIDIA H100 PCIe"]) == {"NVIDIA H100": "H100", "NVIDIA H100 PCIe": "H100 PCIe"}
    assert models(names[:1]) == {"NVIDIA H100 80GB HBM3": "H100"}
