"""Edits in replies: how they are read and applied to a parent."""

import pytest
from each import each
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT

from archive.kernel import Proposal, parse
from evolve.proposers.llm.reply import EditError, applied, edits_in, proposal_from

ORIGIN = Proposal("center_rows", "improve", "m-1", None, run="run-1")
NOTE, NEW_NOTE = 'note = "one thread per row"', 'note = "a thread takes a row, by fours"'
SLOW = parse(SLOW_TEXT)


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def fenced(*blocks: str) -> str:
    return f"Wider loads.\n\n```edit\n{''.join(blocks)}```\n"


RENAMED = block(NOTE, NEW_NOTE)
UNROLLED = block("    float sum = 0.0f;", "    float sum = 0.0f;\n#pragma unroll 4")


def edited(reply: str) -> Proposal:
    return proposal_from(reply, OP, ORIGIN, [SLOW])


@each(
    {
        "one fence": fenced(RENAMED, UNROLLED),
        "two fences": fenced(RENAMED) + "And:\n" + fenced(UNROLLED),
        "no fence": RENAMED + UNROLLED,
        "windows": fenced(RENAMED, UNROLLED).replace("\n", "\r\n"),
        "short marks": fenced(RENAMED, UNROLLED).replace("<<<<<<<", "<<<<<").replace("=======", "====="),
        "thoughts": f"<think>{fenced(block('nothing', 'like it'))}</think>{fenced(RENAMED, UNROLLED)}",
        "no blanks": fenced(RENAMED, block("float sum=0.0f;", "    float sum = 0.0f;\n#pragma unroll 4")),
        "other blanks": fenced(RENAMED, block("\n\tfloat  sum = 0.0f;  \n", "    float sum = 0.0f;\n#pragma unroll 4")),
    }
)
def test_edits_are_applied_to_the_parent(reply: str) -> None:
    expected = SLOW.text.replace(NOTE, NEW_NOTE).replace("float sum = 0.0f;", "float sum = 0.0f;\n#pragma unroll 4")
    found = edited(reply)
    assert found.kernel, found.failure
    assert found.kernel.text == expected


def test_lines_outside_the_edits_stay_unchanged() -> None:
    assert edited(fenced(RENAMED)).kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_a_later_edit_applies_to_the_result_of_an_earlier_one() -> None:
    again = block(NEW_NOTE, 'note = "third"')
    assert edited(fenced(RENAMED, again)).kernel == parse(SLOW.text.replace(NOTE, 'note = "third"'))


def test_an_edit_with_an_empty_replacement_deletes_lines() -> None:
    assert applied(edits_in("<<<<<<< SEARCH\nb\n=======\n>>>>>>> REPLACE"), "a\nb\nc") == "a\nc"


@each(
    {
        str(case): case
        for case in [
            (
                fenced(RENAMED, block("float total = 0;", "")),
                "block 2 matches nothing: the kernel has no line `flo",
            ),
            (
                fenced(block(f"{NOTE}\n[[launch]]\nblock = [64]", "")),
                "block 1 matches nothing: its lines do not follow",
            ),
            (fenced(block("} else {", "")), "block 1 matches nothing: the kernel has no line `} else {`"),
            (fenced(block("", "int x;")), "block 1 has an empty SEARCH part"),
            (f"<<<<<<< SEARCH\n{NOTE}\n=======\n{NEW_NOTE}\n", "block 1 is never closed"),
            (f"<<<<<<< SEARCH\n{NOTE}\n>>>>>>> REPLACE\n", "block 1 has no line ======="),
            (f"<<<<<<< SEARCH\n{NOTE}\n{RENAMED}", "block 1 is never closed"),
        ]
    }
)
def test_the_failure_of_an_edit_names_its_block_and_the_reason(reply: str, reason: str) -> None:
    assert reason in edited(reply).failure


def test_an_edit_that_matches_twice_is_refused_with_the_lines_of_its_matches() -> None:
    with pytest.raises(EditError, match="block 1 matches 2 times, at lines 1, 3"):
        applied(edits_in(block("a", "b")), "a\nc\na")


def test_an_exact_match_takes_precedence_over_one_with_different_whitespace() -> None:
    assert applied(edits_in(block("  a", "b")), "a\n  a") == "a\nb"


def test_edits_without_a_parent_are_a_failure() -> None:
    assert "showed no kernel to edit" in proposal_from(fenced(RENAMED), OP, ORIGIN).failure


def test_edits_apply_to_the_parent_that_they_match() -> None:
    found = proposal_from(fenced(RENAMED), OP, ORIGIN, [KERNEL, SLOW])
    assert found.kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_edits_take_precedence_over_a_quoted_parent() -> None:
    reply = f"The parent:\n```cuda\n{SLOW_TEXT}```\n{fenced(RENAMED)}"
    assert edited(reply).kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_a_whole_kernel_is_used_if_the_edits_next_to_it_fail() -> None:
    reply = f"{fenced(block('no such line', ''))}In full:\n```cuda\n{KERNEL_TEXT}```\n"
    assert edited(reply).kernel == KERNEL
