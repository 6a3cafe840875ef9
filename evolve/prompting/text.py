"""Text that is bounded and fenced, so that no log or source can blow up a prompt or break out of its block."""

import re


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
    joined = " ".join(text.split())
    return joined if len(joined) <= characters else f"{joined[: characters - 3]}..."


def size(count: float, units: tuple[str, ...], step: int) -> str:
    """A quantity in the largest unit that leaves at least one, such as `64 MiB` or `5.2 Gflop`."""
    for unit in units[:-1]:
        if count < step:
            return f"{count:.4g} {unit}"
        count /= step
    return f"{count:.4g} {units[-1]}"


def nbytes(count: int) -> str:
    return size(count, ("B", "KiB", "MiB", "GiB"), 1024)


def flops(count: float) -> str:
    return size(count, ("flop", "kflop", "Mflop", "Gflop", "Tflop"), 1000)
