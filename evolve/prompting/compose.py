"""Composition of prompts: the messages that ask a model to apply an operator to its parents.

Sections that seldom change come first, so that a server can reuse the prefix of an earlier prompt.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from evolve.devices.choose import policy_of
from evolve.prompting import kernel_format, kernel_sections, op_sections
from evolve.prompting.kernel_sections import standing, weakest_workload
from evolve.prompting.operators import (
    ANSWERS,
    ASK_DESIGNS,
    CROSSOVER,
    DRAFT,
    DRAFT_DESIGN,
    EXPLORE,
    FENCED,
    FORMS,
    IMPROVE,
    PARENTS,
    PORT,
    REPAIR,
    SPECIALISE,
    TASKS,
    answer_form,
)
from evolve.prompting.text import (
    MAX_TOKENS,
    MAX_WORKLOAD,
    TOKENS_PER_MESSAGE,
    Message,
    clipped,
    listed,
    one_line,
    tokens,
)
from evolve.request import Candidate, Request
from evolve.selection.population import weakest

SOURCES = (200_000, 20_000, 8_000)  # limits on the characters of a kernel, tried in this order
MANY, FEW = 12, 3  # numbers of kernels or failures that are listed, one line each
MAX_REPLY, MAX_LESSON = 20_000, 300  # limits in characters
DESIGN_TOKENS = 1500  # tokens reserved in a prompt for the designs and for the question about one of them
LEFT_OUT = "(left out for lack of space)"


def compose(
    request: Request,
    operator: str,
    parents: tuple[Candidate, ...],
    reference_source: str,
    form: str = FENCED,
    max_tokens: int = MAX_TOKENS,
) -> tuple[Message, ...]:
    """Return the messages that ask a model to apply the operator to the parents and to answer in this form.

    If they would be too long, the sections of the lowest priority are shortened.
    """
    if PARENTS.get(operator) != len(parents) or form not in FORMS:
        raise ValueError(f"the operator {operator} cannot be applied to {len(parents)} kernels, in the form {form}")
    system = f"{kernel_format.ROLE}\n\n{kernel_format.rules()}"
    asked = f"# Your task\n{task(request, operator, parents)}\n{ANSWERS[answer_form(operator, form)]}"
    sections = [
        *_stable(request, reference_source),
        *_learned(request, operator, parents),
        *_parents(request, operator, parents),
        PromptSection(Priority.NEEDED, (asked,)),
    ]
    texts = _fitted(sections, max_tokens - tokens(system) - 2 * TOKENS_PER_MESSAGE)
    return (Message("system", system), Message("user", "\n\n".join(text for text in texts if text)))


def compose_designs(
    request: Request, number: int, reference_source: str, max_tokens: int = MAX_TOKENS
) -> tuple[Message, ...]:
    """Return the messages that ask a model for a number of different designs, one line each and without code."""
    system = f"{kernel_format.ROLE}\n\n{kernel_format.rules()}"
    asked = f"# Your task\n{ASK_DESIGNS.format(number=number)}"
    sections = [*_stable(request, reference_source), PromptSection(Priority.NEEDED, (asked,))]
    room = max_tokens - tokens(system) - 4 * TOKENS_PER_MESSAGE - DESIGN_TOKENS
    return (Message("system", system), Message("user", "\n\n".join(_fitted(sections, room))))


def draft_design(
    asked: tuple[Message, ...], designs: Sequence[str], number: int, form: str = FENCED
) -> tuple[Message, ...]:
    """Return the messages that continue the question about designs and ask for a kernel by one of them."""
    listed_designs = "\n".join(f"{place}. {design}" for place, design in enumerate(designs, start=1))
    wanted = DRAFT_DESIGN.format(number=number, design=designs[number - 1])
    answer = ANSWERS[answer_form(DRAFT, form)]
    return (*asked, Message("assistant", listed_designs), Message("user", f"{wanted}\n{answer}"))


def ask_again(reply: str, failure: str, form: str = FENCED) -> tuple[Message, ...]:
    """Return the messages that continue a conversation after a reply in which no kernel could be read."""
    return (
        Message("assistant", clipped(reply, MAX_REPLY) or "(nothing)"),
        Message("user", f"No kernel could be read from this answer: {one_line(failure, 1000)}\n{ANSWERS[form]}"),
    )


class Priority(IntEnum):
    """The importance of a section. Sections of low priority are shortened first."""

    POPULATION = 0
    FAILURES = 1
    LESSONS = 2
    PROFILES = 3
    SECOND_PARENT = 4
    REFERENCE = 5  # sections of a higher priority are never left out, only shortened if they are too long
    PARENT = 6
    NEEDED = 7


@dataclass(frozen=True)
class PromptSection:
    """One section of a prompt in several versions, the fullest first."""

    priority: Priority
    renderings: tuple[str, ...]


def _fitted(sections: Sequence[PromptSection], max_tokens: int) -> tuple[str, ...]:
    """Choose the fullest version of each section such that all sections together stay within the limit."""
    chosen = [0] * len(sections)
    costs = [[tokens(text) + 1 for text in section.renderings] for section in sections]
    while sum(cost[index] for cost, index in zip(costs, chosen, strict=True)) > max_tokens:
        longer = [at for at, section in enumerate(sections) if chosen[at] + 1 < len(section.renderings)]
        if not longer:
            break
        chosen[min(longer, key=lambda at: (sections[at].priority, -at))] += 1
    return tuple(section.renderings[index] for section, index in zip(sections, chosen, strict=True))


def _stable(request: Request, reference_source: str) -> Iterator[PromptSection]:
    """Yield the sections that are the same in every prompt of a run."""
    lengths = (op_sections.MAX_REFERENCE, op_sections.MAX_REFERENCE * 2 // 5)
    op = tuple(op_sections.op_section(request.op, request.device, reference_source, length) for length in lengths)
    yield PromptSection(Priority.REFERENCE, op)
    yield PromptSection(Priority.NEEDED, (op_sections.device_section(request.op, request.device),))


def _learned(request: Request, operator: str, parents: tuple[Candidate, ...]) -> Iterator[PromptSection]:
    """Yield the sections that are the same in the prompts of a round, except for a failure that is itself a parent."""
    if pytorch := kernel_sections.pytorch_section(request):
        yield PromptSection(Priority.REFERENCE, (pytorch,))
    if request.lessons:
        heading = "# Lessons from earlier attempts at this op on this device"
        lines = [f"- {one_line(lesson, MAX_LESSON)}" for lesson in request.lessons]
        few = "\n".join([heading, *listed(lines, FEW)])
        yield PromptSection(Priority.LESSONS, ("\n".join([heading, *lines]), few, f"{heading}\n{LEFT_OUT}"))
    if request.population:
        # An exploration must differ from every kernel that is alive, so its prompt gives their list a higher priority.
        priority = Priority.SECOND_PARENT if operator == EXPLORE else Priority.POPULATION
        shown = tuple(kernel_sections.population_section(request.population, most) for most in (MANY, FEW))
        yield PromptSection(priority, (*shown, f"# The kernels that are alive\n{LEFT_OUT}"))
    others = tuple(f for f in request.failures if f.kernel.id not in {parent.kernel.id for parent in parents})
    if others:
        shown = tuple(kernel_sections.failures_section(others, most) for most in (MANY // 2, FEW))
        yield PromptSection(Priority.FAILURES, (*shown, f"# Attempts that failed\n{LEFT_OUT}"))


def _parents(request: Request, operator: str, parents: tuple[Candidate, ...]) -> Iterator[PromptSection]:
    """Yield the sections about the parents: their text, measurements and profiles."""
    if operator == REPAIR:
        yield _repaired(parents[0])
        return
    most = kernel_sections.MAX_MEASUREMENTS
    bounds = tuple(zip(SOURCES, (most, most, most // 3), strict=True))
    for number, parent in enumerate(parents):
        title = "The donor" if operator == PORT else "The parent" if len(parents) == 1 else f"Parent {number + 1}"
        shown = [
            kernel_sections.kernel_section(title, parent, request.op, length, measurements)
            for length, measurements in bounds
        ]
        if number:
            shown.append(f"# {title}: {kernel_sections.idea(parent.kernel)}\n{LEFT_OUT}")
        yield PromptSection(Priority.SECOND_PARENT if number else Priority.PARENT, tuple(shown))
        if parent.profiles and operator != PORT:
            whole, least = (
                kernel_sections.profile_section(title, parent, request.op, brief=brief) for brief in (False, True)
            )
            yield PromptSection(Priority.PROFILES, (whole, least, f"# {title} as the profiler saw it\n{LEFT_OUT}"))
    if operator == CROSSOVER and policy_of(request.device.kind).times_are_gpu_times:
        yield PromptSection(Priority.SECOND_PARENT, (kernel_sections.versus_section(*parents),))


def _repaired(parent: Candidate) -> PromptSection:
    longest, *shorter = SOURCES
    full = kernel_sections.failure_section(parent, longest)
    brief = kernel_sections.MAX_LOG // 3
    rest = (kernel_sections.failure_section(parent, length, brief) for length in (longest, *shorter))
    return PromptSection(Priority.PARENT, (full, *rest))


# The texts of the tasks are sent to models. Their effect was measured, so measure again after changing one.
def task(request: Request, operator: str, parents: tuple[Candidate, ...]) -> str:
    """Return the task for the model, which refers to the kernels in the sections above it."""
    if operator == IMPROVE:
        return _improve(parents[0])
    timed = policy_of(request.device.kind).times_are_gpu_times
    if operator == CROSSOVER and timed and (best := _faster_everywhere(*parents)):
        return _graft(best)
    if operator == SPECIALISE:
        return _specialise(request)
    if operator == PORT:
        return _port(request, parents[0])
    return TASKS[operator]


def _improve(parent: Candidate) -> str:
    on_gpu = policy_of(parent.evaluation.device.kind).times_are_gpu_times
    weak = weakest(parent.evaluation) if on_gpu else None
    there = f" The largest gain is possible at {one_line(weak.workload, MAX_WORKLOAD)}." if weak else ""
    bottleneck = (
        "its main bottleneck according to the figures above"
        if on_gpu
        else "the main bottleneck that it would have on a GPU"
    )
    return (
        f"Make the parent faster.{there} Name {bottleneck}, then make one change that removes it, and leave the rest "
        "unchanged. The result must differ from the parent in more than its knobs: those are tuned separately. Say in "
        "`note` what is new."
    )


def _faster_everywhere(first: Candidate, second: Candidate) -> int:
    """Return the number, 1 or 2, of the parent that is faster on all workloads of the other, or 0 if neither is."""
    times = [{m.workload: m.median_us for m in parent.evaluation.measurements} for parent in (first, second)]
    for number, (one, other) in enumerate((times, times[::-1]), start=1):
        if other and all(one.get(workload, math.inf) < time_us for workload, time_us in other.items()):
            return number
    return 0


def _graft(best: int) -> str:
    other = 3 - best
    return (
        f"Parent {best} is faster at every workload that parent {other} runs. Build on parent {best}, and look in "
        "parent "
        f"{other} for the one thing that it lacks and that would make it faster still: how the work is divided, how "
        "wide the accesses are, which values are kept where, which are not computed twice. Name that thing and its "
        "expected gain; if there is none, say so and add an idea of your own that neither has. Say in `note` what "
        "comes from which parent."
    )


def _specialise(request: Request) -> str:
    key, best = weakest_workload(request)
    where = one_line(key, MAX_WORKLOAD)
    timed = policy_of(request.device.kind).times_are_gpu_times
    held = "none of them runs it"
    if best:
        held = f"the best of them takes {standing(best)}" if timed else "one of them runs it"
    return (
        f"Write a kernel for the workload at which the kernels alive are weakest: {where} ({held}). It need not "
        "support other workloads: let `when` and `dtypes` accept only this workload and similar ones, specialise its "
        "sizes, and use properties that hold there but not in general (a row that fits in registers, divisibility, few "
        "rows or many, the width of one dtype). Start from the parent, as far as its design suits this workload. Other "
        "kernels still run the other workloads."
    )


def _port(request: Request, donor: Candidate) -> str:
    if donor.kernel.op != request.op.name:
        return (
            f"The donor above computes another op, `{donor.kernel.op}`, and is the fastest kernel known for it. Apply "
            "its idea "
            f"to {request.op.name}: how it divides the work, how wide its accesses are, which values it keeps where. "
            "Name the idea in a sentence, leave out the parts that only its op needs, and write a kernel for this op. "
            "Its "
            "tensor names and dims are not this op's."
        )
    dtypes = ", ".join(donor.kernel.plan.dtypes) or "all dtypes"
    return (
        f"The donor above is fast at the workloads that it runs ({dtypes}). "
        "Apply its idea to the workloads of this op that it does not run or at which it is slow, above all to other "
        "dtypes: the width of an element changes how many fit in a 16-byte access, in a register and in shared memory, "
        "and which conversions are needed. Let `dtypes` and `when` accept those."
    )
