"""What each operator asks for, and in which form the answer is to come."""

import math

from archive.kernel import CLOSE, OPEN
from evolve.prompting.kernel_sections import standing, weakest_workload
from evolve.prompting.op_sections import MAX_WORKLOAD
from evolve.prompting.text import one_line
from evolve.request import Candidate, Request
from evolve.selection.population import weakest

DRAFT, IMPROVE, EXPLORE, CROSSOVER = "draft", "improve", "explore", "crossover"
REPAIR, SPECIALISE, PORT = "repair", "specialise", "port"
PARENTS = {DRAFT: 0, IMPROVE: 1, EXPLORE: 0, CROSSOVER: 2, REPAIR: 1, SPECIALISE: 1, PORT: 1}
OPERATORS = tuple(PARENTS)
FENCED, WHOLE, EDITS = "fenced", "whole", "edits"
FORMS = (FENCED, WHOLE, EDITS)
EDITED = (IMPROVE, REPAIR, SPECIALISE)  # the operators whose answer keeps most of one parent

ANSWERS = {
    FENCED: f"""\
Answer with a sentence or two of reasoning, then exactly one fenced ```cuda block that holds the whole kernel, \
from {OPEN} to the last line, with no parts left out.""",
    WHOLE: f"""\
Answer with the whole kernel as it stands in its file and nothing else: the first line is {OPEN}, after {CLOSE} comes \
the code, to the last line, with no parts left out, no fences and no remarks outside comments.""",
    EDITS: """\
Answer with a sentence or two of reasoning, then exactly one fenced ```edit block with the pieces of the kernel above \
that change, its plan included:

```edit
<<<<<<< SEARCH
lines of that kernel, exactly as they stand there
=======
the lines that take their place
>>>>>>> REPLACE
```

A block holds one such piece or several. What stands under SEARCH must match the kernel's text letter for letter, \
blanks included, and only once: take as many whole lines as that needs, and no more. What no piece names stays.""",
}


TASKS = {
    DRAFT: """\
Write a kernel for this op from the reference. Decide first what bounds it (bytes, arithmetic or launches), then \
choose a design that comes near that bound and differs from the kernels above, if any. Correct comes before fast.""",
    EXPLORE: """\
Write a kernel for this op by an algorithm that none of the kernels above uses: another way of dividing the work among \
threads, warps and blocks, another place for what is kept (registers, shuffles, shared memory, workspace), another \
number of passes or launches, or tensor cores where they are not used yet. Say in a sentence how it differs from each \
of them and what it is to gain. The same design with other sizes is no answer. Correct comes before fast.""",
    CROSSOVER: """\
Write one kernel that unites what each parent does better. Name for each parent the one thing that makes it faster \
where it is, then build on the one whose structure can take up the other's. If they win on different sizes, choose \
between the two ways by a specialised size with `if constexpr`, or by a knob. Say in `note` what comes from which.""",
    REPAIR: """\
Find the cause of this failure and repair it with the smallest change that keeps the kernel's idea. Say in a sentence \
what was wrong, and look for the same fault elsewhere in the kernel. Give up the idea only if it cannot work here.""",
}


def answer_form(operator: str, form: str) -> str:
    """The form that an answer to this operator can have: edits need a text to be edited."""
    return FENCED if form == EDITS and operator not in EDITED else form


def task(request: Request, operator: str, parents: tuple[Candidate, ...]) -> str:
    """What is to be done with the kernels that the sections above have shown."""
    match operator:
        case "improve":
            return _improve(parents[0])
        case "crossover" if best := _ahead(*parents):
            return _graft(best)
        case "specialise":
            return _specialise(request)
        case "port":
            return _port(request, parents[0])
    return TASKS[operator]


def _improve(parent: Candidate) -> str:
    weak = weakest(parent.evaluation)
    there = f" Most is to be gained at {one_line(weak.workload, MAX_WORKLOAD)}." if weak else ""
    on_gpu = parent.evaluation.device.kind == "cuda"
    bottleneck = (
        "its one main bottleneck by the figures above"
        if on_gpu
        else "the one main bottleneck that it would have on a GPU"
    )
    return (
        f"Make the parent faster.{there} Name {bottleneck}, then make one change that "
        "removes it, and leave the rest as it is. The result must differ from the parent in more than its knobs: those "
        "are tuned elsewhere. Say in `note` what is new."
    )


def _ahead(first: Candidate, second: Candidate) -> int:
    """The parent that is the faster one wherever the other runs: 1 or 2, or 0 where each has something to give."""
    times = [{m.workload: m.median_us for m in parent.evaluation.measurements} for parent in (first, second)]
    for number, (one, other) in enumerate((times, times[::-1]), start=1):
        if other and all(one.get(workload, math.inf) < time_us for workload, time_us in other.items()):
            return number
    return 0


def _graft(best: int) -> str:
    other = 3 - best
    return (
        f"Parent {best} is the faster one wherever parent {other} runs. Build on parent {best}, and look in parent "
        f"{other} for the one thing that it lacks and that would make it faster still: how the work is divided, how "
        "wide the accesses are, what is kept where, what is not computed twice. Name that thing and what it is to "
        f"gain; if there is none, say so and change in parent {best} what parent {other} shows to be slow. Say in "
        "`note` what comes from which."
    )


def _specialise(request: Request) -> str:
    key, best = weakest_workload(request)
    where = one_line(key, MAX_WORKLOAD)
    held = f"the best of them takes {standing(best)}" if best else "none of them runs it"
    return (
        f"Write a kernel for the workload where the kernels alive are weakest: {where} ({held}). It need not serve "
        "anything else: let `when` and `dtypes` accept this workload and its like alone, specialise its sizes, and use "
        "what holds there and not in general (a row that fits in registers, divisibility, few rows or many, one "
        "dtype's width). Begin from the parent, as far as its design suits this workload. Other kernels keep "
        "serving the other workloads."
    )


def _port(request: Request, donor: Candidate) -> str:
    if donor.kernel.op != request.op.name:
        return (
            f"The donor above computes another op, `{donor.kernel.op}`, and is the fastest known there. Take its idea "
            f"over to {request.op.name}: how it divides the work, how wide its accesses are, what it keeps where. Name "
            "the idea in a sentence, leave what belongs to its op alone behind, and write a kernel for this op. Its "
            "tensor names and dims are not this op's."
        )
    return (
        f"The donor above does well at the workloads it runs ({', '.join(donor.kernel.plan.dtypes) or 'all dtypes'}). "
        "Take its idea over to the workloads of this op that it does not run or where it is weak, above all to other "
        "dtypes: the width of an element changes how many fit in a 16-byte access, in a register and in shared memory, "
        "and which conversions are needed. Let `dtypes` and `when` accept those."
    )
