"""How long a program takes, call by call, caches cold, on inputs that no earlier call has seen."""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from archive.records import Measurement, Outcome
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.baselines import Baselines
from evolve.evaluation.buffers import POISONS, USUAL_ALIGNMENT, Buffer, damaged
from evolve.evaluation.check import Draw, Inspector, layout
from evolve.op_on_device import all_flops, light
from reference_ops.op import Op, Tensors, Workload
from reference_ops.values import MOVED, NORMAL, SHIFTED

LEAST_SAMPLES, USUAL_SAMPLES, MOST_SAMPLES = 9, 30, 120
MORE_SAMPLES = 10  # than the usual number, and again, until the interval is narrow
USUAL_SECONDS, MOST_SECONDS = 0.25, 0.75
HOPELESS, PROMISING = 1.5, 1.05  # times the time to beat
SETTLED = 0.01  # of the median: an interval so narrow needs no more
HOPELESS_BASELINES = 3  # times the best baseline, where no kernel has set a time yet
ANCHOR_SHARE = 4  # one sample of eager PyTorch to so many of the kernel
LEAST_ANCHORS = 3
MOST_SETS, L2_MULTIPLE = 16, 2
FEW, HUGE_BYTES = 2, 2**31  # timed calls whose outputs are kept to be judged; of huge ones there is room for one
PHYSICAL_MARGIN = 0.8  # of the time that the measured rates allow: they are not exact either
GRAPH_BELOW_US, GRAPH_CALLS = 20.0, 20
RESAMPLES, FEWER_RESAMPLES = 1000, 250  # of what is reported, and of what only tells whether to go on


@dataclass(frozen=True)
class CallSlot:
    """One of several sets of buffers that the calls go round."""

    inputs: Tensors
    tensors: Tensors  # the inputs, the outputs and the workspace
    buffers: tuple[Buffer, ...]  # that they lie in

    def refill(self, task: Draw, device: Device) -> None:
        """Inputs drawn for one call alone, and nothing but poison elsewhere: neither skipping nor remembering pays."""
        for name, tensor in self.tensors.items():
            if name not in self.inputs:
                tensor.view(-1).view(torch.uint8).fill_(task.poison)
        for name, values in task.inputs(device).items():
            self.inputs[name].copy_(values)

    def outputs(self, op: Op) -> tuple[torch.Tensor, ...]:
        return tuple(self.tensors[spec.name] for spec in op.outputs)


@dataclass(frozen=True)
class Kept:
    """The outputs of one timed call."""

    task: Draw
    took_us: float
    outputs: tuple[torch.Tensor, ...]


@dataclass
class Evidence:
    """Outputs of timed calls, to be judged when all is over: of a few that nobody could foresee, and of the fastest.

    Who leaves work out in some calls to gain by it is the fastest in one of those.
    """

    rng: random.Random
    offered: int = 0
    fastest: Kept | None = None
    few: list[Kept] = field(default_factory=list)

    def offer(self, took_us: float, task: Draw, place: CallSlot) -> None:
        self.offered += 1
        most = 1 if task.op.bytes_of(task.op.outputs, task.workload) > HUGE_BYTES else FEW
        is_fastest = self.fastest is None or took_us < self.fastest.took_us
        chosen = self.rng.random() < most / self.offered  # so every call is as likely to be among those in the end
        if not (is_fastest or chosen):
            return
        kept = Kept(task, took_us, tuple(output.clone() for output in place.outputs(task.op)))
        if is_fastest:
            self.fastest = kept
        if chosen:
            self.few = [*self.rng.sample(self.few, min(len(self.few), most - 1)), kept]

    def judge(self, inspector: Inspector) -> None:
        """Raises RejectedError at the first that is wrong."""
        held = {id(kept): kept for kept in (*self.few, self.fastest) if kept}
        self.few, self.fastest = [], None
        while held:  # each makes room for what it takes to judge the next
            call = held.popitem()[1]
            try:
                inspector.judge(call.task, call.outputs, call.task.poison)
            except RejectedError as error:
                raise RejectedError(error.outcome, f"{error.log} (right when checked, wrong when timed)") from error


def measure(
    inspector: Inspector,
    program: Program,
    op: Op,
    workload: Workload,
    baselines: Baselines,
    bar_us: float | None = None,
) -> Measurement:
    """Time one workload. Raises RejectedError when timed outputs are wrong or the time cannot be true.

    `bar_us` is the time to beat: what is far off stops early, what comes close is timed for longer.
    """
    device = inspector.device
    places = slots_for(inspector, program, op, workload)
    task = Draw(op, workload, 0)
    own, anchors, seen = _samples(inspector, program, places, task, bar_us, HOPELESS_BASELINES * baselines.best_us)
    graph_us = _in_a_graph(device, program, places) if statistics.median(own) < GRAPH_BELOW_US else None
    places[0].refill(timed_task(op, workload, inspector.rng), device)
    inspector.watch("run")
    device.run(program, places[0].tensors)  # which also looks for what all those calls may have left behind
    inspector.watch("check")
    look_round(inspector, places, workload)
    if op.nbytes(workload) > HUGE_BYTES:
        del places  # to judge takes as much again, several times
        inspector.arena.release()
    seen.judge(inspector)
    low, high = median_interval(own)
    now = baselines.anchored(statistics.median(anchors))
    measurement = Measurement(
        workload=workload.key,
        median_us=statistics.median(own),
        low_us=low,
        high_us=high,
        samples=len(own),
        eager_us=now.eager_us,
        compile_us=now.compile_us,
        floor_us=floor_us(device, op, workload),
        autotune_us=now.autotune_us,
        graph_us=graph_us,
    )
    _check_plausible(measurement, device, op, workload)
    return measurement


