"""Prompt sections about kernels: parents in full with measurements and profiles, other kernels in one line each."""

import itertools
import math
from statistics import median

from archive.kernel import Kernel
from archive.records import Evaluation, Measurement, Profile, Resources, Traits
from evolve.devices import counters
from evolve.devices.choose import policy_of
from evolve.devices.counters import COUNTERS, DURATION, Counter, of_launch
from evolve.prompting.bottleneck import Counted, bottleneck, side
from evolve.prompting.diagnosis import complaints, diagnosis, form, hint
from evolve.prompting.text import MAX_NOTE, MAX_WORKLOAD, THREADS, clipped, fenced, listed, nbytes, one_line, times, us
from evolve.request import Candidate, Request
from evolve.selection import population
from evolve.selection.population import weakest
from reference_ops.op import NORMAL, Op

MAX_LOG, MAX_REASON, MAX_MEASUREMENTS = 5_000, 300, 16
SHORT_ID, MAX_SETTINGS = 8, 4


def kernel_section(title: str, candidate: Candidate, op: Op, characters: int, most: int = MAX_MEASUREMENTS) -> str:
    """Return the section about a parent: its text, and its measurements, resources and faults."""
    kernel, evaluation = candidate.kernel, candidate.evaluation
    parts = [f"# {title} ({kernel.id[:SHORT_ID]})", fenced("cuda", clipped(kernel.text, characters))]
    if not evaluation.passed:
        log = fenced("text", clipped(evaluation.log or "(no log)", MAX_LOG))
        return "\n".join([*parts, f"It failed: {evaluation.outcome}.", log])
    timed = policy_of(evaluation.device.kind).times_are_gpu_times
    passed = "It passed. Measured:" if timed else "It passed, on the emulator, at:"
    told = [_measured(m) if timed else f"- {one_line(m.workload, MAX_WORKLOAD)}" for m in evaluation.measurements]
    parts += [passed, *listed(told, most)]
    if kernel.plan.settings:
        setting = ", ".join(f"{name}={value}" for name, value in kernel.plan.settings.items())
        parts.append(f"- with the first value of each knob: {one_line(setting, MAX_NOTE)}")
    parts += listed(_not_run(evaluation.skipped), most)
    parts += listed([_resources(spent) for spent in evaluation.resources], most)
    if evaluation.traits:
        parts.append(f"- after compilation: {form(evaluation.traits)}, {_in_flight(evaluation.traits)}")
    if evaluation.deterministic is False:
        parts.append("- its results differ from call to call")
    if evaluation.log.strip():
        parts += ["The compiler says:", fenced("text", clipped(evaluation.log, MAX_LOG // 4))]
    if found := diagnosis(kernel, evaluation, op):
        parts += ["Faults that are visible without a measurement:", *(f"- {sentence}" for sentence in found)]
    return "\n".join(parts)


def _in_flight(traits: Traits) -> str:
    """Return the occupancy, and the number of bytes in flight if every resident thread has one pending load."""
    flying = traits.occupancy * THREADS * traits.load_bytes
    return (
        f"occupancy {traits.occupancy:.0%}: one load of each thread means {nbytes(flying)} in flight per multiprocessor"
    )


def pytorch_section(request: Request) -> str:
    """Return the section about PyTorch: its best time and its error on each workload; empty if unknown."""
    lines = [f"- {one_line(key, MAX_WORKLOAD)}: {us(time_us)}" for key, time_us in request.pytorch_us]
    if lines:
        lines = ["The best of eager and torch.compile, the times to beat:", *listed(lines, MAX_MEASUREMENTS)]
    checked = next((one.evaluation.checks for one in request.population if one.evaluation.checks), ())
    errors: dict[str, dict[str, list[float]]] = {}
    for check in checked:
        if check.values == NORMAL:
            of_output = errors.setdefault(check.output, {})
            of_output.setdefault(check.workload.rpartition(" ")[2], []).append(check.theirs)
    exact = [
        f"- `{output}`: {', '.join(f'{dtype} {median(found):.1g}' for dtype, found in of_dtype.items())}"
        for output, of_dtype in errors.items()
    ]
    if exact:
        lines += ["Its own root mean square error on normal inputs:", *listed(exact, MAX_SETTINGS)]
    return "\n".join(["# PyTorch here", *lines]) if lines else ""


def failure_section(candidate: Candidate, characters: int, log_characters: int = MAX_LOG) -> str:
    """Return the section about a failed kernel: its text, outcome, usual causes, log, and the lines named there."""
    kernel, evaluation = candidate.kernel, candidate.evaluation
    named = complaints(kernel, evaluation.log)
    meant = ["The lines in question:", fenced("text", "\n".join(named))] if named else []
    return "\n".join([
        f"# Repair this kernel ({kernel.id[:SHORT_ID]})",
        fenced("cuda", clipped(kernel.text, characters)),
        f"It failed: {evaluation.outcome}. {hint(evaluation)}".rstrip(),
        fenced("text", clipped(evaluation.log or "(no log)", log_characters)),
        *meant,
    ])  # fmt: skip


def population_section(candidates: tuple[Candidate, ...], most: int) -> str:
    """Return the section about the population, with one line per family of kernels that differ only in knobs."""
    families: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(candidate.kernel.family, []).append(candidate)
    lines = [_alive(*family) for family in families.values()]
    return "\n".join(["# The kernels that are alive, fittest first", *listed(lines, most)])


def failures_section(candidates: tuple[Candidate, ...], most: int) -> str:
    """Return the section about failed kernels, with the idea, outcome and reason of each on one line."""
    lines = [
        f"- {idea(c.kernel)}: {c.evaluation.outcome}: {one_line(c.evaluation.log or 'no log', MAX_REASON)}"
        for c in candidates
    ]
    return "\n".join(["# Attempts that failed: do not repeat their mistakes", *listed(lines, most)])


def versus_section(first: Candidate, second: Candidate) -> str:
    """Return the section that compares two parents workload by workload."""
    of_first = {m.workload: m.median_us for m in first.evaluation.measurements}
    of_second = {m.workload: m.median_us for m in second.evaluation.measurements}
    lines = []
    for workload in dict.fromkeys([*of_first, *of_second]):
        one, other = of_first.get(workload), of_second.get(workload)
        lines.append(f"- {one_line(workload, MAX_WORKLOAD)}: {_better(one, other)}")
    return "\n".join(["# Which parent is better where", *listed(lines, MAX_MEASUREMENTS)])


def idea(kernel: Kernel) -> str:
    """Return the kernel's note, or the name of its first entry if it has no note."""
    return one_line(kernel.plan.note or kernel.plan.launches[0].entry or "a kernel without a note", MAX_NOTE)


def weakest_workload(request: Request) -> tuple[str, Measurement | None]:
    """Return the workload on which the population has the most to gain, and its best measurement, if there is one."""
    best: dict[str, Measurement] = {}
    for measurement in (m for candidate in request.population for m in candidate.evaluation.measurements):
        held = best.get(measurement.workload, measurement)
        best[measurement.workload] = min(held, measurement, key=lambda m: m.median_us)
    keys = [workload.key for workload in request.op.workloads(request.device.kind)]
    weak = min(keys, key=lambda key: population.standing(best[key]) if key in best else 0.0)
    return weak, best.get(weak)


def standing(m: Measurement) -> str:
    """Return a short phrase on the quality of a time."""
    light = f", {m.share_of_light:.0%} of the speed of light" if m.share_of_light else ""
    return f"{us(m.median_us)}, {times(m.speedup)} the best of PyTorch{light}"


def _measured(m: Measurement) -> str:
    best = min((time for time in (m.compile_us, m.autotune_us) if time), default=None)
    compiled = f", {times(best / m.median_us)} torch.compile ({us(best)})" if best else ""
    light = (
        f"; {m.share_of_light:.0%} of the speed of light ({us(m.floor_us)})" if m.share_of_light and m.floor_us else ""
    )
    return (
        f"- {one_line(m.workload, MAX_WORKLOAD)}: {us(m.median_us)} (95 %: {m.low_us:.4g} to {m.high_us:.4g}); "
        f"{times(m.eager_us / m.median_us)} eager ({us(m.eager_us)}){compiled}{light}"
    )


def _resources(spent: Resources) -> str:
    spilled = f", {nbytes(spent.local_bytes)} of local memory (spills or indexed arrays)" if spent.local_bytes else ""
    shared = f"{nbytes(spent.shared_bytes)} of static shared memory"
    return f"- {one_line(spent.entry, 80)}: {spent.registers} registers per thread, {shared}{spilled}"


def _not_run(skipped: tuple[str, ...]) -> list[str]:
    """Return a line for each reason why the kernel does not run, with the workloads."""
    reasons: dict[str, list[str]] = {}
    for line in skipped:
        workload, _, reason = line.partition(": ")
        reasons.setdefault(reason, []).append(one_line(workload, MAX_WORKLOAD))
    return [
        f"- not run ({one_line(reason, MAX_REASON) or 'no reason given'}): "
        f"{'; '.join([*workloads[:MAX_SETTINGS], *_more(workloads)])}"
        for reason, workloads in reasons.items()
    ]


def _alive(fittest: Candidate, *others: Candidate) -> str:
    evaluation = fittest.evaluation
    compiled = f"; {form(evaluation.traits)}" if evaluation.traits else ""
    line = f"- {fittest.kernel.id[:SHORT_ID]}: {idea(fittest.kernel)}: {_summary(evaluation)}{compiled}"
    ids = [other.kernel.id[:SHORT_ID] for other in others]
    return f"{line}; the same with other knobs: {', '.join([*ids[:MAX_SETTINGS], *_more(ids)])}" if ids else line


def _more(of: list[str]) -> list[str]:
    return [f"{len(of) - MAX_SETTINGS} more"] if len(of) > MAX_SETTINGS else []


def _summary(evaluation: Evaluation) -> str:
    if not evaluation.measurements:
        return str(evaluation.outcome)
    of = "1 workload" if len(evaluation.measurements) == 1 else f"{len(evaluation.measurements)} workloads"
    if not policy_of(evaluation.device.kind).times_are_gpu_times:
        return f"passed on {of}"
    mean = _mean([m.speedup for m in evaluation.measurements])
    shares = [m.share_of_light for m in evaluation.measurements if m.share_of_light]
    light = f", {_mean(shares):.0%} of the speed of light" if shares else ""
    return f"{times(mean)} the best of PyTorch{light} (geometric mean of {of})"


def _mean(values: list[float]) -> float:
    return math.exp(sum(math.log(max(value, 1e-9)) for value in values) / len(values))


def _better(one: float | None, other: float | None) -> str:
    if one is None or other is None:
        return "only parent 2 runs it" if one is None else "only parent 1 runs it"
    better, ratio = ("parent 1", other / one) if one <= other else ("parent 2", one / other)
    return f"parent 1 {us(one)}, parent 2 {us(other)}: {better} is {ratio:.2f} times as fast"


TOO_MUCH = 1.1  # ratio of the bytes moved to the least possible number above which it is mentioned
# Counters that are informative only in relation to another counter.
RATIOS = (
    ("32-byte sectors for each global load of a warp", counters.LOAD_SECTORS, counters.LOAD_REQUESTS),
    ("32-byte sectors for each global store of a warp", counters.STORE_SECTORS, counters.STORE_REQUESTS),
    ("bank conflicts for each pass over shared memory, of loads", counters.LOAD_CONFLICTS, counters.SHARED_WAVES),
    ("bank conflicts for each pass over shared memory, of stores", counters.STORE_CONFLICTS, counters.SHARED_WAVES),
)
PARTS = {counter.name for _, *pair in RATIOS for counter in pair}


def profile_section(title: str, candidate: Candidate, op: Op, *, brief: bool = False) -> str:
    """Return the section about the profile of the weakest workload. The brief form gives only the bottleneck."""
    profile = _of_weakest(candidate)
    if profile is None:
        return ""
    counted = dict(profile.counters)
    traits = candidate.evaluation.traits
    found = bottleneck(counted, max(traits.load_bytes, traits.store_bytes)) if traits else bottleneck(counted)
    at = one_line(profile.workload, MAX_WORKLOAD)
    lines = [f"# {title} as NVIDIA's profiler saw it at {at}"]
    if not brief:
        alone = [counter for counter in COUNTERS if counter.name in counted and counter.name not in PARTS]
        lines += [f"- {counter.words}: {_value(counter, counted)}" for counter in alone]
        lines += [
            f"- {words}: {counted[of.name] / counted[to.name]:.3g}"
            for words, of, to in RATIOS
            if of.name in counted and counted.get(to.name)
        ]
        lines += _moved(counted, op, profile, candidate)
        lines += _launches(counted)
    if where := side(counted):
        lines.append(f"It is {where}.")
    lines.append(f"The bottleneck: {found.kind}: {found.words}" if found else "No single bottleneck stands out.")
    return "\n".join(lines)


STALLS = (
    counters.LONG_SCOREBOARD, counters.SHORT_SCOREBOARD, counters.BARRIER, counters.MATH_THROTTLE,
)  # fmt: skip


def _launches(counted: Counted) -> list[str]:
    """Return a line per launch of a profile of several: its time, the bytes that it moved, and why its warps wait."""
    lines = list[str]()
    for number in itertools.count(1):
        own = {counter: counted[name] for counter in COUNTERS if (name := of_launch(counter.name, number)) in counted}
        if not own:
            return lines
        parts = [_value(DURATION, {DURATION.name: own[DURATION]})] if DURATION in own else []
        dram = own.get(counters.DRAM_READ, 0.0) + own.get(counters.DRAM_WRITTEN, 0.0)
        parts += [f"{nbytes(dram)} of DRAM"] if dram else []
        parts += [f"{nbytes(own[counters.L2_BYTES])} through L2"] if counters.L2_BYTES in own else []
        waits = max((stall for stall in STALLS if own.get(stall)), key=lambda stall: own[stall], default=None)
        parts += [f"mostly {waits.words}" if waits else ""]
        lines.append(f"- launch {number}: {', '.join(filter(None, parts))}")
    return lines


def _of_weakest(candidate: Candidate) -> Profile | None:
    weak = weakest(candidate.evaluation)
    ordered = sorted(candidate.profiles, key=lambda profile: weak is None or profile.workload != weak.workload)
    return next((profile for profile in ordered if profile.counters), None)


def _moved(counted: Counted, op: Op, profile: Profile, candidate: Candidate) -> list[str]:
    """Return a line that compares the bytes moved with the least possible number, if they are clearly more."""
    moved = counted.get(counters.DRAM_READ.name, 0.0) + counted.get(counters.DRAM_WRITTEN.name, 0.0)
    workloads = op.workloads(candidate.evaluation.device.kind)
    least = next((op.least_bytes(workload) for workload in workloads if workload.key == profile.workload), 0)
    if not least or moved < TOO_MUCH * least:
        return []
    return [f"- so it moves {moved / least:.2f} times the bytes that it must"]


def _value(counter: Counter, counted: Counted) -> str:
    value = counted[counter.name]
    if counter.unit == "B":
        return nbytes(value)
    if counter.unit == "ns":
        return f"{value / 1e3:.4g} us"
    if counter.unit == "%":
        return f"{value:.0f} %"
    return f"{value:.4g}" if value < 10_000 else f"{value:.3g}"
