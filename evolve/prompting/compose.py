"""The messages for each operator. Stable text comes first, so that a server can reuse its prefix."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from evolve.prompting import kernel_format, kernel_sections, op_sections
from evolve.prompting.kernel_sections import profile_section
from evolve.prompting.operators import (
    ANSWERS,
    CROSSOVER,
    DRAFT,
    EDITS,
    EXPLORE,
    FENCED,
    FORMS,
    IMPROVE,
    OPERATORS,
    PARENTS,
    PORT,
    REPAIR,
    SPECIALISE,
    WHOLE,
    answer_form,
    task,
)
from evolve.prompting.text import clipped, listed, one_line, tokens
from evolve.request import Candidate, Request


class Worth(IntEnum):
    """What is given up first stands first."""

    POPULATION = 0
    FAILURES = 1
    LESSONS = 2
    PROFILES = 3
    SECOND_PARENT = 4
    REFERENCE = 5  # from here on only shortened, and only where it alone is too long
    PARENT = 6
    NEEDED = 7


@dataclass(frozen=True)
class PromptSection:
    """One section of a prompt, as it stands where there is room, and ever shorter where there is not."""

    worth: Worth
    renderings: tuple[str, ...]  # the fullest first


def fitted(parts: Sequence[PromptSection], most: int) -> tuple[str, ...]:
    """The fullest text of each part with which all of them take at most so many tokens, if that can be done."""
    chosen = [0] * len(parts)
    costs = [[tokens(text) + 1 for text in part.renderings] for part in parts]
    while sum(cost[index] for cost, index in zip(costs, chosen, strict=True)) > most:
        longer = [place for place, part in enumerate(parts) if chosen[place] + 1 < len(part.renderings)]
        if not longer:
            break
        chosen[min(longer, key=lambda place: (parts[place].worth, -place))] += 1
    return tuple(part.renderings[index] for part, index in zip(parts, chosen, strict=True))


__all__ = [
    "CROSSOVER", "DRAFT", "EDITS", "EXPLORE", "FENCED", "FORMS", "IMPROVE", "MAX_TOKENS", "OPERATORS", "PARENTS",
    "PORT", "REPAIR", "SPECIALISE", "WHOLE", "Message", "answer_form", "ask_again", "compose", "estimated_tokens",
]  # fmt: skip

MAX_TOKENS = 16_000  # of all the messages that `compose` returns together
PER_MESSAGE = 8  # tokens that a server spends on a message beside its text
SOURCES = (200_000, 20_000, 8_000)  # characters of a kernel, as long as there is room for them
MANY, FEW = 12, 3  # kernels or failures that get a line each
MAX_REPLY, MAX_LESSON = 20_000, 300
LEFT_OUT = "(left out for lack of room)"


@dataclass(frozen=True)
class Message:
    """One message of a conversation with a model."""

    role: str
    content: str


def compose(
    request: Request,
    operator: str,
    parents: tuple[Candidate, ...],
    reference_source: str,
    form: str = FENCED,
    max_tokens: int = MAX_TOKENS,
) -> tuple[Message, ...]:
    """What to say to a model so that it applies the operator to the parents and answers in this form.

    Parts that change seldom come first. Where all of it is too long, the parts that matter least are cut.
    """
    if PARENTS.get(operator) != len(parents) or form not in FORMS:
        raise ValueError(f"the operator {operator} cannot be applied to {len(parents)} kernels, in the form {form}")
    system = f"{kernel_format.ROLE}\n\n{kernel_format.rules()}"
    asked = f"# Your task\n{task(request, operator, parents)}\n{ANSWERS[answer_form(operator, form)]}"
    parts = [
        *_stable(request, reference_source),
        *_learned(request, operator, parents),
        *_at_hand(request, operator, parents),
        PromptSection(Worth.NEEDED, (asked,)),
    ]
    texts = fitted(parts, max_tokens - tokens(system) - 2 * PER_MESSAGE)
    return (Message("system", system), Message("user", "\n\n".join(text for text in texts if text)))


def ask_again(reply: str, failure: str, form: str = FENCED) -> tuple[Message, ...]:
    """What to add to a conversation whose reply held no kernel that can be read."""
    return (
        Message("assistant", clipped(reply, MAX_REPLY) or "(nothing)"),
        Message("user", f"No kernel could be read from this answer: {one_line(failure, 1000)}\n{ANSWERS[form]}"),
    )


def estimated_tokens(messages: tuple[Message, ...]) -> int:
    """About what a model's server will count, before it has been asked."""
    return sum(tokens(message.content) + PER_MESSAGE for message in messages)


