"""Timing of one program: call by call, with cold caches, on fresh inputs. Some timed outputs are checked."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from archive.records import FULL_SAMPLES, Measurement, Outcome
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.baseline_times import Baselines
from evolve.evaluation.buffers import POISONS, USUAL_ALIGNMENT, Buffer, damaged, is_huge
from evolve.evaluation.check import Draw, Inspector, layout
from evolve.op_on_device import all_flops, speed_of_light
from reference_ops.op import MOVED, NORMAL, SHIFTED, Op, Tensors, Workload

LEAST_SAMPLES, USUAL_SAMPLES, MOST_SAMPLES = FULL_SAMPLES, 30, 120
# enough for a kernel that is clearly slower: the samples enclose the median with a probability of 97 %
COARSE_SAMPLES = 6
MORE_SAMPLES = 10  # samples added at a time to the usual number, until the interval is narrow
USUAL_SECONDS, MOST_SECONDS = 0.25, 0.75
# Factors of the time to beat. Timing stops early if all samples are above the first or the median is above the second,
# and takes more samples if the median is below the third.
LOSING, HOPELESS, PROMISING = 1.2, 1.5, 1.05
NARROW = 0.01  # relative width of an interval that needs no more samples
HOPELESS_BASELINES = 3  # factor of the best baseline, used if no kernel has set a time to beat
ANCHOR_SHARE = 4  # samples of the kernel per sample of eager PyTorch
LEAST_ANCHORS = 3
MOST_SETS, L2_MULTIPLE = 16, 2
# Numbers of timed calls whose outputs are checked, besides the fastest call: of each workload, and of all together.
# A kernel that accepts one workload, and cheats in four of five calls, would otherwise pass one evaluation in 80.
CHECKED_CALLS, CHECKED_IN_ALL = 2, 6
PHYSICAL_MARGIN = 0.8  # factor of the least time at the measured rates, which are not exact
GRAPH_BELOW_US, GRAPH_CALLS = 20.0, 20
# the first for a reported interval, the second for the decision whether to continue
RESAMPLES, FEWER_RESAMPLES = 1000, 250


@dataclass(frozen=True)
class CallSlot:
    """One of several sets of buffers that calls use in turn."""

    inputs: Tensors
    tensors: Tensors  # the inputs, the outputs and the workspace
    buffers: tuple[Buffer, ...]  # the buffers of `tensors`

    def refill(self, draw: Draw, device: Device) -> None:
        """Draw inputs for one call and poison the rest, so that skipped work and remembered results are found."""
        for name, tensor in self.tensors.items():
            if name not in self.inputs:
                tensor.view(-1).view(torch.uint8).fill_(draw.poison)
        for name, values in draw.inputs(device).items():
            self.inputs[name].copy_(values)

    def outputs(self, op: Op) -> tuple[torch.Tensor, ...]:
        return tuple(self.tensors[spec.name] for spec in op.outputs)


@dataclass(frozen=True)
class Kept:
    """The outputs of one timed call, kept to be checked after timing."""

    draw: Draw
    took_us: float
    outputs: tuple[torch.Tensor, ...]


@dataclass
class TimedOutputs:
    """Outputs of timed calls that are checked after timing: those of a few random calls and of the fastest one.

    If a kernel skips work in some calls, one of these calls is the fastest. Of huge outputs only the checked elements
    are kept.
    """

    rng: random.Random
    checked: int = CHECKED_CALLS  # number of random calls
    offered: int = 0
    fastest: Kept | None = None
    few: list[Kept] = field(default_factory=list)

    def offer(self, took_us: float, draw: Draw, slot: CallSlot) -> None:
        self.offered += 1
        most = 0 if is_huge(draw.op, draw.workload) else self.checked
        is_fastest = self.fastest is None or took_us < self.fastest.took_us
        chosen = self.rng.random() < most / self.offered  # reservoir sampling: every call is equally likely to be kept
        if not (is_fastest or chosen):
            return
        kept = Kept(draw, took_us, tuple(output.clone() for output in slot.outputs(draw.op)))
        if is_fastest:
            self.fastest = kept
        if chosen:
            self.few = [*self.rng.sample(self.few, min(len(self.few), most - 1)), kept]

    def judge(self, inspector: Inspector) -> None:
        """Raise RejectedError at the first wrong output."""
        held = {id(kept): kept for kept in (*self.few, self.fastest) if kept}
        self.few, self.fastest = [], None
        while held:  # free each one before the next comparison
            call = held.popitem()[1]
            try:
                inspector.judge(call.draw, call.outputs, call.draw.poison)
            except RejectedError as error:
                raise RejectedError(error.outcome, f"{error.log} (right when checked, wrong when timed)") from error


def measure(
    inspector: Inspector,
    program: Program,
    op: Op,
    workload: Workload,
    baselines: Baselines,
    bar_us: float | None = None,
    workloads: int = CHECKED_IN_ALL,
) -> Measurement:
    """Time one workload. Raises RejectedError if timed outputs are wrong or the time is impossibly short.

    `bar_us` is the time to beat: a kernel that is clearly slower is timed in fewer calls, a kernel close to it in more
    calls. Of few `workloads` that are timed, the outputs of more calls are checked.
    """
    device = inspector.device
    slots = slots_for(inspector, program, op, workload)
    draw = Draw(op, workload, 0)
    timed_outputs = TimedOutputs(inspector.rng, max(CHECKED_CALLS, math.ceil(CHECKED_IN_ALL / workloads)))
    hopeless_us = HOPELESS_BASELINES * baselines.best_us
    times_us, anchors = _samples(inspector, program, slots, draw, timed_outputs, bar_us, hopeless_us)
    coarse, short = len(times_us) < LEAST_SAMPLES, statistics.median(times_us) < GRAPH_BELOW_US
    for slot in slots[len(times_us) :]:  # few calls were timed: the other inputs are still poison, such as wild indices
        slot.refill(timed_draw(op, workload, inspector.rng), device)
    graph_us = _in_a_graph(device, program, slots) if short and not coarse else None
    slots[0].refill(timed_draw(op, workload, inspector.rng), device)
    inspector.watch("run")
    device.run(program, slots[0].tensors)  # a check now also finds state that the timed calls have left
    inspector.watch("check")
    check_memory(inspector, slots, workload)
    if is_huge(op, workload):
        del slots  # comparing the outputs needs several times this memory
        inspector.arena.release()
    timed_outputs.judge(inspector)
    low, high = median_interval(times_us)
    now = baselines.anchored(statistics.median(anchors))
    measurement = Measurement(
        workload=workload.key,
        median_us=statistics.median(times_us),
        low_us=low,
        high_us=high,
        samples=len(times_us),
        eager_us=now.eager_us,
        compile_us=now.compile_us,
        floor_us=floor_us(device, op, workload),
        autotune_us=now.autotune_us,
        graph_us=graph_us,
    )
    _check_plausible(measurement, device, op, workload)
    return measurement


def slots_for(inspector: Inspector, program: Program, op: Op, workload: Workload) -> list[CallSlot]:
    """Return at least two sets of buffers, together larger than the L2 cache, laid out as for a check.

    A huge workload gets a single set.
    """
    needed = math.ceil(L2_MULTIPLE * inspector.device.info.l2_bytes / max(1, op.nbytes(workload)))
    count = min(MOST_SETS, max(1 if is_huge(op, workload) else 2, needed))
    once = layout(op, workload, program)
    repeated = {f"{index} {name}": held for index in range(count) for name, held in once.items()}
    buffers = inspector.arena.poisoned(repeated, POISONS[1], inspector.rng, USUAL_ALIGNMENT)
    slots = []
    for index in range(count):
        tensors = {name: buffers[f"{index} {name}"].tensor for name in once}
        held = tuple(buffers[f"{index} {name}"] for name in once)
        slots.append(CallSlot({spec.name: tensors[spec.name] for spec in op.inputs}, tensors, held))
    return slots


def timed_draw(op: Op, workload: Workload, rng: random.Random, turn: int | None = None) -> Draw:
    """Return inputs for one call, at a random scale if the op accepts any: a kernel may be fast at one scale only.

    Consecutive turns have different poisons, so that a few calls have met them all.
    """
    seed = rng.randrange(2**31)
    if turn is not None:
        seed += (turn - seed) % len(POISONS)
    return Draw(op, workload, seed, MOVED if SHIFTED in op.values and op.draw is None else NORMAL)


def check_memory(inspector: Inspector, slots: Sequence[CallSlot], workload: Workload) -> None:
    """Raise RejectedError if timed calls wrote outside their buffers."""
    buffers = [buffer for slot in slots for buffer in slot.buffers]
    if damaged(buffers) or inspector.arena.strayed():
        damage = next(
            (damage for buffer in buffers if (damage := buffer.damage())), "memory far from its buffers was written"
        )
        raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{workload.key}: {damage} (while it was timed)")


def floor_us(device: Device, op: Op, workload: Workload) -> float | None:
    """Return the speed-of-light time, or None if the device's rates are not known."""
    return speed_of_light(op, workload, device.info).us if device.info.copy_gb_s else None


