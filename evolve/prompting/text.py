"""Building blocks of prompts: messages, bounded and fenced text, and figures with units.

Bounds and fences prevent a log or a source from filling the prompt or breaking out of its block.
"""

import re
from dataclasses import dataclass

MAX_TOKENS = 16_000  # limit on the tokens of a prompt with all its messages
MAX_NOTE, MAX_WORKLOAD = 240, 160  # limits on the characters of a kernel's note and a workload's key
REGISTERS, THREADS, BLOCKS = 65_536, 2048, 32  # limits of a multiprocessor since Volta, except on `SMALL_ARCHS`
SMALL_ARCHS = ("sm_75", "sm_86", "sm_87", "sm_89", "sm_120")  # architectures whose multiprocessors hold fewer threads

FENCE = re.compile(r"`{3,}|~{3,}")
BYTES_PER_TOKEN = 3  # in CUDA code, which has many short names and signs; prose has more bytes per token
TOKENS_PER_MESSAGE = 8  # overhead that a server adds to each message


@dataclass(frozen=True)
class Message:
    """One message of a conversation with a model."""

    role: str
    content: str


def estimated_tokens(messages: tuple[Message, ...]) -> int:
    """Return an estimate of the prompt tokens that a server will count for these messages."""
    return sum(tokens(message.content) + TOKENS_PER_MESSAGE for message in messages)


def tokens(text: str) -> int:
    """Return an estimate of the tokens in a text, which is more often too high than too low."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


def clipped(text: str, characters: int) -> str:
    """Return the text, with a mark in place of the middle if it is too long."""
    if len(text) <= characters:
        return text
    mark = f"\n[... {len(text) - characters} characters left out ...]\n"
    kept = max(characters - len(mark), 0)
    head = kept * 2 // 3
    return text[:head] + mark + text[len(text) - (kept - head) :]


def fenced(language: str, text: str) -> str:
    """Return a code block whose fence is longer than any fence inside the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def one_line(text: str, characters: int) -> str:
    """Return the text on one line of at most this many characters, without fences that would open a block."""
    begin = text[: 4 * characters]  # cut first, because a log may have megabytes
    joined = " ".join(FENCE.sub("''", begin).split())
    whole = len(joined) <= characters and len(begin) == len(text)
    return joined if whole else f"{joined[: characters - 3]}..."


def listed(lines: list[str], most: int) -> list[str]:
    """Return the first lines, and a line that says how many lines are left out."""
    return lines if len(lines) <= most else [*lines[:most], f"- and {len(lines) - most} more"]


def size(count: float, units: tuple[str, ...], step: int) -> str:
    """Format a quantity in the largest unit in which it is at least 1, such as `64 MiB` or `5.2 Gflop`."""
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
    """Format a ratio with two decimals, or with two significant digits if it is below 0.1."""
    return f"{ratio:.2f}x" if ratio >= 0.1 else f"{ratio:.2g}x"