def _stable(request: Request, reference_source: str) -> Iterator[PromptSection]:
    """The same for every question of a run."""
    lengths = (op_sections.MAX_REFERENCE, op_sections.MAX_REFERENCE * 2 // 5)
    op = tuple(op_sections.op_section(request.op, request.device, reference_source, length) for length in lengths)
    yield PromptSection(Worth.REFERENCE, op)
    yield PromptSection(Worth.NEEDED, (op_sections.device_section(request.device),))


def _learned(request: Request, operator: str, parents: tuple[Candidate, ...]) -> Iterator[PromptSection]:
    """The same for all questions of a step, but for the failure that is being repaired."""
    if request.lessons:
        heading = "# Lessons of earlier attempts at this op on this device"
        lines = [f"- {one_line(lesson, MAX_LESSON)}" for lesson in request.lessons]
        few = "\n".join([heading, *listed(lines, FEW)])
        yield PromptSection(Worth.LESSONS, ("\n".join([heading, *lines]), few, f"{heading}\n{LEFT_OUT}"))
    if request.population:
        # Whoever is to find what nobody does yet must know what they do.
        worth = Worth.SECOND_PARENT if operator == EXPLORE else Worth.POPULATION
        shown = tuple(kernel_sections.population_section(request.population, most) for most in (MANY, FEW))
        yield PromptSection(worth, (*shown, f"# The kernels that are alive\n{LEFT_OUT}"))
    others = tuple(f for f in request.failures if f.kernel.id not in {parent.kernel.id for parent in parents})
    if others:
        shown = tuple(kernel_sections.failures_section(others, most) for most in (MANY // 2, FEW))
        yield PromptSection(Worth.FAILURES, (*shown, f"# Attempts that failed\n{LEFT_OUT}"))


def _at_hand(request: Request, operator: str, parents: tuple[Candidate, ...]) -> Iterator[PromptSection]:
    """What this one question is about."""
    if operator == REPAIR:
        longest, *shorter = SOURCES
        full = kernel_sections.failure_section(parents[0], longest)
        brief = kernel_sections.MAX_LOG // 3
        rest = (kernel_sections.failure_section(parents[0], length, brief) for length in (longest, *shorter))
        yield PromptSection(Worth.PARENT, (full, *rest))
        return
    for number, parent in enumerate(parents):
        title = "The donor" if operator == PORT else "The parent" if len(parents) == 1 else f"Parent {number + 1}"
        worth = Worth.SECOND_PARENT if number else Worth.PARENT
        measurements = (
            kernel_sections.MAX_MEASUREMENTS,
            kernel_sections.MAX_MEASUREMENTS,
            kernel_sections.MAX_MEASUREMENTS // 3,
        )
        shown = [
            kernel_sections.kernel_section(title, parent, request.op, length, most)
            for length, most in zip(SOURCES, measurements, strict=True)
        ]
        yield PromptSection(
            worth, (*shown, f"# {title}: {kernel_sections.idea(parent.kernel)}\n{LEFT_OUT}") if number else tuple(shown)
        )
        if parent.profiles and operator != PORT:
            whole, least = (profile_section(title, parent, request.op, brief=brief) for brief in (False, True))
            yield PromptSection(Worth.PROFILES, (whole, least, f"# {title} as the profiler saw it\n{LEFT_OUT}"))
    if operator == CROSSOVER:
        yield PromptSection(Worth.SECOND_PARENT, (kernel_sections.versus_section(*parents),))
