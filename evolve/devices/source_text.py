"""Tokens of CUDA sources, and a filter that removes lines about other files from compiler messages."""

import os.path
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SPLICE = re.compile(r"\\([ \t\v\f]*)\n")
TOKEN = re.compile(
    r"""
      (?P<comment> //[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<raw> (?:u8|[uUL])?R"(?P<delimiter>[^()\\\s"]{0,16})\((?:.*?\)(?P=delimiter)"|.*\Z) )
    | (?P<literal> (?:u8|[uUL])?(?:"(?:\\[^\n]|[^"\\\n])*"?|'(?:\\[^\n]|[^'\\\n])*'?) )
    | (?P<number> \.?[0-9](?:[eEpP][+-]|'?\w|\.)* )
    | (?P<word> (?:[A-Za-z_$]|[^\x00-\x7f])(?:[\w$]|[^\x00-\x7f])* )
    | (?P<space> [\x00-\x09\x0b-\x20]+ )
    | (?P<sign> \#\#|%:%:|\#|%:|. )
    """,
    re.DOTALL | re.VERBOSE | re.ASCII,
)
FILE_DIRECTIVES = frozenset({"include", "include_next", "import", "embed"})
# Operators that test whether a file exists; they may occur anywhere in the source.
QUESTIONS = frozenset({"__has_include", "__has_include_next", "__has_embed"})
TIME_MACROS = ("__DATE__", "__TIME__", "__TIMESTAMP__")  # their values differ between compilations
HASHES, PASTES = ("#", "%:"), ("##", "%:%:")
TRIGRAPH = re.compile(r"\?\?[=/']")  # trigraphs stand for characters that begin or continue a token
RAW_PREFIXES = frozenset({"R", "LR", "uR", "UR", "u8R"})
BEFORE_RAW = frozenset(" \t\n(,=;{[+?:&|<>!")
LATER_LINES = re.compile(r'/\*|R"')  # outside of a literal, these begin a token that continues beyond the line
LEFT_OUT = "error: the compiler read a file that does not belong to the kernel; messages about that file are left out"
# `file:12:5: error`, `file:12: note`, `file: In function`, `file(12): error`, `ptxas file, line 12; error`
PLACE = re.compile(
    r"(?P<gnu>[^\s:][^:\n]*):(?:\d+:|[ ](?:In |At |Assembler messages))"
    r"|(?P<nvrtc>\S[^\n]*?)\(\d+\): \w"
    r"|ptxas (?P<ptxas>[^\n]*?), line \d+;"
)
# Beginnings of messages that are not about a file.
GENERAL = re.compile(
    r"\d+ \w+ detected|At end of source|Remark:|ptxas |nvrtc|cc1plus:|collect2:|compilation terminated|\S*ld"
)
# Lines that name an including file; excerpts of these files follow later.
ROUTE = re.compile(r"In file included from |\s+from ")


@dataclass(frozen=True)
class Include:
    """A place where the source reads a file or tests whether one exists; `plain` if it is an ordinary #include."""

    start: int
    end: int
    header: str  # the name in brackets or quotes; empty if it comes from a macro
    written: str
    plain: bool


@dataclass(frozen=True)
class Token:
    """A token of the joined text. In the source it may be longer, because it may be split across lines."""

    kind: str
    text: str
    start: int
    end: int
    joined: int  # offset in the joined text


@dataclass(frozen=True)
class Reading:
    """A source with its continued lines joined, and all its tokens including blanks and newlines."""

    joined: str
    tokens: tuple[Token, ...]


def includes(source: str) -> Iterator[Include]:
    """Yield every place that reads or tests for a file, or that compilers may parse differently from this module."""
    reading = _read(source)
    line_begins = True
    for index, token in enumerate(reading.tokens):
        if token.text in HASHES and token.kind == "sign":
            yield from _directive(reading, index, line_begins)
        elif (token.kind == "word" and token.text in QUESTIONS) or _doubtful(reading, token):
            yield Include(token.start, token.end, "", token.text, plain=False)
        if token.kind not in ("space", "comment"):
            line_begins = token.text == "\n"
    for question in _pasted(QUESTIONS, reading.tokens):
        yield Include(0, 0, "", f"{question} joined by ##", plain=False)
    for match in TRIGRAPH.finditer(source):
        yield Include(*match.span(), "", match.group(), plain=False)


