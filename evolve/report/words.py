"""Short words for ids, workloads, times and changes, and the console that prints them."""

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from archive.characters import escaped
from archive.kernel import Kernel
from archive.records import Evaluation

PIPED_WIDTH = 120  # of tables that no terminal gives a width


class SafeConsole(Console):
    """What it prints may come from a model, a compiler or another archive: it never steers the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            # Control segments are rich's own: nothing that is printed can become one.
            yield segment if segment.control else Segment(escaped(segment.text), segment.style)


def console(*, stderr: bool = False) -> Console:
    """Nothing that is printed is taken for markup: kernels and logs are full of square brackets."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPED_WIDTH
    return SafeConsole(file=stream, markup=False, highlight=False, emoji=False, width=width)


def print_json(value: object) -> None:
    print_text(json.dumps(value, indent=2, ensure_ascii=False))


def print_text(text: str, end: str = "\n") -> None:
    """As it stands, for people and programs to copy; still JSON where it was."""
    print(escaped(text), end=end)


def complain(message: str, hint: str = "") -> None:
    """What happened and what to do, a line each, where errors belong."""
    shown = console(stderr=True)
    shown.print(f"error: {message}", style="red", soft_wrap=True)
    if hint:
        shown.print(f"       {hint}", soft_wrap=True)


ID_SHOWN = 8
SHORT_DTYPES = {"bfloat16": "bf16", "float64": "fp64", "float32": "fp32", "float16": "fp16"}
EMULATED_TIMES = "CPU times of an emulator: no statement about a GPU"


@dataclass(frozen=True)
class WorkloadLabels:
    """Workloads of one op by the sizes in which they differ; `heading` names those, `throughout` the rest."""

    heading: str
    of: Mapping[str, str]
    throughout: str = ""


def workload_labels(keys: Sequence[str]) -> WorkloadLabels:
    """From `rows=64 cols=256 float32` to `64×256 fp32` under the heading `rows×cols`."""
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
    """Three or four digits of a time; `-` where there is none."""
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def times(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"{ratio:.2g}x" if 0 < ratio < 0.01 else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:.0f}x"


def percent(share: float | None, digits: int = 0) -> str:
    return "-" if share is None else f"{share:.{digits}%}"


def clock(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def moment(created: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(created)) if created else ""


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def one_line(text: str, most: int = 200) -> str:
    """A log's first words, on one line."""
    joined = " ".join(text.split())
    return joined if len(joined) <= most else joined[: most - 1] + "…"


def knobs(settings: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def idea(kernel: Kernel | None) -> str:
    """What a kernel is, in its own words."""
    return one_line(kernel.plan.note or kernel.plan.launches[0].entry) if kernel else ""


def change(kernel: Kernel, parent: Kernel | None) -> str:
    """What a kernel changed in its parent: knobs, or more than that."""
    if parent is None:
        return idea(kernel)
    ours, theirs = kernel.plan.settings, parent.plan.settings
    if kernel.source == parent.source and ours.keys() == theirs.keys():
        changed = [f"{name} {theirs[name]}→{value}" for name, value in ours.items() if theirs[name] != value]
        if changed:
            return ", ".join(changed)
    return idea(kernel)


def mean_speedup(evaluation: Evaluation) -> float | None:
    """The geometric mean over the workloads that were timed."""
    speedups = [max(measurement.speedup, 1e-9) for measurement in evaluation.measurements]
    return math.exp(sum(map(math.log, speedups)) / len(speedups)) if speedups else None


def best_speedup(evaluation: Evaluation) -> float | None:
    return max((measurement.speedup for measurement in evaluation.measurements), default=None)


def outcomes(counts: Mapping[str, int]) -> str:
    """`12 passed, 3 wrong`."""
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
