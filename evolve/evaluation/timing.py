"""How long a program takes beside the baselines, call by call in random order, caches cold."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from archive.records import Measurement, Outcome
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.buffers import POISONS
from evolve.evaluation.check import Task, fresh_outputs, fresh_workspace, judge
from reference_ops.op import Op, Tensors, Workload

INPUT_SETS = 2
LEAST_SAMPLES, MOST_SAMPLES = 7, 60
SECONDS_PER_WORKLOAD = 0.4
READ_MARGIN = 0.8  # inputs cannot be read in less than this share of the time the copy rate gives
Call = Callable[[], object]


@dataclass(frozen=True)
class Baselines:
    """What a user would run instead, ready to be called: PyTorch's own, and torch.compile where it works."""

    eager: Callable[[Tensors], object]
    compiled: Callable[[Tensors], object] | None


def eager_only(op: Op, workload: Workload) -> Baselines:
    return Baselines(lambda inputs: op.call_baseline(inputs, workload), None)


def with_torch_compile(op: Op, workload: Workload, device: Device) -> Baselines:
    """Compile the op for this workload's exact shapes, as a user would for a model of fixed sizes."""
    torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 - one compiled function per workload, many workloads
    function = torch.compile(op.baseline or op.reference, dynamic=False)
    parameters = dict(workload.parameters)

    def compiled(inputs: Tensors) -> object:
        return function(*inputs.values(), **parameters)

    eager = eager_only(op, workload).eager
    try:
        compiled(op.inputs_at(workload, 0, device.torch_device))
    except Exception:  # noqa: BLE001 - whatever the compiler cannot do, eager is the baseline
        return Baselines(eager, None)
    return Baselines(eager, compiled)


def measure(device: Device, program: Program, task: Task, baselines: Baselines) -> Measurement:
    """Time one workload. Raises RejectedError when the timed outputs are wrong or the time cannot be true."""
    rng = random.Random(task.seed)
    calls = [
        _contestants(device, program, Task(task.op, task.workload, task.seed + i), baselines, rng)
        for i in range(INPUT_SETS)
    ]
    times = _interleaved(device, calls, rng)
    _check_timed(device, program, task, rng)
    own = sorted(times["kernel"])
    low, high = median_interval(own)
    measurement = Measurement(
        workload=task.workload.key,
        median_us=statistics.median(own),
        low_us=low,
        high_us=high,
        samples=len(own),
        eager_us=statistics.median(times["eager"]),
        compile_us=statistics.median(times["compile"]) if "compile" in times else None,
        floor_us=floor_us(device, task.op, task.workload),
    )
    _check_plausible(measurement, device, task)
    return measurement


def floor_us(device: Device, op: Op, workload: Workload) -> float | None:
    """The speed of light: the least bytes at the measured copy rate, or the flops at the measured peak."""
    info = device.info
    if not info.copy_gb_s:
        return None
    bytes_us = op.least_bytes(workload) / (info.copy_gb_s * 1e3)
    peak = dict(info.tflops).get("float32", math.inf)
    return max(bytes_us, op.flops(op.sizes(workload)) / (peak * 1e6))


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median from the order of the samples, whatever their distribution."""
    count = len(ordered)
    half_width = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - half_width))
    high = min(count - 1, math.ceil(count / 2 + half_width) - 1)
    return ordered[low], ordered[high]


def _contestants(
    device: Device, program: Program, task: Task, baselines: Baselines, rng: random.Random
) -> dict[str, Call]:
    inputs = task.op.inputs_at(task.workload, task.seed, device.torch_device)
    buffers = {**fresh_outputs(task, device, POISONS[0], rng), **fresh_workspace(program, device, POISONS[0], rng)}
    tensors = {**inputs, **{name: buffer.tensor for name, buffer in buffers.items()}}
    calls: dict[str, Call] = {"kernel": lambda: program.launch(tensors), "eager": lambda: baselines.eager(inputs)}
    if compiled := baselines.compiled:
        calls["compile"] = lambda: compiled(inputs)
    return calls


def _interleaved(device: Device, sets: Sequence[Mapping[str, Call]], rng: random.Random) -> dict[str, list[float]]:
    names = list(sets[0])
    for name in names:
        device.time(sets[0][name])
    times: dict[str, list[float]] = {name: [] for name in names}
    started = time.monotonic()
    for sample in range(MOST_SAMPLES):
        if sample >= LEAST_SAMPLES and time.monotonic() - started > SECONDS_PER_WORKLOAD:
            break
        for name in rng.sample(names, len(names)):
            times[name].append(device.time(sets[sample % len(sets)][name]))
    return times


def _check_timed(device: Device, program: Program, task: Task, rng: random.Random) -> None:
    """A last call like the timed ones, on inputs of its own: still right after all those calls?"""
    last = Task(task.op, task.workload, task.seed + INPUT_SETS)
    inputs: dict[str, Any] = task.op.inputs_at(last.workload, last.seed, device.torch_device)
    outputs = fresh_outputs(last, device, POISONS[1], rng)
    workspace = fresh_workspace(program, device, POISONS[1], rng)
    tensors = {**inputs, **{name: buffer.tensor for name, buffer in {**outputs, **workspace}.items()}}
    device.time(lambda: program.launch(tensors))
    try:
        judge(last, tuple(outputs.values()), device)
    except RejectedError as error:
        raise RejectedError(error.outcome, f"{error.log} (right when checked, wrong when timed)") from error


def _check_plausible(measurement: Measurement, device: Device, task: Task) -> None:
    if not device.info.copy_gb_s:
        return
    read_us = task.op.bytes_of(task.op.inputs, task.workload) / (device.info.copy_gb_s * 1e3)
    if measurement.median_us < READ_MARGIN * read_us:
        raise RejectedError(
            Outcome.IMPLAUSIBLE,
            f"{task.workload.key}: {measurement.median_us:.2f} us; its inputs alone take {read_us:.2f} us to read",
        )
