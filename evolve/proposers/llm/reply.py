"""From a model's words to a Proposal: find the kernel, read it, and say what is wrong where there is none.

A kernel is found in every form, whichever was asked for: in a fence, bare, or as edits of the kernel that was shown.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

from archive import kernel as genome
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.proposals import Proposal
from evolve.op_on_device import signature
from evolve.proposers.llm.edits import Edit, EditError, applied, edits_in
from reference_ops.op import Op

THOUGHT_TAGS = "think|thinking|thought|reasoning|analysis"
THOUGHT = re.compile(rf"<({THOUGHT_TAGS})>.*?</\1>", re.DOTALL | re.IGNORECASE)
THOUGHT_END = re.compile(rf"</(?:{THOUGHT_TAGS})>", re.IGNORECASE)
THOUGHT_START = re.compile(rf"^[ \t]*<(?:{THOUGHT_TAGS})>", re.IGNORECASE | re.MULTILINE)
FENCE = re.compile(r"^[ \t]*(?:>[ \t]*)?(`{3,}|~{3,})(.*)$")
COMMENT_LINES = re.compile(r"(?:\s*//[^\n]*\n)*\s*")


def without_thoughts(reply: str) -> str:
    """The reply without a model's reasoning, also where a chat template has eaten the opening tag."""
    text = THOUGHT.sub("", reply)
    text = THOUGHT_END.split(text)[-1]
    # An opening tag that is never closed: the model was still thinking when it stopped.
    return THOUGHT_START.split(text)[0]


def kernel_in(reply: str) -> str:
    """The text of the last complete kernel in a reply, else of an incomplete one, or nothing."""
    text = without_thoughts(reply).replace("\r\n", "\n")
    closed, opened = _blocks(text)
    candidates = [found for block in closed if (found := _from_plan(block))]
    complete = [found for found in candidates if genome.CLOSE in found]
    if complete:
        return complete[-1]
    bare = _from_plan(opened) or (_from_plan(_unfenced(text)) if not candidates else "")
    return bare or (candidates[-1] if candidates else "")


def proposal_from(reply: str, op: Op, origin: Proposal, edited: Sequence[Kernel] = ()) -> Proposal:
    """`origin`, which says who made it and how, with the kernel in the reply or the reason why there is none.

    `edited` holds the kernels that edits may be meant for.
    """
    origin = replace(origin, kernel=None, reply=reply, failure="")
    try:
        text = _edited(reply, edited) or kernel_in(reply)
        if not text:
            return replace(origin, failure=_missing(reply))
        return replace(origin, kernel=genome.parse_for(text, signature(op)))
    except EditError as error:
        return replace(origin, failure=f"the edits cannot be applied: {error}")
    except PlanError as error:
        return replace(origin, failure=f"the kernel in the reply is malformed: {error}")


def _edited(reply: str, edited: Sequence[Kernel]) -> str:
    """The text that the reply's edits lead to. Where they lead nowhere, a whole kernel beside them counts."""
    try:
        edits = edits_in(without_thoughts(reply))
        return _applied(edits, edited) if edits else ""
    except EditError:
        whole = kernel_in(reply)
        if genome.CLOSE in whole:
            return whole
        raise


def _applied(edits: Sequence[Edit], edited: Sequence[Kernel]) -> str:
    first_error = EditError("no kernel was shown that they could be meant for; a whole one was asked for")
    for number, kernel in enumerate(edited):
        try:
            return applied(edits, kernel.text)
        except EditError as error:
            first_error = first_error if number else error
    raise first_error


def _missing(reply: str) -> str:
    text = without_thoughts(reply)
    if not text.strip():
        return "the reply holds nothing but reasoning" if reply.strip() else "the reply is empty"
    if "__global__" in text:
        return f"the code in the reply has no plan: a kernel begins with its plan in a comment, {genome.OPEN}"
    return f"the reply holds no kernel: no code that begins with {genome.OPEN}"


def _blocks(text: str) -> tuple[list[str], str]:
    """The fenced blocks of a Markdown text, and the one that is never closed."""
    closed: list[str] = []
    fence, lines = "", list[str]()
    for line in text.split("\n"):
        match = FENCE.match(line)
        if not fence and match:
            fence, lines = match.group(1), []
        elif match and match.group(1).startswith(fence) and not match.group(2).strip():
            closed.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
    return closed, "\n".join(lines) if fence else ""


def _from_plan(block: str) -> str:
    """The block if it is a kernel; a remark before the plan, such as a file's name, is left out."""
    start = COMMENT_LINES.match(block)
    begin = start.end() if start else 0
    return block[begin:].rstrip() + "\n" if block.startswith(genome.OPEN, begin) else ""


def _unfenced(text: str) -> str:
    """From the last plan that begins a line to the end, or to a fence."""
    begin = max((match.start() for match in re.finditer(rf"^{re.escape(genome.OPEN)}", text, re.MULTILINE)), default=-1)
    if begin < 0:
        return ""
    return re.split(r"^\s*```", text[begin:], maxsplit=1, flags=re.MULTILINE)[0]
