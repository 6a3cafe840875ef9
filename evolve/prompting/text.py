"""Text that is bounded and fenced, so that no log or source can blow up a prompt or break out of its block."""

import re

FENCE = re.compile(r"`{3,}|~{3,}")
BYTES_PER_TOKEN = 3  # of CUDA code, full of short names and signs; prose has more


def tokens(text: str) -> int:
    """About how many tokens a model's server will count; rather too many than too few."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def clipped(text: str, characters: int) -> str:
    """The beginning and the end of a text that is too long, with a mark between."""
    if len(text) <= characters:
        return text
    mark = f"\n[... {len(text) - characters} characters left out ...]\n"
    kept = max(characters - len(mark), 0)
    head = kept * 2 // 3
    return text[:head] + mark + text[len(text) - (kept - head) :]


def fenced(language: str, text: str) -> str:
    """A code block whose fence is longer than any inside it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def one_line(text: str, characters: int) -> str:
    """Without line breaks, and without fences, which nothing that stands outside a block may hold."""
    begin = text[: 4 * characters]  # a log may have megabytes
    joined = " ".join(FENCE.sub("''", begin).split())
    whole = len(joined) <= characters and len(begin) == len(text)
    return joined if whole else f"{joined[: characters - 3]}..."


def listed(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"- and {len(lines) - most} more"]


def size(count: float, units: tuple[str, ...], step: int) -> str:
    """A quantity in the largest unit that leaves at least one, such as `64 MiB` or `5.2 Gflop`."""
    for unit in units[:-1]:
        if count < step:
            return f"{count:.4g} {unit}"
        count /= step
    return f"{count:.4g} {units[-1]}"


def nbytes(count: float) -> str:
    return size(count, ("B", "KiB", "MiB", "GiB"), 1024)


def flops(count: float) -> str:
    return size(count, ("flop", "kflop", "Mflop", "Gflop", "Tflop"), 1000)


def us(time_us: float) -> str:
    return f"{time_us:.0f} us" if time_us >= 1000 else f"{time_us:.4g} us"


def times(ratio: float) -> str:
    """Two figures after the point, or where that leaves nothing the first two that are not zero."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"
