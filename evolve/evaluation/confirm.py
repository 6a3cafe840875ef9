"""Confirmation of a champion, in a fresh process: duels with the best baseline, a stricter check, and the sanitizer."""

import contextlib
import secrets
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from archive.binding import IllegalError
from archive.kernel import Kernel
from archive.records import Check, Confirmed, Duel, Measurement, Outcome, Sanitized
from evolve.devices.device import Device, Program, RejectedError, SeparateRun
from evolve.evaluation import baselines
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.baselines import Call
from evolve.evaluation.buffers import POISONS, bits, bytes_held, damaged
from evolve.evaluation.check import Draw, Inspector, layout
from evolve.evaluation.compiling import Compiled, bound_at
from evolve.evaluation.timing import TimedOutputs, check_memory, median_interval, slots_for, timed_draw
from evolve.evaluation.truth import Truth, defined, truth
from evolve.op_on_device import all_flops
from reference_ops.inputs import inputs_at
from reference_ops.op import NORMAL, Op, Tensors, TensorSpec, Workload
from reference_ops.rows import beyond, with_rows, without_rows
from reference_ops.shapes import prime_below

ROUNDS = 31
BASELINE = 1  # index of the baseline among three contestants; the others are the kernel
CONTENDER = 1.05  # times the best baseline's time; a slower kernel cannot win a duel
SANITIZER_SECONDS = 60.0
REQUIRED_TOOL = "memcheck"  # no other tool and no check of an evaluation finds reads beside the buffers
SANITIZED_LONG_BYTES = 2**23  # limit on the inputs of a shape with one long dim
SANITIZED_BYTES = 2**29  # limit on the inputs of a small shape: the tools are a hundred times slower
# number and size of declared workloads of which the kernel accepts no smaller form
SANITIZED_WHOLE, WHOLE_BYTES = 2, 2**32


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
    """Return the smallest declared workloads for kinds of rows of which the kernel accepts no small number."""
    few = {without_rows(op, workload) for workload, _ in programs.thin}
    whole = [pair for pair in programs.declared if without_rows(op, pair[0]) not in few]
    whole = [pair for pair in whole if op.nbytes(pair[0]) <= WHOLE_BYTES]  # each tool holds all tensors of the workload
    return tuple(sorted(whole, key=lambda pair: op.nbytes(pair[0]))[:SANITIZED_WHOLE])


