"""Reading a kernel's C++ without compiling it: what is code, and what it includes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

LITERAL = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/|R"([^()\s\\]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
DIRECTIVE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(include\w*|import|embed)\b.*$", re.MULTILINE)
SPLICED = re.compile(r"^[ \t]*(?:#|%:)[ \t]*(?:\w+\\\n\w|\\\n)", re.MULTILINE)  # the word itself, not what follows


@dataclass(frozen=True)
class Include:
    """A directive that brings in another file; `plain` unless it is an oddity such as #embed or #include_next."""

    start: int
    end: int
    header: str  # the name between the brackets or quotes; empty where a macro stands instead
    written: str
    plain: bool


def includes(source: str) -> Iterator[Include]:
    """Every directive that brings in a file, comments apart."""
    # Found in the text without literals, but read with them: a file's name may be one.
    for match in DIRECTIVE.finditer(re.sub(r"\\\n", "  ", masked(source))):
        written = source[match.end(1) : match.end()].strip()
        name = re.match(r'<([^>]*)>|"([^"]*)"', written)
        header = (name.group(1) or name.group(2) or "").strip() if name else ""
        yield Include(*match.span(), header, written, match.group(1) == "include")


def spliced_directive(source: str) -> int | None:
    """Where a directive's own word is broken over two lines, which no honest kernel needs."""
    match = SPLICED.search(masked(source))
    return match.start() if match else None


def masked(source: str) -> str:
    """The source with comments and literals blanked, every other character in its place."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match.group())

    return LITERAL.sub(blank, source)