def slots_for(inspector: Inspector, program: Program, op: Op, workload: Workload) -> list[CallSlot]:
    """As many sets of buffers as it takes to be larger than the L2, at least two, laid out as for a check."""
    nbytes = op.nbytes(workload)
    count = min(MOST_SETS, max(2, math.ceil(L2_MULTIPLE * inspector.device.info.l2_bytes / max(1, nbytes))))
    once = layout(op, workload, program)
    every = {f"{index} {name}": held for index in range(count) for name, held in once.items()}
    buffers = inspector.arena.poisoned(every, POISONS[1], inspector.rng, USUAL_ALIGNMENT)
    places = []
    for index in range(count):
        tensors = {name: buffers[f"{index} {name}"].tensor for name in once}
        held = tuple(buffers[f"{index} {name}"] for name in once)
        places.append(CallSlot({spec.name: tensors[spec.name] for spec in op.inputs}, tensors, held))
    return places


def timed_task(op: Op, workload: Workload, rng: random.Random) -> Draw:
    """Inputs for one call; where the op stands any, of another scale each time, or one scale alone might be quick."""
    return Draw(op, workload, rng.randrange(2**31), MOVED if SHIFTED in op.values and op.draw is None else NORMAL)


def look_round(inspector: Inspector, places: Sequence[CallSlot], workload: Workload) -> None:
    """What timed calls may have left outside their buffers, for themselves or for others to find."""
    buffers = [buffer for place in places for buffer in place.buffers]
    if damaged(buffers) or inspector.arena.strayed():
        said = next(
            (said for buffer in buffers if (said := buffer.damage())), "memory far from its buffers was written"
        )
        raise RejectedError(Outcome.OUT_OF_BOUNDS, f"{workload.key}: {said} (while it was timed)")


def floor_us(device: Device, op: Op, workload: Workload) -> float | None:
    """The speed of light, where the device's rates are known."""
    return light(op, workload, device.info).us if device.info.copy_gb_s else None


def physical_us(device: Device, op: Op, workload: Workload) -> float:
    """No kernel can be faster: inputs are read cold, and of the outputs only what the L2 holds may be still on its way.

    The arithmetic is counted at the fastest rate of any unit.
    """
    info = device.info
    written = max(0, op.bytes_of(op.outputs, workload) - info.l2_bytes)
    moved_us = (op.least_read(workload) + written) / (info.copy_gb_s * 1e3) if info.copy_gb_s else 0.0
    fastest = max((rate for _, rate in info.tflops), default=math.inf)
    return PHYSICAL_MARGIN * max(moved_us, all_flops(op, workload) / (fastest * 1e6))


def median_interval(samples: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """A 95 % interval of the median, by bootstrap."""
    drawn = np.random.default_rng(len(samples)).choice(np.asarray(samples), (resamples, len(samples)))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    return float(low), float(high)


def _samples(
    inspector: Inspector,
    program: Program,
    places: Sequence[CallSlot],
    task: Draw,
    bar_us: float | None,
    hopeless_us: float,
) -> tuple[list[float], list[float], Evidence]:
    """Times of the kernel, of eager PyTorch in between, and the outputs of a few timed calls nobody could foresee."""
    device, rng = inspector.device, inspector.rng
    own: list[float] = []
    anchors: list[float] = []
    seen = Evidence(rng)
    places[0].refill(task, device)
    device.time(lambda: program.launch(places[0].tensors))
    device.time(lambda: task.op.call_baseline(places[0].inputs, task.workload))
    started = time.monotonic()
    while _go_on(own, time.monotonic() - started, bar_us, hopeless_us):
        fresh = timed_task(task.op, task.workload, rng)
        place = places[len(own) % len(places)]
        place.refill(fresh, device)
        own.append(device.time(lambda: program.launch(place.tensors)))  # noqa: B023
        seen.offer(own[-1], fresh, place)
        if rng.random() < 1 / ANCHOR_SHARE or len(anchors) < LEAST_ANCHORS:
            # Never before the kernel: what PyTorch makes of these inputs must not be lying about when it runs.
            anchors.append(device.time(lambda: task.op.call_baseline(place.inputs, task.workload)))  # noqa: B023
    return own, anchors, seen


def _go_on(own: Sequence[float], seconds: float, bar_us: float | None, hopeless_us: float) -> bool:
    if len(own) < LEAST_SAMPLES:
        return True
    median = statistics.median(own)
    if median > (HOPELESS * bar_us if bar_us else hopeless_us):
        return False
    promising = bar_us is not None and median < PROMISING * bar_us
    if len(own) == MOST_SAMPLES or seconds > (MOST_SECONDS if promising else USUAL_SECONDS):
        return False
    return promising or len(own) < USUAL_SAMPLES or len(own) % MORE_SAMPLES != 0 or not _settled(own)


def _settled(samples: Sequence[float]) -> bool:
    low, high = median_interval(samples, FEWER_RESAMPLES)
    return high - low < SETTLED * high


def _in_a_graph(device: Device, program: Program, places: Sequence[CallSlot]) -> float | None:
    if device.graph_time is None:
        return None
    calls: list[Callable[[], object]] = [
        lambda tensors=place.tensors: program.launch(tensors)  # type: ignore[misc]
        for place in (list(places) * GRAPH_CALLS)[:GRAPH_CALLS]
    ]
    return device.graph_time(calls)


def _check_plausible(measurement: Measurement, device: Device, op: Op, workload: Workload) -> None:
    least = physical_us(device, op, workload)
    if measurement.median_us < least:
        message = f"{workload.key}: {measurement.median_us:.2f} us; what it must read and compute takes {least:.2f} us"
        raise RejectedError(Outcome.IMPLAUSIBLE, message)
