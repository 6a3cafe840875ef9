"""`evaluate --explain`: what was checked on a kernel, with which figures, and why it passed or failed."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import FULL_SAMPLES, Check, Conditions, Evaluation, Outcome
from evolve.report.basis import known_basis
from evolve.report.kernel import audit, confirmation_details
from evolve.report.tables import fitted, measurements_table, narrowed, plain_table
from evolve.report.words import counted, figure, idea, moment, percent, short, times, times_note, workload_labels


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
    """The step at which an outcome usually occurs, what it means and what to do."""

    step: EvaluationStep
    explanation: str
    advice: str


MEANINGS = {
    Outcome.PASSED: Meaning(CONFIRMATION, "The kernel passed every test.", ""),
    Outcome.UNSUPPORTED: Meaning(
        COMPILING,
        "The kernel needs something that this device, or this version of evolve, does not offer.",
        "Do without that feature, or evaluate the kernel on a device that has it.",
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
        "Start with the first message below, which names the line; later ones often follow from it.",
    ),
    Outcome.LAUNCH_ERROR: Meaning(
        MEMORY,
        "The driver rejected the launch, so the kernel did not run.",
        "Check grid, block and dynamic shared memory at the workload named below.",
    ),
    Outcome.CRASHED: Meaning(
        MEMORY,
        "The kernel crashed its process: by an access to unallocated memory, a misaligned access or a trap.",
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
        "Start with the element named below. An error for one kind of values alone points to overflow, cancellation "
        "or a special case such as ties and infinities.",
    ),
    Outcome.KEEPS_STATE: Meaning(
        COMPILING,
        "The kernel keeps data from one call to the next, has a place to keep it, or reads a clock: a later call could "
        "repeat an earlier answer or behave differently.",
        "Use no __device__ variables, no allocation and no clock: declare a [workspace], and compute the outputs of "
        "each call from its inputs alone.",
    ),
    Outcome.IMPLAUSIBLE: Meaning(
        TIME,
        "The time is shorter than the GPU needs to read the inputs, so the kernel cannot have read all of them.",
        "Make sure that every call reads every input. If it does, the device's measured rates, or the bytes and flops "
        "that the op declares, are wrong.",
    ),
    Outcome.DUPLICATE: Meaning(
        COMPILING,
        "Its machine code and launches equal those of another kernel, whose verdict holds, so it was not run.",
        "Change what the GPU does, not only how the source is written.",
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

# Parameters of the evaluator, repeated here for printing; tests compare them with the evaluator's own.
POISONS, GAP_BYTES, ALIGNMENTS, PHYSICAL_SHARE = (0xFF, 0x7E, 0x3F, 0x00), 4096, (16, 512), 0.8
VALUES = {
    "normal": "normal numbers",
    "uniform": "between 0 and 1: sums grow",
    "large": "squares or exponentials overflow",
    "heavy_tail": "a few elements make up most of a sum",
    "shifted": "each row around its own centre, some far below zero",
    "moved": "normal numbers, at another scale each time",
    "shifted_columns": "each column or channel around its own centre",
    "integers": "small integers: the result must be exact",
    "constant": "one number per row, zero in some rows",
    "masked": "half of them are -inf",
    "ties": "few distinct numbers, zeros of both signs the greatest",
    "tiny": "down to the smallest subnormal numbers",
    "faint": "far below float16's range",
    "vast": "far above float16's range",
    "zero": "nothing but zeros", "minute": "all around 1e-8",
    "subnormal": "all subnormal",
    "saturating": "all around 100",
    "NaN": "a few NaN", "saved_NaN": "a few NaN in what the forward saved",
    "infinite": "a few infinities of both signs",
    "minus_inf_rows": "rows of nothing but -inf",
    "mixed": "rows of each kind",
}  # fmt: skip
INDENT = 3  # columns before the details of a step
WIDE = 120  # minimum width, in columns, at which the values are described


def explanation(kernel: Kernel, verdicts: Sequence[Evaluation], width: int) -> Iterator[RenderableType]:
    """Yield the latest of a kernel's verdicts on one device, step by step; `verdicts` are sorted, earliest first."""
    *earlier, verdict = verdicts
    yield _headline(kernel, verdict)
    yield _because(verdict, earlier)
    failed_at = None if verdict.passed else stopped_at(verdict)
    for step in EvaluationStep:
        parts = list(_failure(verdict) if step == failed_at else ())
        if failed_at is None or step < failed_at or (step == failed_at == NUMBERS):
            parts = [*_about(step, verdict, width), *parts]
        state, style = _state(step, verdict, failed_at)
        yield Text.assemble(f"\n{step}  ", (NAMES[step], "bold"), ": ", (state, style))
        yield Padding(Group(*parts), (0, 0, 0, 3))
    audited = list(audit(verdict))
    if audited:
        yield Text()
    yield from audited


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


