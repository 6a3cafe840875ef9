"""Properties of reading replies: no text raises anything unexpected, and a kernel is found in any prose."""

import contextlib
import difflib
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT

from archive.kernel import Proposal, parse
from evolve.proposers.llm.reply import Edit, EditError, applied, edits_in, kernel_in, proposal_from, without_thoughts

ORIGIN = Proposal(OP.name, "improve", "m-1", None, run="run-1")
SLOW = parse(SLOW_TEXT)
PIECES = (
    "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```", "````", "```cuda", "```edit", "~~~", "> ```", "<think>",
    "</think>", "/*---", "---*/", 'op = "center_rows"', "[[launch]]", "// x", "int x;", "__global__", "\r", "", " ",
    "\x00", "\ud800", *SLOW_TEXT.split("\n"),
)  # fmt: skip
# Texts that mix edit markers, fences and tags with arbitrary lines.
REPLIES = st.lists(st.sampled_from(PIECES) | st.text(max_size=20)).map("\n".join)
# Lines without the markers and fences that have a meaning in a reply.
PROSE_LINES = st.text(st.characters(exclude_characters="`~</*>=\r\n", exclude_categories=["Cs"]), max_size=40)
PROSE = st.lists(PROSE_LINES, max_size=4).map("\n".join)
FIRST, LAST = "// the first line", "// the last line"
FENCES = ("```", "````", "~~~", "  ```")
# Few distinct lines, so that many are equal or differ only in whitespace.
LINES = st.lists(st.sampled_from(("", "  ", "{", "}", "x", " x", "x = 1;", "y = 2;", "z")) | PROSE_LINES, max_size=12)


def edits_between(before: Sequence[str], after: Sequence[str]) -> list[Edit]:
    """Return one edit for each change between two texts, both of which are enclosed in FIRST and LAST.

    Each edit includes all lines before its change, so that it matches only once, and the lines after it up to the
    first that is not blank, because blank lines at the ends of an edit are ignored.
    """
    edits, done = [], [FIRST]
    for tag, first, last, new_first, new_last in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if tag != "equal":
            rest = [*before[last:], LAST]
            rest = rest[: 1 + next(at for at, line in enumerate(rest) if line.strip())]
            edits.append(Edit((*done, *before[first:last], *rest), (*done, *after[new_first:new_last], *rest)))
        done += after[new_first:new_last]
    return edits


def written(edits: Sequence[Edit]) -> str:
    blocks = [["<<<<<<< SEARCH", *edit.search, "=======", *edit.replace, ">>>>>>> REPLACE"] for edit in edits]
    return "\n".join(line for block in blocks for line in block)


@given(st.lists(st.builds(Edit, LINES.map(tuple), LINES.map(tuple)), max_size=4), PROSE)
def test_edits_are_read_back_as_they_were_written(edits: list[Edit], prose: str) -> None:
    assert list(edits_in(f"{prose}\n{written(edits)}\n{prose}")) == edits


@given(LINES, LINES)
def test_the_edits_between_two_texts_turn_the_first_into_the_second(before: list[str], after: list[str]) -> None:
    edits = edits_in(written(edits_between(before, after)))
    assert applied(edits, "\n".join([FIRST, *before, LAST])) == "\n".join([FIRST, *after, LAST])


@given(LINES, LINES)
def test_an_edit_that_matches_twice_is_refused(lines: list[str], between: list[str]) -> None:
    block = [FIRST, *lines, LAST]
    with pytest.raises(EditError, match="matches 2 times"):
        applied([Edit(tuple(block), ("int x;",))], "\n".join([*block, *between, *block]))


@given(REPLIES, REPLIES)
def test_reading_and_applying_edits_raises_only_edit_errors(reply: str, text: str) -> None:
    with contextlib.suppress(EditError):
        edits = edits_in(reply)
        assert edits or applied(edits, text) == text
        applied(edits, text)


@given(REPLIES)
@example("```cuda\n/*---\n---*/\n```")
@example("<think>" * 200)
def test_every_reply_becomes_a_proposal_with_a_kernel_or_a_reason(reply: str) -> None:
    for parents in ((), (KERNEL, SLOW)):
        proposal = proposal_from(reply, OP, ORIGIN, parents)
        assert (proposal.kernel is None) == bool(proposal.failure)
        assert (proposal.reply, proposal.op) == (reply, OP.name)


@given(PROSE, PROSE, st.sampled_from(FENCES), st.sampled_from(("", "cuda", "c++", "cuda kernel")))
def test_a_kernel_in_a_fence_is_found_in_any_prose(before: str, after: str, fence: str, language: str) -> None:
    reply = f"{before}\n{fence}{language}\n{KERNEL_TEXT}{fence}\n{after}"
    assert kernel_in(reply) == KERNEL_TEXT
    assert proposal_from(reply, OP, ORIGIN).kernel == KERNEL


@given(PROSE, st.sampled_from(("think", "thinking", "thought", "reasoning", "analysis")), REPLIES)
def test_reasoning_before_a_kernel_is_left_out(before: str, tag: str, thought: str) -> None:
    reply = f"<{tag}>{before}\n{thought.replace('</', '')}\n</{tag}>\n```cuda\n{KERNEL_TEXT}```\n"
    assert proposal_from(reply, OP, ORIGIN).kernel == KERNEL
    assert without_thoughts(reply).strip() == f"```cuda\n{KERNEL_TEXT}```"
