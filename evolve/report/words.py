"""Formatting of ids, workloads, times and counts, and the console that prints them."""

import contextlib
import json
import os
import re
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from archive.characters import escaped
from archive.kernel import Kernel
from evolve.devices.choose import policy_of

if TYPE_CHECKING:
    from evolve.budget import Spent

PIPED_WIDTH = 80  # width of tables if neither the output nor any other stream is a terminal


class SafeConsole(Console):
    """A console that escapes control characters: printed text may come from a model, a compiler or another archive."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            # Only rich itself creates control segments; printed text never becomes one.
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Return a console without markup, because kernels and logs contain square brackets."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _piped_width()
    return SafeConsole(file=stream, markup=False, highlight=False, emoji=False, width=width)


def _piped_width() -> int:
    """Return the width of the terminal of the other streams, in which a pager shows the output."""
    for stream in (sys.__stderr__, sys.__stdin__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return os.get_terminal_size(stream.fileno()).columns or PIPED_WIDTH  # type: ignore[union-attr]
    return PIPED_WIDTH


def print_json(value: object) -> None:
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_text(text: str, end: str = "\n") -> None:
    """Print text unformatted, with control characters escaped in a way that keeps JSON valid."""
    print(escaped(text), end=end)


def complain(message: str, hint: str = "") -> None:
    """Print an error and a hint on standard error, a line each. On a terminal, lines are wrapped between words."""
    output = console(stderr=True)
    for begin, text, style in (("error: ", message, "red"), ("       ", hint, "")):
        if text:
            say(output, text, style, begin=begin)


def say(output: Console, text: str, style: str = "", *, begin: str = "", indent: int = 0) -> None:
    """Print a paragraph.

    On a terminal, it is wrapped between words outside of commands in backticks; a pipe gets one line. Further lines are
    indented by `indent` or, if that is 0, by the length of `begin`.
    """
    lines = hanging(Text(begin), text, output.width, indent) if output.is_terminal else [Text(f"{begin}{text}")]
    output.print(*lines, style=style, sep="\n", soft_wrap=True)


def say_command(output: Console, begin: str, command: str, style: str = "") -> None:
    """Print a command to copy: after its introduction or, where a terminal would wrap it, on separate lines."""
    line = f"{begin} {command}"
    if output.is_terminal and cell_len(line) > output.width:
        line = f"{begin}\n{command_lines(command, output.width)}"
    output.print(Text(line), style=style, soft_wrap=True)


ID_SHOWN = 8
COMMAND, KEPT_SPACE = re.compile(r"`[^`\n]+`\S*"), "\N{NO-BREAK SPACE}"
LEAST_HANGING, SHORT_INDENT = 24, 4  # smallest width of indented text in columns, and the indent if there is less room
SHORT_DTYPES = {"bfloat16": "bf16", "float64": "fp64", "float32": "fp32", "float16": "fp16"}


@dataclass(frozen=True)
class WorkloadLabels:
    """Short names for the workloads of one op. `heading` names the sizes that differ, `throughout` the other sizes."""

    heading: str
    of: Mapping[str, str]
    throughout: str = ""


def workload_labels(keys: Sequence[str]) -> WorkloadLabels:
    """Return labels such as `64×256 fp32`, under the heading `rows×cols`, for `rows=64 cols=256 float32`."""
    parted = [_parts(key) for key in keys]
    names = [name for name, _ in parted[0][0]] if parted else []
    if not all([name for name, _ in pairs] == names for pairs, _ in parted):
        return WorkloadLabels("workload", {key: _with_short_dtype(key) for key in keys})
    sizes = [dict(pairs) for pairs, _ in parted]
    varying = [name for name in names if len(keys) == 1 or len({size[name] for size in sizes}) > 1]
    constant = [f"{name}={sizes[0][name]}" for name in names if name not in varying]
    of = {
        key: f"{'×'.join(size[name] for name in varying)} {SHORT_DTYPES.get(dtype, dtype)}".strip()
        for key, size, (_, dtype) in zip(keys, sizes, parted, strict=True)
    }
    if len(set(of.values())) < len(set(keys)):
        return WorkloadLabels("workload", {key: _with_short_dtype(key) for key in keys})
    return WorkloadLabels("×".join(varying) or "workload", of, " ".join(constant))


def short(content_id: str) -> str:
    return content_id[:ID_SHOWN]


def figure(value: float | None) -> str:
    """Format a time with about three digits, or None as `-`."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio: float | None) -> str:
    """Format a ratio of two times with two decimals."""
    if ratio is None:
        return "-"
    return "<0.01x" if 0 < ratio < 0.005 else f"{ratio:,.2f}x"


