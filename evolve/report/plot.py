"""Lines over numbers, drawn with braille dots, or with letters where the encoding has none."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
COLORS = ("cyan", "magenta", "yellow", "green", "red", "blue")
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille character, by row and column
BLANK = 0x2800
SEVERAL = "*"  # where letters of two lines meet
MARK_EVERY = 16  # columns between the letters that name a braille line


@dataclass(frozen=True)
class Line:
    """Steps: from each point on, its value holds until the next."""

    points: Sequence[tuple[float, float]]


def plot(lines: Sequence[Line], width: int, height: int, *, unicode: bool = True, unit: str = "") -> list[Text]:
    """Rows of text, none wider than `width`; the lines are called A, B and so on."""
    right = max((x for line in lines for x, _ in line.points), default=0.0) or 1.0
    values = [y for line in lines for _, y in line.points] or [1.0]
    low, high = min(values), max(values)
    high = high if high > low else low + 0.1
    labels = [_tick(high), _tick((low + high) / 2), _tick(low)]
    margin = max(map(len, labels))
    columns = max(8, width - margin - 2)
    canvas = _braille(lines, columns, height, (right, low, high)) if unicode else None
    rows = canvas or _letters(lines, columns, height, (right, low, high))
    axis = "│" if unicode else "|"
    named = {0: labels[0], height // 2: labels[1], height - 1: labels[2]}
    drawn = [Text.assemble((f"{named.get(row, ''):>{margin}} {axis}", "dim"), text) for row, text in enumerate(rows)]
    corner, dash = ("└", "─") if unicode else ("+", "-")
    drawn.append(Text(f"{'':>{margin}} {corner}{dash * columns}", "dim"))
    end = f"{amount(right)} {unit}".strip()
    end = end if len(end) < columns - 2 else amount(right)
    drawn.append(Text(f"{'':>{margin}}  0{end:>{columns - 1}}", "dim"))
    return drawn


def amount(value: float) -> str:
    """Of evaluations, tokens or dollars."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.4g}"


def _tick(value: float) -> str:
    return f"{value:.2f}x" if value < 100 else f"{value:.0f}x"


def _at(line: Line, x: float) -> float | None:
    """The value there, as long as the line lasts."""
    if not line.points or x > line.points[-1][0] * (1 + 1e-9):
        return None
    return [y for at, y in line.points if at <= x * (1 + 1e-9)][-1]


def _heights(line: Line, columns: int, rows: int, scale: tuple[float, float, float]) -> list[int | None]:
    """The row of the line in each column, counted from the top."""
    right, low, high = scale
    found: list[int | None] = []
    for column in range(columns):
        y = _at(line, right * column / max(1, columns - 1))
        found.append(None if y is None else round((high - y) / (high - low) * (rows - 1)))
    return found


def _braille(lines: Sequence[Line], columns: int, height: int, scale: tuple[float, float, float]) -> list[Text]:
    dots = [[0] * columns for _ in range(height)]
    owner = [[-1] * columns for _ in range(height)]
    for index, line in enumerate(lines):
        before: int | None = None
        for column, row in enumerate(_heights(line, 2 * columns, 4 * height, scale)):
            for filled in _between(before, row):
                dots[filled // 4][column // 2] |= DOTS[filled % 4][column % 2]
                owner[filled // 4][column // 2] = index
            before = row
    rows = []
    for drawn, owners in zip(dots, owner, strict=True):
        text = Text()
        for bits, index in zip(drawn, owners, strict=True):
            text.append(chr(BLANK + bits) if bits else " ", _color(index))
        rows.append(text)
    return _marked(rows, lines, columns, scale)


def _marked(rows: list[Text], lines: Sequence[Line], columns: int, scale: tuple[float, float, float]) -> list[Text]:
    """With a line's letter on it here and there: colours are not always to be had."""
    for index, line in enumerate(lines):
        fine = _heights(line, 2 * columns, 4 * len(rows), scale)
        at = [None if row is None else row // 4 for row in fine[::2]]
        last = max((column for column, row in enumerate(at) if row is not None), default=-1)
        first = (index + 1) * MARK_EVERY // (len(lines) + 1)
        for column in {*range(first, last, MARK_EVERY), last}:
            if (row := at[column] if column >= 0 else None) is not None:
                letter = Text(LETTERS[index % len(LETTERS)], f"bold {_color(index)}")
                rows[row] = Text.assemble(rows[row][:column], letter, rows[row][column + 1 :])
    return rows


def _letters(lines: Sequence[Line], columns: int, height: int, scale: tuple[float, float, float]) -> list[Text]:
    cells = [[" "] * columns for _ in range(height)]
    for index, line in enumerate(lines):
        before: int | None = None
        for column, row in enumerate(_heights(line, columns, height, scale)):
            for filled in _between(before, row):
                held = cells[filled][column]
                letter = LETTERS[index % len(LETTERS)]
                cells[filled][column] = letter if held in (" ", letter) else SEVERAL
            before = row
    return [Text("".join(row)) for row in cells]


def _between(before: int | None, row: int | None) -> Sequence[int]:
    """A step up or down is drawn as a vertical line."""
    if row is None:
        return ()
    start = row if before is None else before
    return range(min(start, row), max(start, row) + 1)


def _color(index: int) -> str:
    return COLORS[index % len(COLORS)] if index >= 0 else ""
