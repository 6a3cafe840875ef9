"""What was checked on a kernel, with which figures, and why it passed or failed: for `evaluate --explain`."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import Check, Conditions, Evaluation, Outcome
from evolve.report.kernel import audit, confirmation_details
from evolve.report.tables import fitted, measurements_table, plain_table
from evolve.report.words import (
    counted,
    figure,
    idea,
    moment,
    percent,
    short,
    times,
    times_note,
    workload_labels,
)


class EvaluationStep(IntEnum):
    """The steps of an evaluation, in their order; each begins only after the one before it was passed."""

    COMPILING = 1
    MEMORY = 2
    NUMBERS = 3
    REPEATABILITY = 4
    TIME = 5
    CONFIRMATION = 6


@dataclass(frozen=True)
class Meaning:
    step: EvaluationStep
    seen: str
    advice: str


MEANINGS = {
    Outcome.PASSED: Meaning(EvaluationStep.CONFIRMATION, "Everything that was tested was in order.", ""),
    Outcome.UNSUPPORTED: Meaning(
        EvaluationStep.COMPILING,
        "The kernel asks for something that this device, or this version of evolve, does not offer.",
        "Do without it, or evaluate on a device that has it.",
    ),
    Outcome.ILLEGAL: Meaning(
        EvaluationStep.COMPILING,
        "On every workload that the kernel accepts, its knobs break one of its own `require` rules or a limit of the "
        "hardware, so that nothing is left to run.",
        "Use other knobs: fewer threads, less shared memory, a smaller tile.",
    ),
    Outcome.MALFORMED: Meaning(
        EvaluationStep.COMPILING,
        "The plan does not fit the op, or the function's parameters do not fit the plan.",
        'Compare the names, the order and the number of arguments with the plan; the function must be extern "C".',
    ),
    Outcome.COMPILE_ERROR: Meaning(
        EvaluationStep.COMPILING,
        "The compiler refused the source.",
        "Its first message below names the line; later ones often only follow from it.",
    ),
    Outcome.LAUNCH_ERROR: Meaning(
        EvaluationStep.MEMORY,
        "The driver refused to launch the kernel, so none of it ran.",
        "Look at grid, block and dynamic shared memory at the workload named below.",
    ),
    Outcome.CRASHED: Meaning(
        EvaluationStep.MEMORY,
        "The kernel ended the process that ran it: an access to memory that is nobody's, a trap, or a misaligned one.",
        "Check the index arithmetic at the edges, and 32-bit overflow in large tensors.",
    ),
    Outcome.TIMED_OUT: Meaning(
        EvaluationStep.MEMORY,
        "It did not come to an end within its time, so the process was killed.",
        "Look for an endless loop, a barrier that not all threads reach, or blocks that wait for others yet to start.",
    ),
    Outcome.OUT_OF_BOUNDS: Meaning(
        EvaluationStep.MEMORY,
        "After a run, bytes outside the kernel's buffers had changed.",
        "Guard the tail: the last block reaches beyond the end when sizes do not divide.",
    ),
    Outcome.CHANGED_INPUT: Meaning(
        EvaluationStep.MEMORY,
        "After a run, an input was no longer what it had been.",
        "Inputs are read-only; put what has to be kept into workspace.",
    ),
    Outcome.WRONG: Meaning(
        EvaluationStep.NUMBERS,
        "An output differs from PyTorch's float64 result by more than rounding at this dtype explains.",
        "The element named below is the place to begin; an error on one kind of values alone points to overflow, "
        "cancellation, or a special case such as ties and infinities.",
    ),
    Outcome.KEEPS_STATE: Meaning(
        EvaluationStep.COMPILING,
        "The kernel has a place where it remembers, or did remember, something from one call to the next, or it reads "
        "a clock: a later call could be answered from memory, or in another way.",
        "Keep nothing in __device__ variables, allocate nothing and read no clock: declare a [workspace], and compute "
        "the outputs of each call from its inputs alone.",
    ),
    Outcome.IMPLAUSIBLE: Meaning(
        EvaluationStep.TIME,
        "The time is shorter than the GPU needs to read the inputs, so the kernel cannot have looked at all of them.",
        "Make sure that every input is read in every call. If the kernel is honest, the device's measured rates, or "
        "the bytes and flops that the op declares, are wrong.",
    ),
    Outcome.DUPLICATE: Meaning(
        EvaluationStep.COMPILING,
        "The compiler made the very machine code of it that it had made of another kernel, with the same launches, so "
        "it was not run again: the verdict on that kernel holds for this one.",
        "Change what the GPU does, not how the source says it.",
    ),
    Outcome.UNSAFE: Meaning(
        EvaluationStep.CONFIRMATION,
        "Its numbers were right, but NVIDIA's compute-sanitizer saw a race between threads, an access outside the "
        "buffers, or a value used that nobody had written.",
        "The report below names the place: add the missing barrier, guard the access, or initialise the value.",
    ),
}
# Where the verdict comes from the process's death or a deadline, its log says in which phase that was.
STEP_OF_PHASE = {
    "compile": EvaluationStep.COMPILING,
    "baseline": EvaluationStep.TIME,
    "time": EvaluationStep.TIME,
    "sanitize": EvaluationStep.CONFIRMATION,
}
PHASE = re.compile(rf"^({'|'.join(STEP_OF_PHASE)}) took|\bin ({'|'.join(STEP_OF_PHASE)})\b")
# Words by which logs tell at which of two steps it was.
WHEN_TIMED, WHEN_RUN = "wrong when timed", "the kernel changed"


def stopped_at(evaluation: Evaluation) -> EvaluationStep:
    """The step that a failed kernel did not pass."""
    first_line = evaluation.log.partition("\n")[0]
    if evaluation.outcome in (Outcome.CRASHED, Outcome.TIMED_OUT) and (found := PHASE.search(first_line)):
        return STEP_OF_PHASE[found.group(1) or found.group(2)]
    if evaluation.outcome is Outcome.WRONG and WHEN_TIMED in evaluation.log:
        return EvaluationStep.TIME
    if evaluation.outcome is Outcome.KEEPS_STATE and WHEN_RUN in evaluation.log:
        return EvaluationStep.MEMORY
    return MEANINGS[evaluation.outcome].step


# How the evaluator works, as told to people; tests hold these against the evaluator's own.
POISONS, GAP_BYTES, ALIGNMENTS, PHYSICAL_SHARE = (0xFF, 0x7E, 0x3F, 0x00), 4096, (16, 512), 0.8
VALUES = {
    "normal": "normal numbers",
    "uniform": "between 0 and 1: sums grow",
    "large": "squares or exponentials overflow",
    "heavy_tail": "a few elements make up most of a sum",
    "shifted": "each row round a centre of its own, some far below zero",
    "moved": "normal numbers of another scale each time",
    "shifted_columns": "each column or channel round a centre of its own",
    "integers": "small integers: the result must be exact",
    "constant": "one number throughout a row, zero in some",
    "masked": "half of them are -inf",
    "ties": "few distinct numbers, the greatest zeros of both signs",
    "tiny": "down to the smallest there are",
    "faint": "far below float16's range",
    "vast": "far beyond float16's range",
    "mixed": "rows of each kind",
}
WIDE = 120  # columns from which there is room to describe the values
NAMES = {
    EvaluationStep.COMPILING: "Compiling",
    EvaluationStep.MEMORY: "Running, and what it did to memory",
    EvaluationStep.NUMBERS: "Numbers",
    EvaluationStep.REPEATABILITY: "Repeatability",
    EvaluationStep.TIME: "Time",
    EvaluationStep.CONFIRMATION: "Confirmation",
}
KILLED = (Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_ERROR)


def explanation(kernel: Kernel, verdicts: Sequence[Evaluation], width: int) -> Iterator[RenderableType]:
    """The last of a kernel's verdicts on one device, step by step; the earlier ones come first."""
    *earlier, verdict = verdicts
    yield _headline(kernel, verdict)
    yield _because(verdict, earlier)
    failed_at = None if verdict.passed else stopped_at(verdict)
    for step in EvaluationStep:
        parts = list(_failure(verdict) if step == failed_at else ())
        if failed_at is None or step < failed_at or (step == failed_at == EvaluationStep.NUMBERS):
            parts = [*_about(step, verdict, width), *parts]
        state, style = _state(step, verdict, failed_at)
        yield Text.assemble(f"\n{step}  ", (NAMES[step], "bold"), ": ", (state, style))
        yield Padding(Group(*parts), (0, 0, 0, 3))
    audited = list(audit(verdict))
    if audited:
        yield Text()
    yield from audited