def times_label(kind: str) -> str:
    """Return the kind of times that the device measures, such as `CPU times`; empty for GPU times."""
    policy = policy_of(kind)
    return "" if policy.times_are_gpu_times else policy.times


def times_note(kind: str) -> str:
    """Return a warning to print beside times that are not GPU times; empty for GPU times."""
    label = times_label(kind)
    return f"{label} of the {kind} device; speed can be measured only on a GPU" if label else ""


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd >= 1 or not usd else f"${usd:.4f}"


def amounts(spent: "Spent") -> str:
    """Return text such as `0:42, 30 evaluations, 1,234 tokens, $0.0123`. Zero tokens and dollars are left out."""
    parts = [clock(spent.seconds), counted(spent.evals, "evaluation")]
    parts += [f"{spent.tokens:,} tokens"] if spent.tokens else []
    parts += [dollars(spent.usd)] if spent.usd else []
    return ", ".join(parts)


def clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(created: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created)) if created else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return `1 kernel`, `2 kernels`, and so on."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """Join the words as in `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def hanging(begin: Text, text: str, width: int, indent: int = 0) -> list[Text]:
    """Return the text after its introduction, wrapped only between words.

    Paths, and commands in backticks that fit on a line, are not broken.
    """
    indent = indent or len(begin.plain)
    if width - indent < LEAST_HANGING:
        indent = SHORT_INDENT
    first = textwrap.TextWrapper(
        width, initial_indent=begin.plain, subsequent_indent=" " * indent, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip
    lines = [line.replace(KEPT_SPACE, " ") for line in first.wrap(_with_whole_commands(text, width - indent))]
    lines = lines or [begin.plain]
    word = lines[0][len(begin.plain) :]
    if len(lines[0]) > width >= SHORT_INDENT + len(word):  # a long path fits only on a separate line
        return [Text.assemble(begin), Text(" " * SHORT_INDENT + word), *map(Text, lines[1:])]
    return [Text.assemble(begin, lines[0][len(begin.plain) :]), *map(Text, lines[1:])]


def _with_whole_commands(text: str, most: int) -> str:
    """Return the text with non-breaking spaces in the commands in backticks that have at most `most` columns."""

    def kept(found: re.Match[str]) -> str:
        return found[0].replace(" ", KEPT_SPACE) if cell_len(found[0]) <= most else found[0]

    return COMMAND.sub(kept, text)


def typed(*words: str) -> str:
    """Return words as typed in a shell: quoted, and with paths below the working directory relative."""
    here = f"{Path.cwd()}/"
    return shlex.join(word.removeprefix(here).replace(f"@{here}", "@") for word in words)


def command_lines(command: str, width: int) -> str:
    """Return a command that fits the width: it continues on further lines between its options, as a shell allows."""
    parts = [part if number == 0 else f"--{part}" for number, part in enumerate(command.split(" --"))]
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {part}")
        else:
            lines[-1] += f" {part}"
    return "\n".join(lines)


def one_line(text: str, most: int = 200) -> str:
    """Return the beginning of a text, on one line."""
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"


def knobs(settings: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def idea(kernel: Kernel | None) -> str:
    """Return the note of a kernel's plan, or the name of its first entry."""
    return one_line(kernel.note or kernel.plan.launches[0].entry) if kernel else ""


def change(kernel: Kernel, parent: Kernel | None) -> str:
    """Return the knobs in which a kernel differs from its parent, or its idea if it differs in more than knobs."""
    if parent is None:
        return idea(kernel)
    ours, theirs = kernel.settings, parent.settings  # read without parsing the plans, because a page shows many kernels
    if ours.keys() == theirs.keys() and kernel.has_code_of(parent):
        changed = [f"{name} {theirs[name]}→{value}" for name, value in ours.items() if theirs[name] != value]
        if changed:
            return ", ".join(changed)
    return idea(kernel)


def outcomes(counts: Mapping[str, int]) -> str:
    """Return text such as `12 passed, 3 wrong`."""
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


def _parts(key: str) -> tuple[list[tuple[str, str]], str]:
    pairs, dtype = [], ""
    for word in key.split():
        name, equals, value = word.partition("=")
        if equals:
            pairs.append((name, value))
        else:
            dtype = word
    return pairs, dtype


def _with_short_dtype(key: str) -> str:
    return " ".join(SHORT_DTYPES.get(word, word) for word in key.split())
