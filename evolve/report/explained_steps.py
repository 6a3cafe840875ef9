"""Descriptions of an evaluation's steps, of each outcome, and of how inputs are drawn."""

import re
from dataclasses import dataclass
from enum import IntEnum

from archive.records import Evaluation, Outcome


class EvaluationStep(IntEnum):
    """The steps of an evaluation, in order. A kernel that fails a step does not reach the next."""

    COMPILING = 1
    MEMORY = 2
    NUMBERS = 3
    REPEATABILITY = 4
    TIME = 5
    CONFIRMATION = 6


COMPILING, MEMORY, NUMBERS, REPEATABILITY, TIME, CONFIRMATION = EvaluationStep
NAMES = {
    COMPILING: "Compiling",
    MEMORY: "Running, and changes to memory",
    NUMBERS: "Numbers",
    REPEATABILITY: "Repeatability",
    TIME: "Time",
    CONFIRMATION: "Confirmation",
}


@dataclass(frozen=True)
class Meaning:
    """The step at which an outcome usually occurs, its meaning and advice."""

    step: EvaluationStep
    explanation: str
    advice: str


MEANINGS = {
    Outcome.PASSED: Meaning(CONFIRMATION, "The kernel passed every test.", ""),
    Outcome.UNSUPPORTED: Meaning(
        COMPILING,
        "The kernel needs a feature that this device, or this version of evolve, does not support.",
        "Avoid that feature, or evaluate the kernel on a device that supports it.",
    ),
    Outcome.ILLEGAL: Meaning(
        COMPILING,
        "On every workload that the kernel accepts, its knobs break one of its `require` rules or a limit of the "
        "hardware, so there is nothing to run.",
        "Use other knobs: fewer threads, less shared memory, a smaller tile.",
    ),
    Outcome.MALFORMED: Meaning(
        COMPILING,
        "The plan does not fit the op, or the function's parameters do not fit the plan.",
        'Compare the names, order and number of the arguments with the plan; the function must be extern "C".',
    ),
    Outcome.COMPILE_ERROR: Meaning(
        COMPILING,
        "The compiler rejected the source.",
        "Start with the first message below, which names the line; later messages often follow from it.",
    ),
    Outcome.LAUNCH_ERROR: Meaning(
        MEMORY,
        "The driver rejected the launch, so the kernel did not run.",
        "Check grid, block and dynamic shared memory at the workload named below.",
    ),
    Outcome.CRASHED: Meaning(
        MEMORY,
        "The kernel crashed its process by an access to unallocated memory, a misaligned access or a trap.",
        "Check the index arithmetic at the edges, and 32-bit overflow in large tensors.",
    ),
    Outcome.TIMED_OUT: Meaning(
        MEMORY,
        "The kernel did not finish before its deadline, so its process was killed.",
        "Look for an endless loop, a barrier that some threads skip, or blocks that wait for blocks not yet started.",
    ),
    Outcome.OUT_OF_BOUNDS: Meaning(
        MEMORY,
        "After a run, bytes outside the kernel's buffers had changed.",
        "Guard the tail: the last block reaches past the end if sizes do not divide evenly.",
    ),
    Outcome.CHANGED_INPUT: Meaning(
        MEMORY,
        "After a run, an input had changed.",
        "Treat inputs as read-only; keep intermediate values in a workspace.",
    ),
    Outcome.WRONG: Meaning(
        NUMBERS,
        "An output differs from PyTorch's float64 result by more than the rounding of this dtype explains.",
        "Start with the element named below. An error for only one kind of values points to overflow, cancellation or "
        "a special case such as ties and infinities.",
    ),
    Outcome.KEEPS_STATE: Meaning(
        COMPILING,
        "The kernel keeps data from one call to the next, has a place to keep it, or reads a clock: a later call could "
        "repeat an earlier answer or behave differently.",
        "Use no __device__ variables, no allocation and no clock: declare a [workspace], and compute the outputs of "
        "each call only from its inputs.",
    ),
    Outcome.IMPLAUSIBLE: Meaning(
        TIME,
        "The time is shorter than the GPU needs to read the inputs, so the kernel cannot have read all of them.",
        "Make sure that every call reads every input. If it does, the device's measured rates, or the bytes and flops "
        "that the op declares, are wrong.",
    ),
    Outcome.DUPLICATE: Meaning(
        COMPILING,
        "Its machine code and launches equal those of another kernel, whose verdict applies, so it was not run.",
        "Change the work of the GPU, not only the text of the source.",
    ),
    Outcome.UNSAFE: Meaning(
        CONFIRMATION,
        "Blocks rely on an order that nothing ensures, or NVIDIA's compute-sanitizer found a race or a stray access.",
        "The report below names the place: add the missing fence or barrier, guard the access, or initialise a value.",
    ),
}
# If the process died or missed a deadline, the log names the phase in which that happened.
STEP_OF_PHASE = {"compile": COMPILING, "prepare": TIME, "baseline": TIME, "time": TIME, "sanitize": CONFIRMATION}
PHASE = re.compile(rf"^({'|'.join(STEP_OF_PHASE)}) took|\bin ({'|'.join(STEP_OF_PHASE)})\b")
# Words in a log that show at which of two possible steps the outcome occurred.
WHEN_TIMED, WHEN_RUN, WHEN_COMPILED = "wrong when timed", "the kernel changed", "found in its PTX"
KILLED = (Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_ERROR)
VALUES = {
    "normal": "normal numbers",
    "uniform": "between 0 and 1: sums grow",
    "large": "squares or exponentials overflow",
    "far_below": "all far below zero, at -1e10, in float16 at -4000",
    "heavy_tail": "a few elements make up most of a sum",
    "shifted": "each row around its own centre, some far below zero",
    "moved": "normal numbers, at a different scale each time",
    "shifted_columns": "each column or channel around its own centre",
    "integers": "small integers: the result must be exact",
    "constant": "one number per row, zero in some rows",
    "masked": "half of them are -inf",
    "ties": "few distinct numbers, zeros of both signs the greatest",
    "tiny": "down to the smallest subnormal numbers",
    "faint": "far below float16's range",
    "vast": "far above float16's range",
    "zero": "only zeros", "minute": "all around 1e-8",
    "subnormal": "all subnormal",
    "saturating": "all around 100",
    "overflowing": "up to the largest float16, or four times as far in wider dtypes",
    "NaN": "a few NaN", "saved_NaN": "a few NaN in what the forward saved",
    "infinite": "a few infinities of both signs",
    "saved_infinite": "a few infinities in what the forward saved",
    "minus_inf_rows": "rows of only -inf",
    "clashing": "NaN beside infinities, and several infinities in a row",
    "equal_infinities": "the same infinity in two inputs at an element",
    "opposite_infinities": "infinities of opposite signs in two inputs at an element",
    "special_pairs": "NaN, an infinity or zero in two inputs at an element",
    "mixed": "rows of each kind",
}  # fmt: skip


def stopped_at(evaluation: Evaluation) -> EvaluationStep:
    """Return the step that a failed kernel did not pass."""
    first_line = evaluation.log.partition("\n")[0]
    if evaluation.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) and (found := PHASE.search(first_line)):
        return STEP_OF_PHASE[found.group(1) or found.group(2)]
    if evaluation.outcome is Outcome.WRONG and WHEN_TIMED in evaluation.log:
        return TIME
    if evaluation.outcome is Outcome.KEEPS_STATE and WHEN_RUN in evaluation.log:
        return MEMORY
    if WHEN_COMPILED in evaluation.log:
        return COMPILING
    return MEANINGS[evaluation.outcome].step