def physical_us(device: Device, op: Op, workload: Workload) -> float:
    """Return a lower bound of any kernel's time: to read the inputs, and to write the outputs that exceed the L2.

    Matrix products count as in the speed of light, other arithmetic at the rate of the fastest unit.
    """
    info = device.info
    written = max(0, op.bytes_of(op.outputs, workload) - info.l2_bytes)
    moved_us = (op.least_read(workload) + written) / (info.copy_gb_s * 1e3) if info.copy_gb_s else 0.0
    fastest = max((rate for _, rate in info.tflops), default=math.inf)
    ordinary_us, matrix_us = all_flops(op, workload) / (fastest * 1e6), speed_of_light(op, workload, info).matrix_us
    return PHYSICAL_MARGIN * max(moved_us, ordinary_us, matrix_us)


def median_interval(samples: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """Return a 95 % confidence interval of the median: by bootstrap, or all of few samples."""
    if len(samples) < LEAST_SAMPLES:
        return min(samples), max(samples)
    drawn = np.random.default_rng(len(samples)).choice(np.asarray(samples), (resamples, len(samples)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def _samples(
    inspector: Inspector,
    program: Program,
    slots: Sequence[CallSlot],
    draw: Draw,
    timed_outputs: TimedOutputs,
    bar_us: float | None,
    hopeless_us: float,
) -> tuple[list[float], list[float]]:
    """Return times of the kernel and of eager PyTorch, taken in between. Outputs of the timed calls are offered."""
    device, rng = inspector.device, inspector.rng
    times_us: list[float] = []
    anchors: list[float] = []
    slots[0].refill(draw, device)
    device.time(lambda: program.launch(slots[0].tensors))
    device.time(lambda: draw.op.call_baseline(slots[0].inputs, draw.workload))
    started, first = time.monotonic(), rng.randrange(len(POISONS))
    while _continue(times_us, time.monotonic() - started, bar_us, hopeless_us):
        fresh = timed_draw(draw.op, draw.workload, rng, first + len(times_us))
        slot = slots[len(times_us) % len(slots)]
        slot.refill(fresh, device)
        times_us.append(device.time(lambda: program.launch(slot.tensors)))  # noqa: B023
        timed_outputs.offer(times_us[-1], fresh, slot)
        due = not anchors or (len(anchors) < LEAST_ANCHORS and len(times_us) >= COARSE_SAMPLES)
        if rng.random() < 1 / ANCHOR_SHARE or due:
            # After the kernel: PyTorch's result on these inputs must not be in memory when the kernel runs.
            anchors.append(device.time(lambda: draw.op.call_baseline(slot.inputs, draw.workload)))  # noqa: B023
    return times_us, anchors


def _continue(times_us: Sequence[float], seconds: float, bar_us: float | None, hopeless_us: float) -> bool:
    if len(times_us) < COARSE_SAMPLES:
        return True
    if min(times_us) > (LOSING * bar_us if bar_us else hopeless_us):
        return False
    if len(times_us) < LEAST_SAMPLES:
        return True
    median = statistics.median(times_us)
    if median > (HOPELESS * bar_us if bar_us else hopeless_us):
        return False
    promising = bar_us is not None and median < PROMISING * bar_us
    if len(times_us) == MOST_SAMPLES or seconds > (MOST_SECONDS if promising else USUAL_SECONDS):
        return False
    return promising or len(times_us) < USUAL_SAMPLES or len(times_us) % MORE_SAMPLES != 0 or not _is_narrow(times_us)


def _is_narrow(samples: Sequence[float]) -> bool:
    low, high = median_interval(samples, FEWER_RESAMPLES)
    return high - low < NARROW * high


def _in_a_graph(device: Device, program: Program, slots: Sequence[CallSlot]) -> float | None:
    if device.tools.graph_time is None:
        return None
    calls: list[Callable[[], object]] = [
        lambda tensors=slot.tensors: program.launch(tensors)  # type: ignore[misc]
        for slot in (list(slots) * GRAPH_CALLS)[:GRAPH_CALLS]
    ]
    return device.tools.graph_time(calls)


def _check_plausible(measurement: Measurement, device: Device, op: Op, workload: Workload) -> None:
    least = physical_us(device, op, workload)
    if measurement.median_us < least:
        message = f"{workload.key}: {measurement.median_us:.2f} us, but its reads and arithmetic take {least:.2f} us"
        raise RejectedError(Outcome.IMPLAUSIBLE, message)