def word_beginning(source: str, beginnings: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the place and the text of a word with one of these beginnings, or None.

    Words that ## may form are included.
    """
    tokens = _read(source).tokens
    for token in tokens:
        if token.kind == "word" and token.text.startswith(beginnings):
            return token.start, token.text
    return next(((0, f"{beginning} joined by ##") for beginning in _pasted(beginnings, tokens)), None)


def spliced_directive(source: str) -> int | None:
    """Return the place of a directive whose name is split across lines, or None.

    Legitimate kernels do not contain any.
    """
    tokens = _read(source).tokens
    for index, token in enumerate(tokens):
        if token.kind == "sign" and token.text in HASHES:
            word = _next(tokens, index)
            if word and word.kind == "word" and SPLICE.search(source, token.start, word.end):
                return token.start
    return None


@lru_cache(maxsize=16)  # all workloads have the same source
def masked(source: str) -> str:
    """Return the source with comments and literals blanked and every other token in its place.

    A token that is split across lines is joined, and the line break is moved behind it, so that a split word is found
    too.
    """
    pieces, end = [], 0
    for token in _read(source).tokens:
        written = source[token.start : token.end]
        pieces.append(_breaks(source[end : token.start]))
        if token.kind in ("comment", "raw", "literal"):
            pieces.append(re.sub(r"\\(?!\n)|[^\\\n]", " ", SPLICE.sub(_tight, written)))
        else:
            pieces.append(token.text + _breaks(written))
        end = token.end
    return "".join([*pieces, _breaks(source[end:])])


def without_foreign_files(log: str, names: Iterable[str], folders: Iterable[Path]) -> str:
    """Return only the messages and excerpts of a log that concern these files, or files in these folders."""
    known, roots = set(names), [os.path.normpath(folder) + os.sep for folder in folders]

    def is_known(file: str) -> bool:
        return file in known or (Path(file).is_absolute() and os.path.normpath(file).startswith(tuple(roots)))

    kept, keep, dropped = [], True, False
    for line in log.split("\n"):
        place = None if ROUTE.match(line) else PLACE.match(line)
        if place:
            keep = is_known(place.group("gnu") or place.group("nvrtc") or place.group("ptxas"))
        elif GENERAL.match(line):
            keep = True
        dropped |= not keep
        if keep:
            kept.append(line)
    return "\n".join([*kept, LEFT_OUT] if dropped else kept)


def _directive(reading: Reading, index: int, line_begins: bool) -> Iterator[Include]:
    """Yield the include that a `#` begins. #line counts as one: compilers quote lines of the file that it names."""
    sign, word = reading.tokens[index], _next(reading.tokens, index)
    if word is None:
        return
    name = re.sub(r"[^\x00-\x7f]", "", word.text)
    is_line = line_begins and (name == "line" or word.kind == "number")
    if name not in FILE_DIRECTIVES and not is_line:
        return
    rest = reading.tokens[index:]
    last = next((token for token in rest if token.text == "\n"), Token("", "", rest[-1].end, 0, len(reading.joined)))
    written = reading.joined[word.joined + len(word.text) : last.joined].strip()
    match = re.match(r'<([^>]*)>|"([^"]*)"', written)
    header = (match.group(1) or match.group(2) or "").strip() if match else ""
    yield Include(sign.start, last.start, header, written, plain=line_begins and word.text == "include")


def _pasted(beginnings: Iterable[str], tokens: tuple[Token, ...]) -> list[str]:
    """Return the beginnings of words that ## could form from shorter words or from numbers."""
    if not any(token.kind == "sign" and token.text in PASTES for token in tokens):
        return []
    pieces = {token.text for token in tokens if token.kind in ("word", "number")}.difference(beginnings)

    def made(rest: str) -> bool:
        return any(piece.startswith(rest) or (rest.startswith(piece) and made(rest[len(piece) :])) for piece in pieces)

    return sorted(beginning for beginning in beginnings if made(beginning))


def _doubtful(reading: Reading, token: Token) -> bool:
    """Return whether compilers may parse the text from this token on in different ways."""
    end = token.joined + len(token.text)
    before, after = reading.joined[max(token.joined - 1, 0) : token.joined], reading.joined[end : end + 1]
    match token.kind:
        case "raw":
            whole = re.match(r'\w*"([^(]*)\(.*\)\1"\Z', token.text, re.DOTALL)
            broken = token.end - token.start != len(token.text)
            beginnings = re.search(r"\n[\x00-\x20]*(?:#|%:)", token.text)
            return not whole or broken or beginnings is not None or (before != "" and before not in BEFORE_RAW)
        case "literal":
            quote = token.text.lstrip("uUL8")
            closed = re.match(r"""(["'])(?:\\.|(?!\1)[^\\])*\1\Z""", quote)
            return not closed and LATER_LINES.search(quote) is not None
        case "number":
            return after == "'"
        case "word":
            plain = re.fullmatch(r"[A-Za-z0-9_]+", token.text) and token.text not in RAW_PREFIXES
            return after == '"' and token.text.endswith("R") and not plain
    return False


def _next(tokens: tuple[Token, ...], index: int) -> Token | None:
    """Return the next token on the line other than blanks and comments."""
    found = next((token for token in tokens[index + 1 :] if token.kind not in ("space", "comment")), None)
    return found if found and found.text != "\n" else None


@lru_cache(maxsize=16)
def _read(source: str) -> Reading:
    kept: list[str] = []
    places: list[int] = []  # source offset of every joined character
    end = 0
    for splice in SPLICE.finditer(source):
        kept.append(source[end : splice.start()])
        places.extend(range(end, splice.start()))
        end = splice.end()
    kept.append(source[end:])
    places.extend(range(end, len(source)))
    joined = "".join(kept)
    tokens = tuple(
        Token(match.lastgroup or "", match.group(), places[match.start()], places[match.end() - 1] + 1, match.start())
        for match in TOKEN.finditer(joined)
    )
    return Reading(joined, tokens)


def _tight(splice: re.Match[str]) -> str:
    """Return a line continuation with its blanks moved in front of the backslash."""
    return f"{splice.group(1)}\\\n"


def _breaks(written: str) -> str:
    return "".join(_tight(splice) for splice in SPLICE.finditer(written))
