"""Kernels, differences and logs as HTML. Everything that a model wrote is escaped before any markup is added."""

from functools import lru_cache

from markupsafe import Markup
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import CudaLexer, TOMLLexer

from archive.characters import escaped
from archive.kernel import CLOSE, OPEN
from evolve.pages.svg import element
from evolve.report.differences import Side, side_by_side

MOST_HIGHLIGHTED = 200_000  # characters; a longer text is shown plain
FORMAT = HtmlFormatter(nowrap=True, classprefix="h-")


@lru_cache(maxsize=256)
def kernel_lines(text: str) -> tuple[Markup, ...]:
    """Return a kernel's lines with its plan highlighted as TOML and its source as CUDA."""
    shown = escaped(text.rstrip("\n"))
    begin, end = shown.find(OPEN), shown.find(f"\n{CLOSE}")
    if len(shown) > MOST_HIGHLIGHTED:
        return tuple(element("span", line) for line in shown.split("\n"))
    if begin != 0 or end < 0:
        return _lines(shown, CudaLexer(stripnl=False, ensurenl=False))
    first, *plan = shown[:end].split("\n")
    close, *source = shown[end + 1 :].split("\n")
    opened, closed = (element("span", line, class_="h-c") for line in (first, close))
    toml = _lines("\n".join(plan), TOMLLexer(stripnl=False, ensurenl=False))
    return opened, *toml, closed, *_lines("\n".join(source), CudaLexer(stripnl=False, ensurenl=False))


def _lines(text: str, lexer: Lexer) -> tuple[Markup, ...]:
    """Return highlighted lines. The formatter closes its elements at the end of each line."""
    found = highlight(text, lexer, FORMAT).removesuffix("\n").split("\n")
    plain = text.split("\n")
    if len(found) != len(plain):
        return tuple(element("span", line) for line in plain)
    return tuple(Markup(line) for line in found)  # noqa: S704 - Pygments has escaped it


def source(text: str) -> Markup:
    """Return a kernel with numbered lines; the numbers are drawn by the style sheet, so that they are not copied."""
    lines = (element("span", line, class_="line") + "\n" for line in kernel_lines(text))
    return element("pre", element("code", *lines), class_="source", tabindex="0")


def plain(text: str, label: str) -> Markup:
    """Return text in a box that scrolls, with control characters written out."""
    return element("pre", text.rstrip("\n"), class_="text", tabindex="0", role="region", aria_label=label)


def difference(left: str, right: str, names: tuple[str, str]) -> Markup:
    """Return a table with two texts side by side, without the lines that both have far from any change."""
    groups = side_by_side(left, right)
    if not groups:
        return element("p", "The texts are equal.", class_="dim")
    head = element("tr", *(element("th", name, colspan=2, scope="colgroup") for name in names))
    bodies = [
        element("tbody", *(element("tr", *_cells(pair.left, "del" if pair.changed else ""),
                                   *_cells(pair.right, "ins" if pair.changed else "")) for pair in group))
        for group in groups
    ]  # fmt: skip
    columns = Markup("<colgroup>{0}{0}</colgroup>").format(Markup('<col class="at"><col>'))
    return element("table", columns, element("thead", head), *bodies, class_="diff")


def _cells(side: Side, kind: str) -> tuple[Markup, Markup]:
    tag = {"del": "del", "ins": "ins"}.get(kind, "span")
    if not side.number:
        return element("td", class_="number"), element("td", class_="none")
    parts = (
        element(tag, part.text) if part.changed and len(side.parts) > 1 else element("span", part.text)
        for part in side.parts
    )
    return element("td", side.number, class_="number"), element("td", *parts, class_=kind)
