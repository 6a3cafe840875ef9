"""Replies and the kernels that are found in them."""

from each import each
from small_op import KERNEL, KERNEL_TEXT, OP, SLOW_TEXT

from archive.kernel import Proposal, parse
from evolve.proposers.llm.reply import kernel_in, proposal_from, without_thoughts

ORIGIN = Proposal("center_rows", "draft", "m-1", None, run="run-1")
PROSE = "One warp takes a row.\n\n"


def fenced(text: str, language: str = "cuda", fence: str = "```") -> str:
    return f"{fence}{language}\n{text}{fence}\n"


@each({
    "bare": KERNEL_TEXT,
    "fenced": fenced(KERNEL_TEXT),
    "in prose": f"{PROSE}{fenced(KERNEL_TEXT)}It is fast.",
    "no language": fenced(KERNEL_TEXT, ""),
    "a title": fenced(KERNEL_TEXT, "cpp title=kernel.cu"),
    "tildes": fenced(KERNEL_TEXT, "cuda", "~~~~"),
    "windows": fenced(KERNEL_TEXT).replace("\n", "\r\n"),
    "a comment first": fenced(f"// kernel.cu\n\n{KERNEL_TEXT}"),
    "bare after prose": f"{PROSE}{KERNEL_TEXT}",
    "never closed": f"{PROSE}```cuda\n{KERNEL_TEXT}",
    "other blocks": f"{fenced('import torch', 'python')}{fenced(KERNEL_TEXT)}{fenced('pip install it', 'sh')}",
    "thoughts": f"<think>{fenced(SLOW_TEXT)}</think>{fenced(KERNEL_TEXT)}",
    "only the end of thoughts": f"{fenced(SLOW_TEXT)} would do, but\n</think>\n{fenced(KERNEL_TEXT)}",
    "thoughts last": f"{fenced(KERNEL_TEXT)}<think>or perhaps {fenced(SLOW_TEXT)}",
})  # fmt: skip
def test_the_kernel_is_found_in_every_form_of_reply(reply: str) -> None:
    assert kernel_in(reply).strip() == KERNEL_TEXT.strip()


def test_the_last_complete_one_of_several_kernels_is_used() -> None:
    assert kernel_in(fenced(SLOW_TEXT) + fenced(KERNEL_TEXT) + fenced("/*---\nop = 1\n")) == KERNEL_TEXT


def test_a_complete_kernel_takes_precedence_over_a_later_truncated_one() -> None:
    assert kernel_in(f"{fenced(KERNEL_TEXT)}Or better:\n```cuda\n{SLOW_TEXT[:200]}") == KERNEL_TEXT


def test_a_fence_inside_a_longer_fence_does_not_end_it() -> None:
    text = f"{KERNEL_TEXT}// ```\n"
    assert kernel_in(fenced(text, fence="````")) == text


@each({str(reply): reply for reply in ["", "I cannot do that.", fenced("int main() {}"), "<think>hm", "```"]})
def test_no_kernel_is_found_in_a_reply_without_a_kernel(reply: str) -> None:
    assert kernel_in(reply) == ""


def test_truncated_reasoning_is_removed() -> None:
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


@each(
    {
        str(case): case
        for case in [
            ("", "the reply is empty"),
            ("<think>warps or blocks", "contains only reasoning"),
            ("Use torch.compile instead.", "contains no kernel"),
            (fenced("__global__ void f() {}\n"), "has no plan"),
            (fenced(KERNEL_TEXT.replace("specialize", "specialise")), "line 5: unknown key `specialise`"),
            (fenced(KERNEL_TEXT.replace('"x", "out"', '"x", "y"')), "unknown argument `y`"),
            (fenced(KERNEL_TEXT.replace('op = "center_rows"', 'op = "softmax"')), "`softmax`, not `center_rows`"),
            (fenced(KERNEL_TEXT.partition("extern")[0]), "no device code"),
        ]
    }
)
def test_the_failure_of_a_reply_without_a_kernel_gives_the_reason(reply: str, reason: str) -> None:
    assert reason in proposal_from(reply, OP, ORIGIN).failure


def test_a_proposal_with_a_malformed_kernel_holds_no_kernel() -> None:
    assert proposal_from(fenced("/*---\n---*/\n"), OP, ORIGIN).kernel is None


def test_a_failed_proposal_keeps_the_reply() -> None:
    assert proposal_from("Use torch.compile instead.", OP, ORIGIN).reply == "Use torch.compile instead."


def test_the_same_kernel_in_other_prose_has_the_same_id() -> None:
    proposal = proposal_from(f"Here:\n{fenced(SLOW_TEXT.replace(' = ', '  =  ', 2))}", OP, ORIGIN)
    assert proposal.kernel_id == parse(SLOW_TEXT).id