def sanitized(
    device: Device,
    programs: Iterable[tuple[Workload, Program]],
    others: Iterable[tuple[Workload, Program]],
    op: Op,
    watch: Callable[[str], None],
) -> tuple[Sanitized, ...]:
    """Return compute-sanitizer's reports at a few small shapes of `programs`, and at all `others`.

    Raises RejectedError if it finds an error, or if the kernel is too slow for memcheck at every shape: a kernel could
    otherwise avoid the tool by long loops where it is not timed.
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
    examined = sanitizer(runs, SANITIZER_SECONDS)
    required = [report for reports in examined for report in reports if report.tool == REQUIRED_TOOL]
    if required and all(report.late for report in required):
        message = f"{REQUIRED_TOOL} took more than {SANITIZER_SECONDS:.0f} s at each of {len(required)} shapes"
        raise RejectedError(Outcome.TIMED_OUT, f"{message}: without its result, a kernel cannot be a champion")
    for (workload, _), reports in zip(chosen, examined, strict=True):
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
    """Return the smallest shape, the largest one of the smaller half, and one in between: their loops and tails differ.

    Shapes of the larger half would take too long.
    """
    half = smallest[: max(1, len(smallest) // 2)]
    return [half[index] for index in sorted({0, len(half) // 2, len(half) - 1})] if half else []


ROWS_ALONE, WHOLE = 0.8, 0.6  # share of the device's memory for repeated rows, and for all that a reference needs
LONGEST_SECONDS = 1.5  # limit on the kernel's time there, estimated from its times at the measured workloads
LEAST_ROWS = 3


@dataclass(frozen=True)
class Beyond:
    """Limits of a check beyond the usual sizes."""

    elements: int  # one of the tensors must have more elements
    memory_bytes: int
    measured: tuple[tuple[Workload, float], ...] = ()  # the kernel's times in seconds
    repeated: int = 2**25  # elements of the rows that are repeated, and that are compared at once

    def allows(self, op: Op, workload: Workload) -> bool:
        by_rows = repeats_rows(op, workload)
        needed = op.nbytes(workload) if by_rows else bytes_held(op, workload)
        seconds = min((taken * _growth(op, known, workload) for known, taken in self.measured), default=0.0)
        return needed <= self.memory_bytes * (ROWS_ALONE if by_rows else WHOLE) and seconds <= LONGEST_SECONDS


def check_beyond(inspector: Inspector, kernel: Kernel, op: Op, limits: Beyond) -> tuple[Workload, ...]:
    """Check the kernel once beyond the limit's number of elements. Return the workload, if one is possible.

    Raises RejectedError if it is wrong there.
    """
    for workload in (one for one in beyond(op, limits.elements) if limits.allows(op, one)):
        few = with_rows(op, workload, LEAST_ROWS)
        if not (op.is_valid(few) and defined(op, few, inspector.device.torch_device)):
            continue
        if (program := _compiled(inspector, kernel, op, workload)) is None:
            continue
        inspector.watch("time")  # exclusive use of the device, because little memory is left for other processes
        try:
            if repeats_rows(op, workload):
                _check_rows(inspector, program, op, workload, limits.repeated)
            else:
                inspector.check_on(program, op, workload, (NORMAL,))
        except torch.OutOfMemoryError:
            return ()
        except RejectedError as error:
            if error.outcome is not Outcome.ILLEGAL:  # a limit that only a launch shows, such as that of the grid
                raise
            continue
        finally:
            inspector.arena.release()
        return (workload,)
    return ()


def repeats_rows(op: Op, workload: Workload) -> bool:
    """Return whether each row of every output depends only on the same row of the inputs and on inputs without rows.

    The answer is no if an input has no dims: it is the gradient of a mean, which depends on the number of rows.
    """
    rows, fewer = _rows(op), with_rows(op, workload, LEAST_ROWS)
    every = (*op.inputs, *op.outputs)
    return (
        op.by_rows
        and op.is_valid(fewer)
        and all(spec.dims for spec in op.inputs)
        and all(spec.dims[:1] == (rows,) for spec in op.outputs)
        and all(rows not in spec.dims[1:] for spec in every)
        and all(_row_shape(op, spec, fewer) == _row_shape(op, spec, workload) for spec in every)
    )


def _growth(op: Op, known: Workload, workload: Workload) -> float:
    """Return the ratio of the work to that of a workload whose time is known.

    Rows that are not independent may be the steps of a sequence, one after the other, however small each is.
    """
    steps = 0.0 if op.by_rows else dict(workload.dims)[_rows(op)] / dict(known.dims)[_rows(op)]
    return max(op.nbytes(workload) / op.nbytes(known), all_flops(op, workload) / max(1, all_flops(op, known)), steps)


def _rows(op: Op) -> str:
    return op.varied[0].dims[0]


def _row_shape(op: Op, spec: TensorSpec, workload: Workload) -> tuple[int, ...]:
    shape = op.shape(spec, workload)
    return shape[1:] if spec.dims[:1] == (_rows(op),) else shape


def _compiled(inspector: Inspector, kernel: Kernel, op: Op, workload: Workload) -> Program | None:
    """Return the program, or None if the kernel does not accept so large a workload."""
    inspector.watch("compile")
    try:
        return inspector.device.compile(bound_at(kernel, op, workload, inspector.device.info))
    except (IllegalError, RejectedError):  # `when`, the grid's limits, or a parameter too narrow for the size
        return None


def _check_rows(inspector: Inspector, program: Program, op: Op, workload: Workload, repeated: int) -> None:
    """Check rows that repeat after an odd number of rows, so that an index 2**32 too low reads another row."""
    count = dict(workload.dims)[_rows(op)]
    period = max(LEAST_ROWS, prime_below(repeated * count // op.largest_tensor(workload)))
    few = with_rows(op, workload, period)
    draw = Draw(op, few, inspector.rng.randrange(2**31))
    buffers = inspector.arena.poisoned(layout(op, workload, program), POISONS[0], inspector.rng)
    tensors = {name: buffer.tensor for name, buffer in buffers.items()}
    inputs = draw.inputs(inspector.device)
    for name, at, values in _repeated(op, inputs, count):
        tensors[name][at].copy_(values)
    inspector.device.run(program, tensors)
    changed = [name for name, at, values in _repeated(op, inputs, count) if _differ(tensors[name][at], values)]
    if changed:
        raise RejectedError(Outcome.CHANGED_INPUT, f"{workload.key}: the input `{changed[0]}` was changed")
    if damaged(buffers.values()) or inspector.arena.strayed():
        raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{workload.key}: memory outside the buffers was overwritten")
    expected = truth(op, few, NORMAL, draw.seed, inputs)
    for index, spec in enumerate(op.outputs):
        for actual in tensors[spec.name].split(period):
            _judge(inspector, expected, index, actual, workload)


def _repeated(op: Op, inputs: Tensors, count: int) -> Iterator[tuple[str, slice, torch.Tensor]]:
    """Yield the place and the values of each part of each input. A part has this many rows."""
    for spec in op.inputs:
        values = inputs[spec.name]
        if spec.dims[:1] != (_rows(op),):
            yield spec.name, slice(None), values
            continue
        for first in range(0, count, len(values)):
            part = values[: count - first]
            yield spec.name, slice(first, first + len(part)), part


def _differ(some: torch.Tensor, others: torch.Tensor) -> bool:
    return not torch.equal(bits(some.clone()), bits(others.clone()))  # copies have the same alignment


def _judge(inspector: Inspector, expected: Truth, index: int, actual: torch.Tensor, workload: Workload) -> None:
    """Judge some rows of an output.

    If there are fewer rows than expected, PyTorch's rows replace the missing rows.
    """
    if len(actual) < len(expected.pytorch[index]):
        whole = expected.pytorch[index].clone()
        whole[: len(actual)] = actual
        actual = whole
    name = expected.op.outputs[index].name
    for group, found in expected.judged(index, actual):
        inspector.checks.append(Check(workload.key, group.values, name, found.error, found.pytorch_error, found.worst))
        if found.fault:
            raise RejectedError(Outcome.WRONG, f"{workload.key}: `{name}`: {found.fault}")
