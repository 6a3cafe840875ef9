"""What each outcome means: at which step of an evaluation it arises, what was seen, what the author should do."""

import re
from dataclasses import dataclass
from enum import IntEnum

from archive.records import Evaluation, Outcome


class Step(IntEnum):
    """The steps of an evaluation, in their order; each begins only after the one before it was passed."""

    COMPILING = 1
    MEMORY = 2
    NUMBERS = 3
    REPEATABILITY = 4
    TIME = 5
    CONFIRMATION = 6


@dataclass(frozen=True)
class Meaning:
    step: Step
    seen: str
    advice: str


MEANINGS = {
    Outcome.PASSED: Meaning(Step.CONFIRMATION, "Everything that was tested was in order.", ""),
    Outcome.UNSUPPORTED: Meaning(
        Step.COMPILING,
        "The kernel asks for something that this device, or this version of evolve, does not offer.",
        "Do without it, or evaluate on a device that has it.",
    ),
    Outcome.ILLEGAL: Meaning(
        Step.COMPILING,
        "On every workload that the kernel accepts, its knobs break one of its own `require` rules or a limit of the "
        "hardware, so that nothing is left to run.",
        "Use other knobs: fewer threads, less shared memory, a smaller tile.",
    ),
    Outcome.MALFORMED: Meaning(
        Step.COMPILING,
        "The plan does not fit the op, or the function's parameters do not fit the plan.",
        'Compare the names, the order and the number of arguments with the plan; the function must be extern "C".',
    ),
    Outcome.COMPILE_ERROR: Meaning(
        Step.COMPILING,
        "The compiler refused the source.",
        "Its first message below names the line; later ones often only follow from it.",
    ),
    Outcome.LAUNCH_ERROR: Meaning(
        Step.MEMORY,
        "The driver refused to launch the kernel, so none of it ran.",
        "Look at grid, block and dynamic shared memory at the workload named below.",
    ),
    Outcome.CRASHED: Meaning(
        Step.MEMORY,
        "The kernel ended the process that ran it: an access to memory that is nobody's, a trap, or a misaligned one.",
        "Check the index arithmetic at the edges, and 32-bit overflow in large tensors.",
    ),
    Outcome.TIMED_OUT: Meaning(
        Step.MEMORY,
        "It did not come to an end within its time, so the process was killed.",
        "Look for an endless loop, a barrier that not all threads reach, or blocks that wait for others yet to start.",
    ),
    Outcome.OUT_OF_BOUNDS: Meaning(
        Step.MEMORY,
        "After a run, bytes outside the kernel's buffers had changed.",
        "Guard the tail: the last block reaches beyond the end when sizes do not divide.",
    ),
    Outcome.CHANGED_INPUT: Meaning(
        Step.MEMORY,
        "After a run, an input was no longer what it had been.",
        "Inputs are read-only; put what has to be kept into workspace.",
    ),
    Outcome.WRONG: Meaning(
        Step.NUMBERS,
        "An output differs from PyTorch's float64 result by more than rounding at this dtype explains.",
        "The element named below is the place to begin; an error on one kind of values alone points to overflow, "
        "cancellation, or a special case such as ties and infinities.",
    ),
    Outcome.KEEPS_STATE: Meaning(
        Step.COMPILING,
        "The kernel has a place where it remembers, or did remember, something from one call to the next, or it reads "
        "a clock: a later call could be answered from memory, or in another way.",
        "Keep nothing in __device__ variables, allocate nothing and read no clock: declare a [workspace], and compute "
        "the outputs of each call from its inputs alone.",
    ),
    Outcome.IMPLAUSIBLE: Meaning(
        Step.TIME,
        "The time is shorter than the GPU needs to read the inputs, so the kernel cannot have looked at all of them.",
        "Make sure that every input is read in every call. If the kernel is honest, the device's measured rates, or "
        "the bytes and flops that the op declares, are wrong.",
    ),
    Outcome.DUPLICATE: Meaning(
        Step.COMPILING,
        "The compiler made the very machine code of it that it had made of another kernel, with the same launches, so "
        "it was not run again: the verdict on that kernel holds for this one.",
        "Change what the GPU does, not how the source says it.",
    ),
    Outcome.UNSAFE: Meaning(
        Step.CONFIRMATION,
        "Its numbers were right, but NVIDIA's compute-sanitizer saw a race between threads, an access outside the "
        "buffers, or a value used that nobody had written.",
        "The report below names the place: add the missing barrier, guard the access, or initialise the value.",
    ),
}
# Where the verdict comes from the process's death or a deadline, its log says in which phase that was.
STEP_OF_PHASE = {"compile": Step.COMPILING, "baseline": Step.TIME, "time": Step.TIME, "sanitize": Step.CONFIRMATION}
PHASE = re.compile(rf"^({'|'.join(STEP_OF_PHASE)}) took|\bin ({'|'.join(STEP_OF_PHASE)})\b")
# Words by which logs tell at which of two steps it was.
WHEN_TIMED, WHEN_RUN = "wrong when timed", "the kernel changed"


def stopped_at(evaluation: Evaluation) -> Step:
    """The step that a failed kernel did not pass."""
    first_line = evaluation.log.partition("\n")[0]
    if evaluation.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) and (found := PHASE.search(first_line)):
        return STEP_OF_PHASE[found.group(1) or found.group(2)]
    if evaluation.outcome is Outcome.WRONG and WHEN_TIMED in evaluation.log:
        return Step.TIME
    if evaluation.outcome is Outcome.KEEPS_STATE and WHEN_RUN in evaluation.log:
        return Step.MEMORY
    return MEANINGS[evaluation.outcome].step
