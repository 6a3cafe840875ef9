"""The parts of a prompt that change: the op, the device, the kernels at hand and what went wrong."""

import math

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Measurement, Resources
from evolve.prompting.text import clipped, fenced, flops, nbytes, one_line
from evolve.proposers.proposer import Candidate
from reference_ops.op import Op, TensorSpec, Tolerance, Workload

MAX_REFERENCE, MAX_SOURCE, MAX_LOG, MAX_NOTE, MAX_REASON = 10_000, 20_000, 5_000, 240, 360
MAX_WORKLOADS, MAX_AWKWARD, MAX_MEASUREMENTS, MAX_TENSORS = 20, 12, 16, 40
MAX_WORKLOAD = 200
GPU_GOAL = "sm_90a"


def op_section(op: Op, device_kind: str, reference_source: str) -> str:
    workloads = op.workloads(device_kind)
    derived = f" (derived: {', '.join(op.derived)})" if op.derived else ""
    parts = [f"# The op: {op.name}"]
    if op.note:
        parts.append(one_line(op.note, MAX_NOTE))
    if reference_source.strip():
        parts += ["The PyTorch reference:", fenced("python", clipped(reference_source, MAX_REFERENCE))]
    parts += [
        "Tensors, by the names a plan uses:",
        *(_tensor_line(tensor, "input") for tensor in op.inputs[:MAX_TENSORS]),
        *(_tensor_line(tensor, "output") for tensor in op.outputs[:MAX_TENSORS]),
        f"Dims: {', '.join(op.dims) or 'none'}{derived}.",
        f"Parameters: {_parameters(op)}.",
        f"Dtypes: {', '.join(op.dtypes)}.",
        "Workloads (timed; the figures are what any kernel must at least do):",
        *_listed([_workload_line(op, workload) for workload in workloads], MAX_WORKLOADS),
    ]
    if op.awkward:
        parts.append("Checked too, where `when` accepts them, but not timed:")
        parts += _listed([f"- {one_line(w.key, MAX_WORKLOAD)}" for w in op.awkward], MAX_AWKWARD)
    return "\n".join([*parts, _tolerance(op.tolerance)])


def device_section(info: DeviceInfo) -> str:
    if info.kind != "cuda":
        return (
            f"# The device: {info.name} ({info.kind})\n"
            "Kernels run here on an emulator: threads are simulated on a CPU, so every time below is a CPU time of the "
            "emulator and says little about a GPU. It has no inline PTX, wmma or asynchronous copies. The goal is "
            f"still a kernel that is good on a GPU such as arch {GPU_GOAL}: coalesced, few barriers, enough blocks.\n"
            f"Limits: {_limits(info)}."
        )
    rates = [f"copy bandwidth {info.copy_gb_s:.0f} GB/s"] if info.copy_gb_s else []
    rates += [f"{dtype} matrix products {rate:.0f} TFLOP/s" for dtype, rate in info.tflops]
    measured = f"\nMeasured: {', '.join(rates)}." if rates else ""
    return f"# The device: {info.name} ({info.kind})\nLimits: arch {info.arch}, {_limits(info)}.{measured}"


def kernel_section(title: str, candidate: Candidate, characters: int = MAX_SOURCE) -> str:
    """A kernel with its whole text and the verdict on it."""
    source = fenced("cuda", clipped(candidate.kernel.text, characters))
    return f"# {title}\n{source}\n{_verdict(candidate.evaluation)}"


def failure_section(candidate: Candidate) -> str:
    """A failed kernel with its outcome and as much of its log as there is room for."""
    source = fenced("cuda", clipped(candidate.kernel.text, MAX_SOURCE))
    log = fenced("text", clipped(candidate.evaluation.log or "(no log)", MAX_LOG))
    return f"# Repair this kernel\n{source}\nIt failed: {candidate.evaluation.outcome}.\n{log}"


def population_section(candidates: tuple[Candidate, ...]) -> str:
    lines = [f"- {_idea(c.kernel)}: {_summary(c.evaluation)}" for c in candidates]
    return "\n".join(["# Other kernels that passed, fittest first", *lines])


def failures_section(candidates: tuple[Candidate, ...]) -> str:
    lines = [f"- {_idea(c.kernel)}: {c.evaluation.outcome}: {_reason(c.evaluation)}" for c in candidates]
    return "\n".join(["# Attempts that failed: do not repeat their mistakes", *lines])


