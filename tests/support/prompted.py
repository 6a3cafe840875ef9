"""A request in the middle of a run of a small op, with everything that a prompt can show. All figures are made up."""

from dataclasses import replace

from small_op import BROKEN_TEXT, EMULATOR, KERNEL, OP, SLOW_TEXT, failed
from small_op import GPU as BARE_GPU

from archive.kernel import Kernel, parse
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome, Profile, Resources, Traits
from evolve.devices import counters as c
from evolve.prompting.operators import CROSSOVER, IMPROVE, PARENTS, PORT, REPAIR, SPECIALISE
from evolve.request import Candidate, Request
from reference_ops.op import Workload

GPU = replace(BARE_GPU, tflops=(("bfloat16", 715.0), ("float32", 50.0)))
REFERENCE = "def center_rows(x, shift):\n    return x - x.mean(-1, keepdim=True) + shift\n"
SLOW = parse(SLOW_TEXT)
DONOR_TEXT = """\
/*---
op = "row_sum"
note = "one block per row, 16-byte loads"
when = "cols % 4 == 0"
dtypes = ["float32"]

[[launch]]
entry = "row_sum"
grid = ["rows"]
block = [128]
args = ["x", "out", "cols"]
---*/
extern "C" __global__ void row_sum(const float* x, float* out, int cols) { /* ... */ }
"""
LESSONS = (
    'Best change so far: "one warp per row" made rows=8192 cols=1024 shift=0.5 float32 1.60 times as fast.',
    "2 kernels failed for the same reason: compile error: identifier is undefined.",
)
COUNTED = {
    c.DURATION: 22_400.0, c.COMPUTE: 24.0, c.MEMORY: 71.0, c.DRAM: 70.0, c.DRAM_READ: 33.5e6, c.DRAM_WRITTEN: 33.1e6,
    c.L2_HITS: 50.0, c.LOAD_SECTORS: 1_048_576.0, c.LOAD_REQUESTS: 262_144.0, c.OCCUPANCY: 61.0, c.ISSUE: 18.0,
    c.LONG_SCOREBOARD: 14.2, c.BARRIER: 0.0, c.WAVES: 3.9,
}  # fmt: skip


def traits(load_bytes: int = 4, registers: int = 40, occupancy: float = 0.75) -> Traits:
    return Traits(
        code=f"{load_bytes}-{registers}", load_bytes=load_bytes, store_bytes=load_bytes, shared_bytes=0,
        registers=registers, threads=128, launches=1, tensor_cores=False, atomics=False, occupancy=occupancy,
    )  # fmt: skip


def measured(workload: Workload, median_us: float, device: DeviceInfo) -> Measurement:
    floor_us = 15.75 if device.kind == "cuda" else None
    low_us, high_us = median_us * 0.98, median_us * 1.02
    return Measurement(workload.key, median_us, low_us, high_us, 50, 64.0, compile_us=40.25, floor_us=floor_us)


def alive(kernel: Kernel, device: DeviceInfo, *times_us: float) -> Candidate:
    """Return a kernel that passed, with these times on the first workloads."""
    workloads = OP.workloads(device.kind)
    evaluation = Evaluation(
        kernel.id, kernel.op, device, Outcome.PASSED, "",
        measurements=tuple(measured(w, time_us, device) for w, time_us in zip(workloads, times_us, strict=False)),
        skipped=tuple(f"{w.key}: not accepted by the kernel's `when` or `dtypes`" for w in workloads[len(times_us) :]),
        resources=(Resources(kernel.plan.launches[0].entry, 40, 0, 0),) if device.kind == "cuda" else (),
        traits=traits() if device.kind == "cuda" else None,
    )  # fmt: skip
    return Candidate(kernel, evaluation)


def profiled(candidate: Candidate) -> Candidate:
    workload = candidate.evaluation.measurements[0].workload
    counted = tuple((counter.name, value) for counter, value in COUNTED.items())
    profile = Profile(candidate.kernel.id, candidate.kernel.op, GPU.key, workload, counted)
    return replace(candidate, profiles=(profile,))


def wrong(device: DeviceInfo = GPU) -> Candidate:
    log = "rows=8 cols=64 shift=0.5 float32: `out` on large values: 3 of 512 elements are off by more than rounding"
    candidate = failed(parse(BROKEN_TEXT.replace("hastily", "wrongly")), device, log)
    return replace(candidate, evaluation=replace(candidate.evaluation, outcome=Outcome.WRONG))


def situation(operator: str, device: DeviceInfo = GPU) -> tuple[Request, tuple[Candidate, ...]]:
    """Return a request, and the parents to which the operator is applied."""
    fast, slow, broken = (
        alive(KERNEL, device, 21.5),
        alive(SLOW, device, 34.0, 90.0),
        failed(parse(BROKEN_TEXT), device),
    )
    if device.kind == "cuda":
        fast = profiled(fast)
    donor = alive(parse(DONOR_TEXT), device, 12.0)
    population = (fast, slow)
    request = Request(
        OP, device, 1, 0, run="run-1", population=population, parents=population, failures=(broken, wrong(device)),
        donors=(donor,), lessons=LESSONS,
    )  # fmt: skip
    of = {IMPROVE: (fast,), CROSSOVER: (fast, slow), REPAIR: (broken,), SPECIALISE: (slow,), PORT: (donor,)}
    return request, of[operator] if PARENTS[operator] else ()


__all__ = ["EMULATOR", "GPU", "LESSONS", "REFERENCE", "alive", "measured", "profiled", "situation", "traits", "wrong"]