def _headline(kernel: Kernel, verdict: Evaluation) -> Text:
    device = verdict.device
    versions = [f"driver {device.driver}"] if device.driver else []
    versions += [f"PyTorch {device.torch}"] if device.torch else []
    facts = [device.arch, *versions, moment(verdict.created), f"{verdict.seconds:.1f} s", f"seed {verdict.seed}"]
    known = ", ".join(filter(None, facts))
    return Text.assemble((short(kernel.id), "bold"), f"  {kernel.op}: {idea(kernel)}\non {device.name} ({known})")


def _because(verdict: Evaluation, earlier: Sequence[Evaluation]) -> Text:
    """The verdict and its reason, in a sentence or two."""
    if verdict.passed and verdict.confirmed:
        return Text("PASSED, and confirmed: a fresh process tested it again, harder, and found nothing.", "green")
    if verdict.passed:
        return Text("PASSED: every step up to the timing was in order. It is not confirmed yet.", "green")
    last_pass = next((e for e in reversed(earlier) if e.passed), None)
    when = f" on {moment(last_pass.created)}" if last_pass and last_pass.created else ""
    again = f" It had passed{when}, and fell when it was tested again." if last_pass else ""
    return Text(f"FAILED at step {stopped_at(verdict):d}: {verdict.outcome}.{again}", "red")


