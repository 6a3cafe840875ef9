"""Plots as SVG text. Colours come from the style sheet by class, so that they follow the reader's colour scheme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from archive.characters import escaped

WIDTH, HEIGHT = 520, 250  # size of a plot; a phone shows it at two thirds of this size
LEFT, RIGHT, TOP, BOTTOM = 52, 26, 26, 40  # margins of a plot
COLORS = 6  # number of colours: classes c0 to c5 of the style sheet
DOTS_SHOWN = 1_500  # largest number of dots that a plot draws
NARROW = 4.0  # a logarithmic axis with a smaller range has evenly spaced ticks
BAR, GAP, LABEL_WIDTH = 13, 3, 150  # height of a bar, space below it, and space for labels left of the bars
WORDS_WIDTH = 160  # space right of the longest bar for words such as `12345 µs autotune` in the large type of a phone
LABEL_LENGTH = 22  # largest number of characters of a label
OP_WIDTH, OP_LENGTH = 195, 30  # width and length of a label with an op and a device

Point = tuple[float, float]


@dataclass(frozen=True)
class Dot:
    """One marked point. It becomes a link if `href` is not empty."""

    x: float
    y: float
    words: str
    href: str = ""
    kind: str = ""  # class in the style sheet


@dataclass(frozen=True)
class Line:
    """A named line. If drawn as steps, the value of each point holds until the next point."""

    name: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Axis:
    """One axis of a plot: its title, how its values are printed, and whether it is logarithmic."""

    title: str
    printed: Callable[[float], str]
    log: bool = False


@dataclass(frozen=True)
class Bar:
    """One bar, with the words after it."""

    value: float
    words: str
    kind: str


@dataclass(frozen=True)
class BarGroup:
    """Bars with a common label; the mark is a lower bound of their values."""

    label: str
    bars: Sequence[Bar]
    mark: float | None = None


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(max(one, 1e-12)) if self.log else one for one in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """Return an element. `_` in attribute names becomes `-`, and a trailing `_` is dropped."""
    given = "".join(
        [
            f' {name.rstrip("_").replace("_", "-")}="{_shown(value)}"'
            for name, value in attributes.items()
            if value not in ("", None)
        ]
    )
    inner = "".join([one if isinstance(one, Markup) else escape(escaped(str(one))) for one in children])
    return Markup(f"<{tag}{given}>{inner}</{tag}>")  # noqa: S704 - all but our own names and finished HTML is escaped


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return str(value) if isinstance(value, int) else escape(escaped(str(value)))


def picture(width: int, height: int, title: str, *children: Markup, kind: str = "plot") -> Markup:
    """Return an SVG that scales with its container. A screen reader reads its title, and any links in it."""
    role = "group" if any("<a " in child for child in children) else "img"
    return element(
        "svg", element("title", title), *children, class_=kind, viewBox=f"0 0 {width} {height}", role=role,
        preserveAspectRatio="xMinYMin meet", aria_label=title,
    )  # fmt: skip


def plot(
    title: str,
    axes: tuple[Axis, Axis],
    steps: Sequence[Line] = (),
    dots: Sequence[Dot] = (),
    lines: Sequence[Line] = (),
) -> Markup:
    """Return step functions, lines and dots in one coordinate system. Too many dots are thinned out."""
    x, y = axes
    shown = dots if len(dots) <= DOTS_SHOWN else [*dots[:: math.ceil(len(dots) / DOTS_SHOWN)]]
    points = [*(point for line in (*steps, *lines) for point in line.points), *((dot.x, dot.y) for dot in shown)]
    if not points:
        return Markup("")
    across = _range([one for one, _ in points], x.log, from_zero=not x.log)
    up = _range([one for _, one in points], y.log)
    to_x = _Scale(*across, LEFT, WIDTH - RIGHT, x.log)
    to_y = _Scale(*up, HEIGHT - BOTTOM, TOP, y.log)
    drawn = [*_grid(x, y, to_x, to_y), *(_dot(dot, to_x, to_y) for dot in shown)]
    drawn += [_steps(line, index, to_x, to_y) for index, line in enumerate(steps)]
    drawn += [_straight(line, index, to_x, to_y) for index, line in enumerate(lines)]
    return picture(WIDTH, HEIGHT, title, *drawn)


def legend(names: Sequence[str]) -> Markup:
    """Return the names of a plot's lines beside their colours."""
    items = (
        element("li", element("span", class_=f"key b{index % COLORS}", aria_hidden="true"), name)
        for index, name in enumerate(names)
    )
    return element("ul", *items, class_="legend")


def _steps(line: Line, index: int, to_x: _Scale, to_y: _Scale) -> Markup:
    path, before = [], None
    for x, y in line.points:
        at = f"{to_x(x):.1f} {to_y(y):.1f}"
        path.append(f"M{at}" if before is None else f"H{to_x(x):.1f}V{to_y(y):.1f}")
        before = y
    return element("path", d="".join(path), class_=f"curve c{index % COLORS}", fill="none")


