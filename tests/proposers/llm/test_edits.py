import pytest
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT

from archive.kernel import parse
from archive.proposals import Proposal
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


@pytest.mark.parametrize(
    "reply",
    [
        fenced(RENAMED, UNROLLED),
        fenced(RENAMED) + "And:\n" + fenced(UNROLLED),
        RENAMED + UNROLLED,
        fenced(RENAMED, UNROLLED).replace("\n", "\r\n"),
        fenced(RENAMED, UNROLLED).replace("<<<<<<<", "<<<<<").replace("=======", "====="),
        f"<think>{fenced(block('nothing', 'like it'))}</think>{fenced(RENAMED, UNROLLED)}",
        fenced(RENAMED, block("float sum=0.0f;", "    float sum = 0.0f;\n#pragma unroll 4")),
        fenced(RENAMED, block("\n\tfloat  sum = 0.0f;  \n", "    float sum = 0.0f;\n#pragma unroll 4")),
    ],
    ids=["one fence", "two fences", "no fence", "windows", "short marks", "thoughts", "no blanks", "other blanks"],
)
def test_edits_are_applied_to_the_parent(reply: str) -> None:
    expected = SLOW.text.replace(NOTE, NEW_NOTE).replace("float sum = 0.0f;", "float sum = 0.0f;\n#pragma unroll 4")
    found = edited(reply)
    assert found.kernel, found.failure
    assert found.kernel.text == expected


def test_what_no_edit_names_stays_as_it_is() -> None:
    assert edited(fenced(RENAMED)).kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_a_later_edit_sees_what_an_earlier_one_left() -> None:
    again = block(NEW_NOTE, 'note = "third"')
    assert edited(fenced(RENAMED, again)).kernel == parse(SLOW.text.replace(NOTE, 'note = "third"'))


def test_lines_can_be_deleted() -> None:
    assert applied(edits_in("<<<<<<< SEARCH\nb\n=======\n>>>>>>> REPLACE"), "a\nb\nc") == "a\nc"


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (
            fenced(RENAMED, block("float total = 0;", "")),
            "block 2 matches nothing: the kernel has no line `flo",
        ),
        (fenced(block(f"{NOTE}\n[[launch]]\nblock = [64]", "")), "block 1 matches nothing: its lines do not follow"),
        (fenced(block("} else {", "")), "block 1 matches nothing: the kernel has no line `} else {`"),
        (fenced(block("", "int x;")), "block 1 has nothing to search for"),
        (f"<<<<<<< SEARCH\n{NOTE}\n=======\n{NEW_NOTE}\n", "block 1 is never closed"),
        (f"<<<<<<< SEARCH\n{NOTE}\n>>>>>>> REPLACE\n", "block 1 has no line ======="),
        (f"<<<<<<< SEARCH\n{NOTE}\n{RENAMED}", "block 1 is never closed"),
    ],
)
def test_an_edit_that_cannot_be_applied_says_which_and_why(reply: str, reason: str) -> None:
    assert reason in edited(reply).failure


def test_an_edit_that_fits_twice_is_refused_with_the_places() -> None:
    with pytest.raises(EditError, match="block 1 matches 2 times, at lines 1, 3"):
        applied(edits_in(block("a", "b")), "a\nc\na")


def test_an_exact_match_comes_before_one_with_other_blanks() -> None:
    assert applied(edits_in(block("  a", "b")), "a\n  a") == "a\nb"


def test_edits_of_nothing_are_a_failure() -> None:
    assert "showed no kernel to edit" in proposal_from(fenced(RENAMED), OP, ORIGIN).failure


def test_of_two_parents_the_one_that_fits_is_edited() -> None:
    found = proposal_from(fenced(RENAMED), OP, ORIGIN, [KERNEL, SLOW])
    assert found.kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_edits_win_over_a_quoted_parent() -> None:
    reply = f"The parent:\n```cuda\n{SLOW_TEXT}```\n{fenced(RENAMED)}"
    assert edited(reply).kernel == parse(SLOW.text.replace(NOTE, NEW_NOTE))


def test_a_whole_kernel_counts_where_the_edits_beside_it_fail() -> None:
    reply = f"{fenced(block('no such line', ''))}In full:\n```cuda\n{KERNEL_TEXT}```\n"
    assert edited(reply).kernel == KERNEL