def _unrecorded(verdict: Evaluation) -> Text:
    lost = (
        "They were lost with the process that it ended." if verdict.outcome in KILLED else "An older evolve kept none."
    )
    return Text(f"No figures are recorded. {lost}", "yellow")


def _state(step: EvaluationStep, verdict: Evaluation, failed_at: EvaluationStep | None) -> tuple[str, str]:
    if failed_at is not None and step >= failed_at:
        return ("stopped here", "red") if step == failed_at else ("not reached", "dim")
    if step == EvaluationStep.CONFIRMATION and not verdict.confirmed:
        return "not yet", "yellow"
    return "passed", "green"


def _failure(verdict: Evaluation) -> Iterator[RenderableType]:
    meaning = MEANINGS[verdict.outcome]
    judged = len(verdict.checks)
    before = (
        f" Before that, {counted(judged, 'output')} had been right."
        if judged and meaning.step < EvaluationStep.NUMBERS
        else ""
    )
    yield Text(f"{meaning.seen}{before}")
    yield Text(f"What to do: {meaning.advice}")
    if verdict.log.strip():
        yield Text("\n" + verdict.log.strip(), "dim")


def _about(step: EvaluationStep, verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    """What was done at a step, and what came of it."""
    match step:
        case EvaluationStep.COMPILING:
            yield from _compiling(verdict)
        case EvaluationStep.MEMORY:
            yield _memory(verdict)
        case EvaluationStep.NUMBERS:
            yield from _numbers(verdict, width)
        case EvaluationStep.REPEATABILITY:
            yield _repeatability(verdict)
        case EvaluationStep.TIME:
            yield from _time(verdict, width)
        case EvaluationStep.CONFIRMATION:
            yield from _confirmation(verdict)


def _compiling(verdict: Evaluation) -> Iterator[RenderableType]:
    for spent in verdict.resources:
        local = f"{spent.local_bytes} B of local memory (spills)" if spent.local_bytes else "no spills"
        shared = f"{spent.shared_bytes} B of static shared memory"
        yield Text(f"{spent.entry}: {spent.registers} registers, {shared}, {local}")
    if not verdict.resources:
        yield Text("It compiled for every workload that it accepts.")
    if verdict.skipped:
        yield Text(f"{counted(len(verdict.skipped), 'workload')} not accepted: {'; '.join(verdict.skipped)}", "dim")
    if verdict.passed and verdict.log.strip():
        yield Text(f"The compiler's remarks:\n{verdict.log.strip()}", "dim")


def _memory(verdict: Evaluation) -> Text:
    if not verdict.checks:
        return _unrecorded(verdict)
    (first, second, third, _), (least, usual) = (f"0x{poison:X}" for poison in POISONS), ALIGNMENTS
    return Text(
        f"Before each run outputs and workspace were filled with {first}, {second} (no numbers, or huge ones), {third} "
        "(an ordinary one), zeros or anything, or were as the last call had left them; at least "
        f"{GAP_BYTES} bytes before and behind every buffer, inputs included, held noise. Buffers lay in a new order "
        f"each time, aligned to {least} bytes and no more, or to the usual {usual}. Nothing outside them was written, "
        "and inputs stayed the same to the bit."
    )


def _numbers(verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    checks = verdict.checks
    if not checks:
        yield _unrecorded(verdict)
        return
    timed = {measurement.workload for measurement in verdict.measurements}
    shapes = {check.workload for check in checks}
    others = f", {len(shapes - timed)} of them never timed: awkward ones, and some drawn at random" if timed else ""
    yield Text(
        f"{counted(len(checks), 'output')} judged against PyTorch in float64, on {counted(len(shapes), 'shape')}"
        f"{others}. Inputs were drawn after compilation, expected values computed after the run. error: root mean "
        "square, over PyTorch's own at that dtype; worst: the worst element, as a share of what is allowed there."
    )
    yield _checks_table(checks, checks[-1] if verdict.outcome is Outcome.WRONG else None, width)
    if verdict.passed and timed:
        yield Text(
            "Each shape ran at least twice on the same normal numbers, and then on rows of every kind of values; "
            "outputs of timed calls, the fastest and others drawn by lot, were judged too."
        )


def _checks_table(checks: Sequence[Check], wrong: Check | None, width: int) -> Table:
    """A row per output and kind of values, with the worst that was found, or the one that was wrong."""
    wide = width >= WIDE
    numbers = ["judged", "error", "worst"]
    described = ["which are"] if wide else []
    table = plain_table("output", "values", *described, *numbers, "worst at", numbers=numbers)
    for output, values in dict.fromkeys((check.output, check.values) for check in checks):
        these = [check for check in checks if (check.output, check.values) == (output, values)]
        fails = wrong is not None and wrong in these
        furthest = wrong if wrong and fails else max(these, key=lambda check: check.worst)
        ratios = [check.error / check.theirs for check in these if check.theirs]
        exact = not fails and not any(check.error or check.theirs for check in these)
        table.add_row(
            fitted(output),
            values.replace("_", " "),
            *([fitted(VALUES.get(values, ""), "dim")] if wide else []),
            str(len(these)),
            "exact" if exact else times(max(ratios, default=None)),
            Text("wrong", "red") if fails else Text("-" if exact else percent(furthest.worst)),
            fitted("" if exact else furthest.workload, "dim"),
        )
    return table


def _repeatability(verdict: Evaluation) -> Text:
    if verdict.deterministic is None:
        return Text("Whether the same inputs give the same bits is recorded of kernels that passed.", "dim")
    if verdict.deterministic:
        return Text("The same inputs gave the same bits in each run, at every shape: deterministic.")
    return Text("The same inputs gave different bits, each time right: allowed, but recorded as not deterministic.")


def _time(verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    note = times_note(verdict.device.kind)
    if note:
        yield Text(note, "yellow")
    if not verdict.measurements:
        yield Text("Only the times of kernels that passed are kept.", "dim")
        return
    yield measurements_table(verdict, width - 3)
    labels = workload_labels([measurement.workload for measurement in verdict.measurements]).of
    counts = {m.samples for m in verdict.measurements}
    each = ", ".join(f"{m.samples} at {labels[m.workload]}" for m in verdict.measurements)
    samples = f"{counts.pop()} at each workload" if len(counts) == 1 else each
    yield Text(
        f"Calls timed: {samples}. Each had inputs of its own, and poisoned outputs; 95 % is the median's interval."
    )
    graphs = [f"{figure(m.graph_us)} µs at {labels[m.workload]}" for m in verdict.measurements if m.graph_us]
    if graphs:
        yield Text(f"As one of several calls in a CUDA graph: {', '.join(graphs)}.")
    if not note:
        yield from _physics(verdict)
        yield _conditions(verdict.conditions)


def _physics(verdict: Evaluation) -> Iterator[Text]:
    device = verdict.device
    shares = [m.share_of_light for m in verdict.measurements if m.share_of_light]
    if not shares or not device.copy_gb_s:
        yield Text("The device's rates are not known, so no time could be called implausible.", "yellow")
        return
    yield Text(
        f"light: the share of the speed of light, at which each byte is moved once at the {device.copy_gb_s:.0f} GB/s "
        f"measured there, and the flops at the measured peak: {percent(max(shares))} at most. A time below "
        f"{PHYSICAL_SHARE:.0%} of what reading the inputs takes would have been implausible."
    )


def _conditions(conditions: Conditions | None) -> Text:
    if conditions is None:
        return Text("Clocks and temperature were not recorded.", "dim")
    slowed = f"slowed down by {conditions.throttled}" if conditions.throttled else "not slowed down"
    return Text(
        f"The GPU at the end: {conditions.sm_mhz} MHz, memory {conditions.memory_mhz} MHz, "
        f"{conditions.temperature_c} °C, {conditions.power_w} W, {slowed}.",
        "yellow" if conditions.throttled else "",
    )


def _confirmation(verdict: Evaluation) -> Iterator[RenderableType]:
    if verdict.confirmed is None:
        yield Text(
            "No fresh process has tested it again: no duels, no sanitizer. Only champions are confirmed, when a run "
            f"ends or by `evolve confirm {verdict.op}`, and only what is confirmed is exported."
        )
        return
    won = [duel.workload for duel in verdict.confirmed.duels if duel.won]
    yield Text(
        "All of the above is from a fresh process, on new seeds; after the duels every shape was checked once more. "
        "In a duel, the kernel and the best of PyTorch are timed in pairs, in random order; it is won where even the "
        "interval's low end is above 1 by more than the noise: how far the kernel strays when timed against itself. "
        f"Won: {len(won)} of {len(verdict.confirmed.duels)}; where PyTorch is clearly faster there is none."
    )
    yield from confirmation_details(verdict)