def _straight(line: Line, index: int, to_x: _Scale, to_y: _Scale) -> Markup:
    path = "L".join(f"{to_x(x):.1f} {to_y(y):.1f}" for x, y in line.points)
    return element("path", d=f"M{path}", class_=f"curve c{index % COLORS}", fill="none")


def _dot(dot: Dot, to_x: _Scale, to_y: _Scale) -> Markup:
    circle = element("circle", element("title", dot.words), cx=to_x(dot.x), cy=to_y(dot.y), r=3.5,
                     class_=f"dot {dot.kind}".strip())  # fmt: skip
    # The tables have the same links, so the keyboard need not stop at every dot.
    return element("a", circle, href=dot.href, tabindex="-1", aria_label=dot.words) if dot.href else circle


def _range(values: Sequence[float], log: bool, *, from_zero: bool = False) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return (low / 1.15, high * 1.15) if low > 0 else (1e-3, max(high, 1.0))
    low = 0.0 if from_zero else low - 0.06 * (high - low)
    return (low, high * 1.02 if from_zero else high + 0.06 * (high - low)) if high > low else (low - 0.5, high + 0.5)


def _grid(x: Axis, y: Axis, to_x: _Scale, to_y: _Scale) -> list[Markup]:
    bottom, drawn = HEIGHT - BOTTOM, []
    for value in _ticks(to_x):
        at = to_x(value)
        drawn += [
            element("line", x1=at, x2=at, y1=TOP, y2=bottom, class_="grid"),
            element("text", x.printed(value), x=at, y=bottom + 16, text_anchor="middle"),
        ]
    for value in _ticks(to_y):
        at = to_y(value)
        drawn += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"),
            element("text", y.printed(value), x=LEFT - 6, y=at + 4, text_anchor="end"),
        ]
    drawn.append(element("text", x.title, x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 4, text_anchor="middle"))
    return [*drawn, element("text", y.title, x=0, y=13)] if y.title else drawn


def _ticks(scale: _Scale, most: int = 6) -> list[float]:
    if scale.log and scale.high / scale.low > NARROW:
        return _log_ticks(scale.low, scale.high, most)
    span = scale.high - scale.low
    step = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.ceil(scale.low / step)
    return [number * step for number in range(first, math.floor(scale.high / step) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [factor * 10.0**decade for decade in decades for factor in factors]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most + 2:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def bars(title: str, groups: Sequence[BarGroup]) -> Markup:
    """Return horizontal bars, each group scaled to its own longest bar, with a line at the group's mark."""
    drawn, top = [], 4
    room = WIDTH - LABEL_WIDTH - WORDS_WIDTH
    for group in groups:
        longest = max((bar.value for bar in group.bars), default=1.0) or 1.0
        height = len(group.bars) * (BAR + GAP)
        drawn.append(element("text", _cut(group.label, LABEL_LENGTH), x=0, y=top + height / 2 + 3, class_="label"))
        for index, bar in enumerate(group.bars):
            y, length = top + index * (BAR + GAP), max(1.0, room * bar.value / longest)
            drawn += [
                element("rect", x=LABEL_WIDTH, y=y, width=length, height=BAR, rx=2, class_=f"bar {bar.kind}"),
                element("text", bar.words, x=LABEL_WIDTH + length + 6, y=y + BAR - 2.5),
            ]
        if group.mark:
            at = LABEL_WIDTH + room * min(1.0, group.mark / longest)
            drawn.append(element("line", x1=at, x2=at, y1=top - 1, y2=top + height - GAP + 1, class_="mark"))
        top += height + 10
    return picture(WIDTH, max(top, 1), title, *drawn, kind="plot bars")


def ranges(title: str, axis: Axis, rows: Sequence[tuple[str, str, Sequence[Dot]]]) -> Markup:
    """Return a row of dots per label, on one axis with a line at 1. Each row has a label, a link and dots."""
    values = [dot.x for _, _, dots in rows for dot in dots] or [1.0]
    scale = _Scale(*_range([*values, 1.0], axis.log), OP_WIDTH, WIDTH - RIGHT, axis.log)
    height = 22 * len(rows)
    drawn = [element("line", x1=scale(1.0), x2=scale(1.0), y1=0, y2=height, class_="mark")]
    for value in _ticks(scale, 4):
        drawn.append(element("line", x1=scale(value), x2=scale(value), y1=0, y2=height, class_="grid"))
        drawn.append(element("text", axis.printed(value), x=scale(value), y=height + 16, text_anchor="middle"))
    for index, (label, href, dots) in enumerate(rows):
        y = 22 * index + 11
        text = element("text", _cut(label, OP_LENGTH), x=0, y=y + 4, class_="label")
        drawn.append(element("a", text, href=href, tabindex="-1") if href else text)
        reach = [scale(dot.x) for dot in dots]
        if reach:
            drawn.append(element("line", x1=min(reach), x2=max(reach), y1=y, y2=y, class_="reach"))
        drawn += [element("circle", element("title", dot.words), cx=scale(dot.x), cy=y, r=4, class_=f"dot {dot.kind}")
                  for dot in dots]  # fmt: skip
    drawn.append(element("text", axis.title, x=WIDTH, y=height + 34, text_anchor="end"))
    return picture(WIDTH, height + 40, title, *drawn)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