def _headline(kernel: Kernel, verdict: Evaluation) -> Text:
    device = verdict.device
    versions = [f"driver {device.driver}"] if device.driver else []
    versions += [f"PyTorch {device.torch}"] if device.torch else []
    facts = [device.arch, *versions, moment(verdict.created), f"{verdict.seconds:.1f} s", f"seed {verdict.seed}"]
    known = ", ".join(filter(None, facts))
    return Text.assemble((short(kernel.id), "bold"), f"  {kernel.op}: {idea(kernel)}\non {device.name} ({known})")


def _because(verdict: Evaluation, earlier: Sequence[Evaluation]) -> Text:
    """Return the verdict and its reason, in a sentence or two."""
    if verdict.passed and verdict.confirmed:
        return Text("PASSED, and confirmed: it passed again, with more tests, in a fresh process.", "green")
    if verdict.passed:
        return Text("PASSED: every step up to the timing. It is not confirmed yet.", "green")
    last_pass = next((e for e in reversed(earlier) if e.passed), None)
    when = f" on {moment(last_pass.created)}" if last_pass and last_pass.created else ""
    again = f" It had passed{when}, and failed when it was tested again." if last_pass else ""
    return Text(f"FAILED at step {stopped_at(verdict):d}: {verdict.outcome}.{again}", "red")


def _unrecorded(verdict: Evaluation) -> Text:
    killed = verdict.outcome in KILLED
    why = "They were lost with the kernel's process." if killed else "An older version of evolve recorded none."
    return Text(f"No figures are recorded. {why}", "yellow")


def _state(step: EvaluationStep, verdict: Evaluation, failed_at: EvaluationStep | None) -> tuple[str, str]:
    if failed_at is not None and step >= failed_at:
        return ("stopped here", "red") if step == failed_at else ("not reached", "dim")
    if step == CONFIRMATION and not verdict.confirmed:
        return "not yet", "yellow"
    return "passed", "green"


def _failure(verdict: Evaluation) -> Iterator[RenderableType]:
    meaning = MEANINGS[verdict.outcome]
    judged = len(verdict.checks)
    before = f" Before that, {counted(judged, 'output')} had been correct." if judged and meaning.step < NUMBERS else ""
    yield Text(f"{meaning.explanation}{before}")
    yield Text(f"What to do: {meaning.advice}")
    if verdict.log.strip():
        yield Text("\n" + verdict.log.strip(), "dim")


def _about(step: EvaluationStep, verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    """Yield what a step tests, and its results for this kernel."""
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
        f"Before each run, outputs and workspace were filled with {first} or {second} (NaN or huge numbers), with "
        f"{third} (ordinary numbers), with zeros or with noise, or were left as the last call left them. At least "
        f"{GAP_BYTES} bytes before and after every buffer, inputs included, held noise. Each run placed the buffers "
        f"in a new order, aligned to {least} bytes only or to the usual {usual}. Nothing outside them was written, and "
        "inputs stayed identical."
    )


