"""The messages for each operator, stable text first so that a server can reuse its prefix."""

from collections.abc import Iterator
from dataclasses import dataclass

from evolve.prompting import genome, sections
from evolve.prompting.text import clipped, one_line
from evolve.proposers.proposer import Candidate, Request

DRAFT, IMPROVE, REPAIR = "draft", "improve", "repair"
OPERATORS = (DRAFT, IMPROVE, REPAIR)
MAX_CHARACTERS = 64_000  # of all the messages that `compose` returns together
MAX_PARENTS, MAX_POPULATION, MAX_FAILURES = 2, 6, 6

ANSWER = """\
Answer with a sentence or two of reasoning, then exactly one fenced ```cuda block that holds the whole kernel, \
from /*--- to the last line, with no parts left out."""


@dataclass(frozen=True)
class Message:
    """One message of a conversation with a model."""

    role: str
    content: str


def compose(
    request: Request, operator: str, parents: tuple[Candidate, ...], reference_source: str
) -> tuple[Message, ...]:
    """What to say to a model so that it applies the operator to the parents."""
    if operator not in OPERATORS or bool(parents) == (operator == DRAFT):
        raise ValueError(f"the operator {operator} cannot be applied to {len(parents)} kernels")
    op = sections.op_section(request.op, request.device.kind, reference_source)
    parts = [op, sections.device_section(request.device), *_at_hand(request, operator, parents)]
    return (
        Message("system", f"{genome.ROLE}\n\n{genome.rules()}"),
        Message("user", "\n\n".join([*parts, f"# Your task\n{_task(operator, parents)}\n{ANSWER}"])),
    )


def ask_again(reply: str, failure: str) -> tuple[Message, ...]:
    """What to add to a conversation whose reply held no kernel that can be read."""
    return (
        Message("assistant", clipped(reply, sections.MAX_SOURCE) or "(nothing)"),
        Message("user", f"No kernel could be read from this answer: {one_line(failure, 1000)}\n{ANSWER}"),
    )


def _at_hand(request: Request, operator: str, parents: tuple[Candidate, ...]) -> Iterator[str]:
    if operator == REPAIR:
        yield sections.failure_section(parents[0])
    else:
        for number, parent in enumerate(parents[:MAX_PARENTS], start=1):
            title = "The parent" if len(parents) == 1 else f"Parent {number}"
            yield sections.kernel_section(title, parent, sections.MAX_SOURCE // min(len(parents), MAX_PARENTS))
    shown = {parent.kernel.id for parent in parents}
    others = tuple(other for other in request.population if other.kernel.id not in shown)
    if others and operator != REPAIR:
        yield sections.population_section(others[:MAX_POPULATION])
    failures = tuple(failure for failure in request.failures if failure.kernel.id not in shown)
    if failures:
        yield sections.failures_section(failures[:MAX_FAILURES])


def _task(operator: str, parents: tuple[Candidate, ...]) -> str:
    if operator == DRAFT:
        return (
            "Write a kernel for this op from the reference alone. Decide first what bounds it (bytes, arithmetic or "
            "launches), then choose a design that comes near that bound and differs from the kernels above, if any. "
            "Correct comes before fast."
        )
    if operator == REPAIR:
        return (
            "Find the cause of this failure and repair it with the smallest change that keeps the kernel's idea. "
            "Give up the idea only if it cannot work here."
        )
    weak = sections.weakest(parents[0].evaluation)
    there = f" Most is to be gained at {one_line(weak.workload, sections.MAX_WORKLOAD)}." if weak else ""
    return (
        f"Make the parent faster.{there} Name its one main bottleneck, then make one change that removes it, and leave "
        "the rest as it is. The result must differ from the parent in more than its knobs: those are tuned elsewhere. "
        "Say in `note` what is new."
    )
