"""What usually is behind a failure, for whoever is to repair it."""

import re

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from evolve.prompting.text import one_line

COMPLAINT = re.compile(r"kernel\.cu(?:\((\d+)\)|:(\d+))|\bline (\d+): ")
AT_VALUES = re.compile(r"` on (\w+) values: ")
MAX_LINES, MAX_LINE = 6, 200

HINTS = {
    Outcome.UNSUPPORTED: "It asks for something that this device does not offer. Do without it.",
    Outcome.ILLEGAL: (
        "On every workload that `when` accepts, its default knobs break a `require` or a limit of the "
        "hardware. Smaller defaults, or a formula for block and shared that keeps the limit."
    ),
    Outcome.MALFORMED: (
        "The plan does not fit the op or the function. Usual causes: a name that the op does not have, args "
        "in another order or number than the parameters, a specialised name in `args` that the function has no "
        'parameter for, a missing extern "C", a key below a [table] that belongs above it, a dim passed as a pointer.'
    ),
    Outcome.COMPILE_ERROR: (
        "The first message counts, later ones often follow from it. Usual causes: a name from the host's "
        "library or from std::, an argument that is specialised and passed too, a missing conversion between "
        "half types and float, `#if` on what is no knob."
    ),
    Outcome.LAUNCH_ERROR: (
        "Nothing ran. Usual causes: more static and dynamic shared memory together than a block may have, too "
        "many registers for so many threads (add __launch_bounds__), a cooperative grid too large to be "
        "resident."
    ),
    Outcome.CRASHED: (
        "It touched memory that is nobody's, or was misaligned. Usual causes: an index that runs past the end "
        "at tails, 32-bit overflow of row * cols, a 16-byte access at an address that is no multiple of 16, "
        "dynamic shared memory beyond `shared`."
    ),
    Outcome.TIMED_OUT: (
        "It did not end. Usual causes: a barrier or a __shfl_sync that not all of its threads reach (after an "
        "early return), a loop whose step can be 0, blocks waiting for others in a launch that is not "
        "cooperative, a counter in workspace that is not zero = true."
    ),
    Outcome.WRONG: (
        "Its numbers differ from PyTorch's by more than rounding. Usual causes: a missing __syncthreads() "
        "between writing and reading shared memory, threads that return before a shuffle or barrier of the others, "
        "threads beyond the tail taking part in a reduction, sums or products in half precision, a type that is "
        "fixed where the dtype varies (__half2 on bfloat16), an output element nobody writes, a specialised size "
        "used where the workload has another."
    ),
    Outcome.OUT_OF_BOUNDS: (
        "Bytes outside its buffers changed: it writes past an end. Usual cause: the last block or the last "
        "vector of a row reaches beyond the size; guard it, or let `when` require divisibility."
    ),
    Outcome.CHANGED_INPUT: (
        "After a run an input was not what it had been: it writes to an input, or past the end of another "
        "buffer into it. Inputs are const; what has to be kept goes into workspace."
    ),
    Outcome.KEEPS_STATE: (
        "Something of it outlives the call, a __device__ or static variable that is written or memory it "
        "allocates; or it reads a clock. Declare a [workspace] (zero = true for counters), or make constant "
        "tables const."
    ),
    Outcome.UNSAFE: (
        "Its numbers were right by luck: the sanitizer saw a race, a stray access, or a value read before it "
        "was written. Usual causes: a missing __syncthreads() or __syncwarp(), a buffer in shared memory used "
        "again too early, workspace read that is not zero = true."
    ),
    Outcome.IMPLAUSIBLE: (
        "It is faster than its inputs can be read, so it cannot have read them all. Every element of every "
        "input counts in every call."
    ),
    Outcome.DUPLICATE: (
        "It compiles to the very machine code of another kernel, so what it changed the compiler undid or had done "
        "already. Change what is read, kept or computed, not how it is written."
    ),
}
# Why a kernel is right on normal numbers and wrong on others.
AT = {
    "uniform": "sums grow here instead of cancelling: accumulate in float32 and in several partial sums",
    "large": "exponentials and squares overflow here: subtract the maximum first, stay in float32",
    "heavy_tail": "a few elements make up most of a sum here: none may be left out, or counted twice",
    "shifted": "rows lie far from zero here: begin a maximum at -INFINITY and not at 0, compute a variance from "
    "differences to the mean",
    "moved": "numbers lie round another centre here, and farther apart: assume nothing about their scale",
    "shifted_columns": "columns, or channels, lie far from zero here: compute a variance from differences to the mean",
    "integers": "everything is exact here, so this is no rounding: an element is missing, counted twice or misplaced",
    "constant": "all values of a row are equal here, in some all zero: no variance, nothing but ties; mind eps and 0/0",
    "masked": "half of the row is -inf here: -inf minus -inf is NaN; begin a running maximum at a finite number",
    "ties": "many values are equal here, and zeros have both signs: order them as the reference does",
    "tiny": "values are tiny here: eps counts, and squares may underflow to zero",
    "faint": "values are far below float16's range here: nothing may pass through float16 on its way",
    "vast": "values are far beyond float16's range here: nothing may pass through float16 on its way",
}


def hint(evaluation: Evaluation) -> str:
    """What the outcome means, and what the values mean at which it showed."""
    said = [HINTS.get(evaluation.outcome, "")]
    if evaluation.outcome is Outcome.WRONG:
        if (match := AT_VALUES.search(evaluation.log)) and match.group(1) in AT:
            said.append(f"It was wrong on {match.group(1)} values: {AT[match.group(1)]}.")
        if "never written" in evaluation.log:
            said.append("Some elements were never written: look at the tails of the grid and of the loops.")
        if "when timed" in evaluation.log:
            said.append("It was right when checked: it depends on what earlier calls left in memory, or on timing.")
    return " ".join(filter(None, said))


def complaints(kernel: Kernel, log: str) -> tuple[str, ...]:
    """The lines of the kernel's text that a log complains about."""
    lines = kernel.text.split("\n")
    numbers = dict.fromkeys(int(next(filter(None, match.groups()))) for match in COMPLAINT.finditer(log[:20_000]))
    return tuple(
        f"line {number}: {one_line(lines[number - 1], MAX_LINE)}"
        for number in list(numbers)[:MAX_LINES]
        if 0 < number <= len(lines) and lines[number - 1].strip()
    )
