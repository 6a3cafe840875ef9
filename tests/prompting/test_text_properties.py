"""Properties of the text blocks of prompts: limits hold, and no text breaks out of its fence."""

import re

from hypothesis import given
from hypothesis import strategies as st

from evolve.prompting.text import (
    Message,
    clipped,
    estimated_tokens,
    fenced,
    listed,
    nbytes,
    one_line,
    times,
    tokens,
    us,
)

# Texts that mix fences, line breaks and lone surrogates with arbitrary characters.
PIECES = st.sampled_from(("```", "````", "~~~", "\n", "\r\n", "\t", " ", "\u2028", "\ud800", "x" * 50))
TEXTS = st.lists(PIECES | st.text(max_size=20), max_size=20).map("".join)
BOUNDS = st.integers(0, 300)


@given(TEXTS, BOUNDS)
def test_clipped_text_keeps_both_ends_and_stays_within_its_limit(text: str, characters: int) -> None:
    found = clipped(text, characters)
    if len(text) <= characters:
        assert found == text
        return
    mark = f"\n[... {len(text) - characters} characters left out ...]\n"
    assert len(found) == max(characters, len(mark))
    head, _, tail = found.partition(mark)
    assert text.startswith(head)
    assert text.endswith(tail)


@given(TEXTS, st.sampled_from(("", "cuda", "text")))
def test_a_fence_is_closed_only_by_its_last_line(text: str, language: str) -> None:
    first, *inner, last = fenced(language, text).split("\n")
    assert first == f"{last}{language}"
    assert set(last) == {"`"}
    assert not any(line.strip().startswith(last) for line in inner)
    assert "\n".join(inner) == text.rstrip()


@given(TEXTS, st.integers(3, 300))
def test_one_line_has_no_line_breaks_or_fences_and_stays_within_its_limit(text: str, characters: int) -> None:
    found = one_line(text, characters)
    assert len(found.splitlines()) <= 1
    assert not re.search(r"`{3,}|~{3,}", found)
    assert len(found) <= characters


@given(st.lists(TEXTS), st.integers(0, 10))
def test_a_list_is_cut_with_a_count_of_the_rest(lines: list[str], most: int) -> None:
    found = listed(lines, most)
    assert found[:most] == lines[:most]
    assert found[most:] == ([f"- and {len(lines) - most} more"] if len(lines) > most else [])


@given(TEXTS, TEXTS)
def test_tokens_are_positive_and_grow_with_the_text(first: str, second: str) -> None:
    assert (tokens(first) > 0) == bool(first)
    assert max(tokens(first), tokens(second)) <= tokens(first + second) <= tokens(first) + tokens(second)
    assert estimated_tokens((Message("user", first),)) > tokens(first)


@given(st.floats(1e-6, 10) | st.floats(1e-6, 1e18))
def test_figures_lose_only_their_last_digits(value: float) -> None:
    """Check that a number read back from its text is within 1 %, or within 5.5 % if it is a ratio."""
    units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
    number, unit = nbytes(value).split()
    assert abs(float(number) * units[unit] - value) <= 0.01 * value
    assert abs(float(us(value).removesuffix(" us")) - value) <= 0.01 * value
    assert abs(float(times(value).removesuffix("x")) - value) <= 0.055 * value