def _numbers(verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    checks = verdict.checks
    if not checks:
        yield _unrecorded(verdict)
        return
    timed = {measurement.workload for measurement in verdict.measurements}
    shapes = {check.workload for check in checks}
    others = f", {len(shapes - timed)} of them not timed: awkward sizes, and sizes drawn at random" if timed else ""
    yield Text(
        f"{counted(len(checks), 'output')} judged against PyTorch in float64, on {counted(len(shapes), 'shape')}"
        f"{others}. Inputs were drawn after compilation, and expected values computed after the run. error: root mean "
        "square error over PyTorch's own at that dtype; worst: largest error of an element over the allowed error."
    )
    yield _checks_table(checks, checks[-1] if verdict.outcome is Outcome.WRONG else None, width)
    if verdict.passed and timed:
        yield Text(
            "Each shape ran at least twice on the same normal numbers, and then on rows of every kind of values. The "
            "outputs of the fastest timed call and of others chosen at random were judged too."
        )


def _checks_table(checks: Sequence[Check], wrong: Check | None, width: int) -> Table:
    """Return a table with a row per output and kind of values: the largest error, or the wrong result."""
    wide = width >= WIDE
    numbers = ["judged", "error", "worst"]
    described = ["description"] if wide else []
    table = plain_table("output", "values", *described, *numbers, "worst at", numbers=numbers, whole=["values"])
    for output, values in dict.fromkeys((check.output, check.values) for check in checks):
        these = [check for check in checks if (check.output, check.values) == (output, values)]
        fails = wrong is not None and wrong in these
        furthest = wrong if wrong and fails else max(these, key=lambda check: check.worst)
        ratios = [check.error / check.theirs for check in these if check.theirs]
        exact = not fails and not any(check.error or check.theirs for check in these)
        table.add_row(
            fitted(output),
            values.replace("_", " "),
            *([fitted(VALUES.get(values, values.replace("_", " ")), "dim")] if wide else []),
            str(len(these)),
            "exact" if exact else times(max(ratios, default=None)),
            Text("wrong", "red") if fails else Text("-" if exact else percent(furthest.worst)),
            fitted("" if exact else furthest.workload, "dim"),
        )
    return narrowed(table, width - INDENT, ["worst at"])


def _repeatability(verdict: Evaluation) -> Text:
    if verdict.deterministic is None:
        return Text("Repeatability is recorded only for kernels that passed.", "dim")
    if verdict.deterministic:
        return Text("The same inputs gave identical outputs in each run, at every shape: deterministic.")
    return Text(
        "The same inputs gave different outputs, all of them correct: allowed, and recorded as not deterministic."
    )


def _time(verdict: Evaluation, width: int) -> Iterator[RenderableType]:
    note = times_note(verdict.device.kind)
    if note:
        yield Text(note, "yellow")
    if not verdict.measurements:
        yield Text("Times are recorded only for kernels that passed.", "dim")
        return
    yield measurements_table(verdict, width - INDENT)
    labels = workload_labels([measurement.workload for measurement in verdict.measurements]).of
    counts = {m.samples for m in verdict.measurements}
    each = ", ".join(f"{m.samples} at {labels[m.workload]}" for m in verdict.measurements)
    samples = f"{counts.pop()} at each workload" if len(counts) == 1 else each
    yield Text(f"Timed calls: {samples}, each with its own inputs and poisoned outputs. 95 %: interval of the median.")
    if any(m.coarse for m in verdict.measurements):
        yield Text(f"Fewer than {FULL_SAMPLES} samples: the kernel was clearly slower there than the champion.")
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
        yield Text("The device's rates are not known, so implausible times could not be detected.", "yellow")
        return
    yield Text(
        f"light: share of the speed of light, at most {percent(max(shares))}. At the speed of light each byte moves "
        f"once at the measured {device.copy_gb_s:.0f} GB/s, and arithmetic runs at the measured peak. A time below "
        f"{PHYSICAL_SHARE:.0%} of the time for reading the inputs would be implausible."
    )


def _conditions(conditions: Conditions | None) -> Text:
    if conditions is None:
        return Text("Clocks and temperature were not recorded.", "dim")
    throttled = f"throttled by {conditions.throttled}" if conditions.throttled else "not throttled"
    return Text(
        f"The GPU at the end: {conditions.sm_mhz} MHz, memory {conditions.memory_mhz} MHz, "
        f"{conditions.temperature_c} °C, {conditions.power_w} W, {throttled}.",
        "yellow" if conditions.throttled else "",
    )


def _confirmation(verdict: Evaluation) -> Iterator[RenderableType]:
    if verdict.confirmed is None:
        yield Text(
            "The kernel was not tested again in a fresh process, with duels and the sanitizer. Champions are confirmed "
            f"at the end of a run or by `evolve confirm {verdict.op}`; only confirmed kernels are exported."
        )
        return
    if not known_basis(verdict.device.kind).is_pytorch:
        yield Text("All figures above are from a fresh process with new seeds; every shape was checked once more.")
        yield from confirmation_details(verdict)
        return
    won = [duel.workload for duel in verdict.confirmed.duels if duel.won]
    yield Text(
        "All figures above are from a fresh process with new seeds; every shape was checked once more after the duels. "
        "A duel times the kernel and the best of PyTorch in pairs, in random order. It is won if the low end of the "
        "speedup's interval exceeds 1 by more than the noise, which is measured with the kernel against itself. "
        f"Won: {len(won)} of {len(verdict.confirmed.duels)}. There is no duel where PyTorch is clearly faster."
    )
    yield from confirmation_details(verdict)
