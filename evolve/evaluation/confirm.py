"""Confirmation of a champion, in a fresh process: duels with the best baseline, a closer check, and the sanitizer."""

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from archive.records import Confirmed, Duel, Measurement, Outcome, Sanitized
from evolve.devices.device import Device, Program, RejectedError, SeparateRun
from evolve.evaluation import baselines
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import Call
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled
from evolve.evaluation.timing import TimedOutputs, check_memory, median_interval, slots_for, timed_draw
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload
from reference_ops.shapes import without_rows

ROUNDS = 31
BASELINE = 1  # index of the baseline among three contestants; the others are the kernel
CONTENDER = 1.05  # times the best baseline; a slower kernel cannot win a duel
SANITIZER_SECONDS = 60.0
SANITIZED_LONG_BYTES = 2**23  # of a shape with one long dim
SANITIZED_BYTES = 2**29  # limit on the inputs of a small shape: the tools are a hundred times slower
SANITIZED_WHOLE, WHOLE_BYTES = 2, 2**32  # declared workloads of which the kernel accepts no smaller form


def confirmation(
    programs: Compiled[Program],
    op: Op,
    inspector: Inspector,
    baseline_times: Sequence[Baselines],
    measurements: Sequence[Measurement],
) -> Confirmed:
    """Run the duels, then check everything again: a kernel may be correct only while its process is new."""
    duels = []
    if any(map(can_win, measurements)):  # a fresh process has not imported the compiler yet
        inspector.watch("prepare")
        baselines.import_compiler(inspector.device).join()
    for (workload, program), times, measurement in zip(programs.declared, baseline_times, measurements, strict=True):
        if can_win(measurement):
            duels.append(duel(inspector, program, op, workload, times))
    small = (*programs.awkward, *programs.held_out, *programs.declared)
    for workload, program in (*small, *programs.thin, *programs.stretched):
        inspector.check(program, op, workload, closely=True)
    long = [pair for pair in programs.stretched if op.bytes_of(op.inputs, pair[0]) <= SANITIZED_LONG_BYTES]
    others = (*programs.thin, *long, *without_small_form(programs, op))
    reports = sanitized(inspector.device, small, others, op, inspector.watch)
    return Confirmed(tuple(workload.key for workload, _ in programs.held_out), tuple(duels), reports)


def can_win(measurement: Measurement) -> bool:
    return measurement.median_us < CONTENDER * measurement.baseline_us


def duel(inspector: Inspector, program: Program, op: Op, workload: Workload, times: Baselines) -> Duel:
    """Time the kernel, the best baseline and the kernel again in random order, each on its own inputs."""
    device, rng = inspector.device, inspector.rng
    name, baseline = _best_baseline(op, workload, inspector, times)
    inspector.watch("time")
    slots = slots_for(inspector, program, op, workload)
    calls: list[Callable[[int], object]] = [
        lambda at: program.launch(slots[at].tensors),
        lambda at: baseline(slots[at].inputs),
        lambda at: program.launch(slots[at].tensors),
    ]
    rounds = []
    timed_outputs = TimedOutputs(rng)
    for index in range(ROUNDS + 1):
        times_us = {}
        for contestant in rng.sample(range(3), 3):
            at, draw = (index + contestant) % len(slots), timed_draw(op, workload, rng)
            slots[at].refill(draw, device)
            times_us[contestant] = device.time(lambda: calls[contestant](at))  # noqa: B023
            if contestant != BASELINE:
                timed_outputs.offer(times_us[contestant], draw, slots[at])
        if index:  # the first round is a warm-up
            rounds.append(times_us)
    inspector.watch("check")
    check_memory(inspector, slots, workload)
    timed_outputs.judge(inspector)
    speedups = [times_us[BASELINE] / times_us[0] for times_us in rounds]
    same = median_interval([times_us[2] / times_us[0] for times_us in rounds])
    low, high = median_interval(speedups)
    noise = max(abs(bound - 1) for bound in same)
    return Duel(workload.key, name, statistics.median(speedups), low, high, noise)


def without_small_form(programs: Compiled[Program], op: Op) -> tuple[tuple[Workload, Program], ...]:
    """Return the smallest declared workloads with rows of which the kernel does not accept a few."""
    few = {without_rows(op, workload) for workload, _ in programs.thin}
    whole = [pair for pair in programs.declared if without_rows(op, pair[0]) not in few]
    whole = [pair for pair in whole if op.nbytes(pair[0]) <= WHOLE_BYTES]  # each tool holds all of its tensors
    return tuple(sorted(whole, key=lambda pair: op.nbytes(pair[0]))[:SANITIZED_WHOLE])


def sanitized(
    device: Device,
    programs: Iterable[tuple[Workload, Program]],
    others: Iterable[tuple[Workload, Program]],
    op: Op,
    watch: Callable[[str], None],
) -> tuple[Sanitized, ...]:
    """Return compute-sanitizer's reports at a few small shapes of `programs`, and at all `others`.

    Raises RejectedError if it finds an error.
    """
    if (sanitizer := device.tools.sanitizer) is None:
        return ()
    watch("sanitize")
    small = [pair for pair in programs if op.bytes_of(op.inputs, pair[0]) <= SANITIZED_BYTES]
    smallest = _spread(sorted(small, key=lambda pair: op.least_bytes(pair[0])))
    chosen = list(dict([*smallest, *others]).items())
    runs = [
        SeparateRun(
            program.bound,
            inputs_at(op, workload, secrets.randbelow(2**31), device.torch_device),
            {spec.name: op.bytes_of((spec,), workload) for spec in op.outputs},
        )
        for workload, program in chosen
    ]
    found: list[Sanitized] = []
    for (workload, _), reports in zip(chosen, sanitizer(runs, SANITIZER_SECONDS), strict=True):
        for report in reports:
            if report.errors:
                message = f"{workload.key}: compute-sanitizer's {report.tool} found {report.errors} errors"
                raise RejectedError(Outcome.UNSAFE, f"{message}\n{report.report}")
            found.append(replace(report, report=f"{workload.key} {report.report}".strip()))
    return tuple(found)


def _best_baseline(op: Op, workload: Workload, inspector: Inspector, times: Baselines) -> tuple[str, Call]:
    """Return the fastest baseline that can be prepared: torch.compile may fail where it succeeded once."""
    for name in times.fastest_first:
        with contextlib.suppress(TimeoutError):
            if baseline := baselines.prepared(name, op, workload, inspector.device, inspector.watch):
                return name, baseline
    raise RuntimeError(f"no baseline of {op.name} can be run at {workload.key}, not even eager PyTorch")


def _spread(smallest: list[tuple[Workload, Program]]) -> list[tuple[Workload, Program]]:
    """Return the smallest, the largest of the smaller half, and one in between: their loops and tails differ.

    The larger half would take too long.
    """
    half = smallest[: max(1, len(smallest) // 2)]
    return [half[index] for index in sorted({0, len(half) // 2, len(half) - 1})] if half else []
