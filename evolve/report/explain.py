"""`evaluate --explain`: the checks of a kernel with their figures, and why it passed or failed."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import FULL_SAMPLES, Check, Conditions, Evaluation, Outcome
from evolve.report.basis import known_basis
from evolve.report.explained_steps import (
    CONFIRMATION,
    KILLED,
    MEANINGS,
    NAMES,
    NUMBERS,
    VALUES,
    EvaluationStep,
    stopped_at,
)
from evolve.report.kernel import audit, confirmation_details
from evolve.report.tables import fitted, measurements_table, narrowed, plain_table
from evolve.report.words import counted, figure, idea, moment, percent, short, times, times_note, workload_labels

# Parameters of the evaluator, repeated here for printing; tests compare them with the evaluator's own.
POISONS, GAP_BYTES, ALIGNMENTS, PHYSICAL_SHARE = (0xFF, 0x7E, 0x3F, 0x00), 4096, (16, 512), 0.8
INDENT = 3  # number of columns before the details of a step
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
    again = f" It had passed{when}, but failed when it was tested again." if last_pass else ""
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
    """Yield a description of a step, and its results for this kernel."""
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
        f"{third} (ordinary numbers), with zeros or with noise, or were left unchanged after the last call. At least "
        f"{GAP_BYTES} bytes before and after every buffer, inputs included, held noise. Each run placed the buffers "
        f"in a new order, aligned to only {least} bytes or to the usual {usual}. Nothing outside them was written, and "
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
            "outputs of the fastest timed call and of some randomly chosen calls were judged, too."
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
        yield Text(
            f"Fewer than {FULL_SAMPLES} samples: the kernel was clearly slower than the champion at these workloads."
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