def weakest(evaluation: Evaluation) -> Measurement | None:
    """The workload with most to gain: furthest from the speed of light, or with the least speedup."""
    return min(
        evaluation.measurements,
        key=lambda m: m.speedup if m.share_of_light is None else m.share_of_light,
        default=None,
    )


def _tensor_line(tensor: TensorSpec, role: str) -> str:
    dtype = tensor.dtype or "the workload's dtype"
    return f"- {tensor.name} [{', '.join(tensor.dims)}]: {role}, {dtype}"


def _parameters(op: Op) -> str:
    named = (f"{name} ({type(value).__name__}, {value} at first)" for name, value in op.parameters.items())
    return ", ".join(named) or "none"


def _workload_line(op: Op, workload: Workload) -> str:
    read, written = op.bytes_of(op.inputs, workload), op.bytes_of(op.outputs, workload)
    work = flops(op.flops(op.sizes(workload)))
    return f"- {one_line(workload.key, MAX_WORKLOAD)}: reads {nbytes(read)}, writes {nbytes(written)}, {work}"


def _listed(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"- and {len(lines) - most} more"]


def _tolerance(tolerance: Tolerance) -> str:
    if tolerance.exact:
        return "Tolerance: none, the outputs must equal PyTorch's exactly."
    return (
        f"Tolerance: against float64, the root mean square error may be {tolerance.factor:g} times PyTorch's own "
        f"at that dtype, and no element may be off by more than {4 * tolerance.factor:g} times its own rounding plus "
        "PyTorch's."
    )


def _limits(info: DeviceInfo) -> str:
    cache = f", {nbytes(info.l2_bytes)} of L2" if info.l2_bytes else ""
    return f"{info.sms} multiprocessors (`sms`), {nbytes(info.shared_bytes)} of shared memory per block{cache}"


def _verdict(evaluation: Evaluation) -> str:
    if not evaluation.passed:
        return f"It failed: {evaluation.outcome}.\n{fenced('text', clipped(evaluation.log, MAX_LOG))}"
    lines = ["It passed. Measured:", *_listed([_measured(m) for m in evaluation.measurements], MAX_MEASUREMENTS)]
    lines += [f"- not accepted: {one_line(key, MAX_WORKLOAD)}" for key in evaluation.skipped[:MAX_MEASUREMENTS]]
    lines += [_resources(spent) for spent in evaluation.resources[:MAX_MEASUREMENTS]]
    if evaluation.deterministic is False:
        lines.append("Its results differ from call to call.")
    if evaluation.log.strip():
        lines += ["The compiler says:", fenced("text", clipped(evaluation.log, MAX_LOG // 3))]
    return "\n".join(lines)


def _measured(m: Measurement) -> str:
    best = min((time for time in (m.compile_us, m.autotune_us) if time), default=None)
    compiled = f", torch.compile {best:.2f}" if best else ""
    light = f", {m.share_of_light:.0%} of the speed of light ({m.floor_us:.2f})" if m.share_of_light else ""
    return (
        f"- {one_line(m.workload, MAX_WORKLOAD)}: {m.median_us:.2f} us (95 %: {m.low_us:.2f} to {m.high_us:.2f}); "
        f"eager {m.eager_us:.2f}{compiled}; speedup {m.speedup:.2f}{light}"
    )


def _resources(spent: Resources) -> str:
    spilled = f", {spent.local_bytes} bytes of local memory (spills or indexed arrays)" if spent.local_bytes else ""
    shared = f"{spent.shared_bytes} bytes of static shared memory"
    return f"- {one_line(spent.entry, 80)}: {spent.registers} registers, {shared}{spilled}"


def _idea(kernel: Kernel) -> str:
    return one_line(kernel.plan.note or kernel.plan.launches[0].entry or "a kernel without a note", MAX_NOTE)


def _summary(evaluation: Evaluation) -> str:
    speedups = [m.speedup for m in evaluation.measurements]
    if not speedups:
        return str(evaluation.outcome)
    mean = math.exp(sum(math.log(max(s, 1e-9)) for s in speedups) / len(speedups))
    return f"speedup {mean:.2f} (geometric mean of {len(speedups)} workloads)"


def _reason(evaluation: Evaluation) -> str:
    return one_line(evaluation.log or "no log", MAX_REASON)
