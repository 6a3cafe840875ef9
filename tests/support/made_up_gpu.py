"""A simple model of a GPU that computes made-up times; none of them was measured.

It models occupancy cliffs, waves of blocks, bytes in flight, register spills, variation between compilations and timer
noise.
"""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from landscapes import Landscape, Result

from archive.binding import IllegalError, accepts, bind
from archive.kernel import Kernel, parse
from archive.records import DeviceInfo
from evolve.op_on_device import point
from reference_ops.op import Op, Workload, tensors, workloads

GPU = DeviceInfo("cuda", "Synthetic GPU", "sm_90a", sms=132, shared_bytes=232448)
COPY_BYTES_US, FLOPS_US, NEED_BYTES = 4.2e6, 5.0e7, 24_000  # NEED_BYTES: bytes in flight on an SM at half the full rate
LAUNCH_US, BLOCK_US = 1.5, 0.35

Knobs = Mapping[str, int]


@dataclass(frozen=True)
class Cost:
    """Quantities that determine the time of one setting of the knobs at one workload."""

    blocks: int
    threads: int
    moved: float  # bytes read and written
    work: float  # operations of all threads, counted in fused multiply-adds
    flight: float  # bytes that each thread has in flight
    registers: float = 32
    shared: int = 0
    factor: float = 1.0  # multiplies the time, for bank conflicts, contention and so on


@dataclass(frozen=True)
class Sketch:
    """A made-up kernel: its plan, and a function for the cost of its settings."""

    name: str
    knobs: str
    cost: Callable[[Knobs, Workload], Cost]
    points: Sequence[tuple[int, int]]  # rows and columns
    dtypes: str = "bfloat16"
    plan: str = ""  # the plan's [let] section, in TOML
    require: str = ""
    block: str = "THREADS"
    grid: str = "rows"
    shared: str = "0"
    fails: Callable[[Knobs], str] = lambda _knobs: ""
    mentions: str = ""  # knobs that the device code mentions
    luck: float = 0.015


def time_us(cost: Cost) -> float | None:
    """Return the time of one launch; None if no block fits on an SM."""
    spilled = max(0.0, cost.registers - 255) + (max(0.0, cost.registers - 65536 / cost.threads))
    registers = min(255.0, cost.registers, 65536 / cost.threads)
    fit = min(
        2048 // cost.threads,
        int(65536 / (8 * math.ceil(registers / 8) * cost.threads)),
        228 * 1024 // (cost.shared + 1024),
        32,
    )
    if fit < 1:
        return None
    resident = fit * GPU.sms
    waves = math.ceil(cost.blocks / resident)
    filled = cost.blocks / (waves * resident)  # the last wave of blocks is rarely full
    flight = fit * cost.threads * cost.flight * min(1.0, cost.blocks / resident)
    rate = flight / (flight + NEED_BYTES) * 1.05
    moved = cost.moved + spilled * 8 * cost.threads * cost.blocks
    memory_us = moved / (COPY_BYTES_US * min(1.0, rate))
    warps = fit * cost.threads / 32 * min(1.0, cost.blocks / resident)
    work_us = cost.work / (FLOPS_US * warps / (warps + 6))
    busy_us = (memory_us**3 + work_us**3) ** (1 / 3) * cost.factor
    tail = 1.0 if waves > 6 else 1 / (0.4 + 0.6 * filled)
    return float(LAUNCH_US + busy_us * tail + BLOCK_US * waves)


def landscape(sketch: Sketch, seed: int = 0) -> Landscape:
    """Return the results of all settings of a made-up kernel."""
    op = _op(sketch)
    kernel = _kernel(sketch)
    names = [name for name, _ in kernel.plan.knobs]
    results = {}
    for setting in itertools.product(*(values for _, values in kernel.plan.knobs)):
        knobs = dict(zip(names, setting, strict=True))
        one = kernel.with_knobs(knobs)
        times = tuple(_timed(sketch, one, op, workload, seed) for workload in op.gpu)
        if any(time is not None for time in times):
            failed = sketch.fails(knobs) or ("launch error" if 0.0 in times else "")
            results[setting] = Result(failed=failed) if failed else Result(times)
    return Landscape(sketch.name, op, kernel, GPU, tuple(workload.key for workload in op.gpu), results)


def _timed(sketch: Sketch, kernel: Kernel, op: Op, workload: Workload, seed: int) -> float | None:
    """Return the time; None for an illegal setting, 0 if the launch fails. Equal programs share `luck`, not noise."""
    values = point(op, workload, GPU)
    try:
        if not accepts(kernel, values):
            return None
        bound = bind(kernel, values)
    except IllegalError:
        return None
    lets = dict(bound.constants)
    us = time_us(sketch.cost({**kernel.plan.settings, **lets, "grid": math.prod(bound.launches[0].grid)}, workload))
    if us is None:
        return 0.0
    named = [kernel.plan.settings[name] for name in sketch.mentions.split()]
    luck = random.Random(f"{sketch.name} {seed} {bound.constants} {bound.launches} {named}")
    clock = random.Random(f"{sketch.name} {seed} {kernel.plan.settings} {workload.key}")
    shared = math.exp(luck.gauss(0, sketch.luck))  # variation between compilations, the same for equal programs
    return us * shared * math.exp(clock.gauss(0, 0.008))


def _op(sketch: Sketch) -> Op:
    places = workloads(sketch.dtypes, *({"rows": rows, "cols": cols} for rows, cols in sketch.points))
    shapes = tensors(x="rows cols"), tensors(out="rows cols")
    return Op(sketch.name, torch.relu, *shapes, places, places, lambda dims: dims["rows"] * dims["cols"])


def _kernel(sketch: Sketch) -> Kernel:
    lets = [line.split(" = ")[0] for line in sketch.plan.splitlines() if line.strip()]
    return parse(
        f"""/*---
op = "{sketch.name}"
specialize = {str(lets).replace("'", '"')}
require = [{sketch.require}]

[knobs]
{sketch.knobs}
[let]
{sketch.plan}

[[launch]]
entry = "f"
grid = ["{sketch.grid}"]
block = ["{sketch.block}"]
shared = "{sketch.shared}"
args = ["x", "out", "rows", "cols"]
---*/
// This is not a kernel: it names what one would be compiled for. {sketch.mentions}
"""
    )
