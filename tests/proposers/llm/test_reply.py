import pytest
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT

from archive.kernel import parse
from archive.proposals import Proposal
from evolve.proposers.llm.reply import kernel_in, proposal_from, without_thoughts

ORIGIN = Proposal("center_rows", "draft", "m-1", None, run="run-1")
PROSE = "One warp takes a row.\n\n"


def fenced(text: str, language: str = "cuda", fence: str = "```") -> str:
    return f"{fence}{language}\n{text}{fence}\n"


@pytest.mark.parametrize(
    "reply",
    [
        KERNEL_TEXT,
        fenced(KERNEL_TEXT),
        f"{PROSE}{fenced(KERNEL_TEXT)}It is fast.",
        fenced(KERNEL_TEXT, ""),
        fenced(KERNEL_TEXT, "cpp title=kernel.cu"),
        fenced(KERNEL_TEXT, "cuda", "~~~~"),
        fenced(KERNEL_TEXT).replace("\n", "\r\n"),
        fenced(f"// kernel.cu\n\n{KERNEL_TEXT}"),
        f"{PROSE}{KERNEL_TEXT}",
        f"{PROSE}```cuda\n{KERNEL_TEXT}",
        f"{fenced('import torch', 'python')}{fenced(KERNEL_TEXT)}{fenced('pip install it', 'sh')}",
        f"<think>{fenced(SLOW_TEXT)}</think>{fenced(KERNEL_TEXT)}",
        f"{fenced(SLOW_TEXT)} would do, but\n</think>\n{fenced(KERNEL_TEXT)}",
        f"{fenced(KERNEL_TEXT)}<think>or perhaps {fenced(SLOW_TEXT)}",
    ],
    ids=[
        "bare", "fenced", "in prose", "no language", "a title", "tildes", "windows", "a comment first",
        "bare after prose", "never closed", "other blocks", "thoughts", "only the end of thoughts", "thoughts last",
    ],
)  # fmt: skip
def test_the_kernel_is_found_in(reply: str) -> None:
    assert kernel_in(reply).strip() == KERNEL_TEXT.strip()


def test_of_several_kernels_the_last_complete_one_counts() -> None:
    assert kernel_in(fenced(SLOW_TEXT) + fenced(KERNEL_TEXT) + fenced("/*---\nop = 1\n")) == KERNEL_TEXT


def test_a_complete_kernel_comes_before_a_later_one_that_is_cut_off() -> None:
    assert kernel_in(f"{fenced(KERNEL_TEXT)}Or better:\n```cuda\n{SLOW_TEXT[:200]}") == KERNEL_TEXT


def test_a_fence_inside_a_longer_fence_does_not_end_it() -> None:
    text = f"{KERNEL_TEXT}// ```\n"
    assert kernel_in(fenced(text, fence="````")) == text


@pytest.mark.parametrize("reply", ["", "I cannot do that.", fenced("int main() {}"), "<think>hm", "```"])
def test_no_kernel_is_found_where_there_is_none(reply: str) -> None:
    assert kernel_in(reply) == ""


def test_reasoning_that_was_cut_off_leaves_nothing() -> None:
    assert without_thoughts("<think>first a warp\nthen") == ""


def test_the_word_think_in_a_sentence_is_kept() -> None:
    assert without_thoughts("use `<think>` tags") == "use `<think>` tags"


def test_a_proposal_holds_the_kernel_and_the_reply() -> None:
    reply = fenced(KERNEL_TEXT)
    proposal = proposal_from(reply, OP, ORIGIN)
    assert (proposal.kernel, proposal.reply, proposal.failure) == (KERNEL, reply, "")


def test_a_proposal_keeps_its_origin() -> None:
    proposal = proposal_from(fenced(KERNEL_TEXT), OP, ORIGIN)
    assert (proposal.op, proposal.operator, proposal.proposer, proposal.run) == ("center_rows", "draft", "m-1", "run-1")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("", "the reply is empty"),
        ("<think>warps or blocks", "nothing but reasoning"),
        ("Use torch.compile instead.", "holds no kernel"),
        (fenced("__global__ void f() {}\n"), "has no plan"),
        (fenced(KERNEL_TEXT.replace("specialize", "specialise")), "line 5: unknown key `specialise`"),
        (fenced(KERNEL_TEXT.replace('"x", "out"', '"x", "y"')), "unknown argument `y`"),
        (fenced(KERNEL_TEXT.replace('op = "center_rows"', 'op = "softmax"')), "`softmax`, not `center_rows`"),
        (fenced(KERNEL_TEXT.partition("extern")[0]), "no device code"),
    ],
)
def test_a_reply_without_a_readable_kernel_says_why(reply: str, reason: str) -> None:
    assert reason in proposal_from(reply, OP, ORIGIN).failure


def test_a_malformed_kernel_is_no_kernel() -> None:
    assert proposal_from(fenced("/*---\n---*/\n"), OP, ORIGIN).kernel is None


def test_the_words_of_a_failed_reply_are_kept() -> None:
    assert proposal_from("Use torch.compile instead.", OP, ORIGIN).reply == "Use torch.compile instead."


def test_the_same_kernel_in_other_words_has_the_same_id() -> None:
    proposal = proposal_from(f"Here:\n{fenced(SLOW_TEXT.replace(' = ', '  =  ', 2))}", OP, ORIGIN)
    assert proposal.kernel_id == parse(SLOW_TEXT).id
