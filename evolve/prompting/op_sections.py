"""Prompt sections that stay the same for a whole run: the op with its cost model, and the device."""

from collections.abc import Iterator

from archive.records import DeviceInfo
from evolve.devices.choose import policy_of
from evolve.op_on_device import all_flops, speed_of_light
from evolve.prompting.instructions import instructions_section
from evolve.prompting.text import (
    BLOCKS,
    MAX_NOTE,
    MAX_WORKLOAD,
    REGISTERS,
    SMALL_ARCHS,
    THREADS,
    clipped,
    fenced,
    flops,
    listed,
    nbytes,
    one_line,
    us,
)
from reference_ops.op import NOT_FINITE, Op, TensorSpec, Tolerance, Workload

MAX_REFERENCE, MAX_MEANING = 10_000, 1000  # characters
MAX_WORKLOADS, MAX_AWKWARD, MAX_TENSORS = 20, 12, 40
GPU_GOAL = "sm_90a"  # the target GPU if kernels are evaluated on the emulator
# Descriptions of check inputs, by their names in `reference_ops.distributions`.
VALUES = {
    "uniform": "uniform in 0..1, so that sums grow",
    "large": "large (exponentials overflow)",
    "moved": "normal with another mean and another spread in each timed call",
    "heavy_tail": "heavy-tailed (a few elements make up most of a sum)",
    "shifted": "far from zero (each row has its own mean, up to a few hundred below or above zero)",
    "shifted_columns": "far from zero column by column, or channel by channel",
    "integers": "small integers (the result must be exact)",
    "constant": "constant rows (variance 0), some of them zero",
    "masked": "half of each row -inf",
    "ties": "many equal values, zeros of both signs",
    "tiny": "tiny, down to subnormal",
    "faint": "faint (around 2**-30, below float16's range, except in float16)",
    "far_below": "far below zero (-1e10; in float16 -4000), below the numbers that models use for -inf",
    "vast": "vast (around 2**20, beyond float16's range, except in float16)",
}
EXTREME = {
    "zero": "only zeros",
    "minute": "all around 1e-8, as gradients deep in a network",
    "subnormal": "all subnormal",
    "saturating": "all around 100, where exponentials overflow",
    "overflowing": "up to the largest float16 and, in wider dtypes, four times as far, so that sums overflow float16",
    "NaN": "a few NaN",
    "saved_NaN": "a few NaN in what the forward saved",
    "infinite": "a few infinities of both signs",
    "saved_infinite": "a few infinities in what the forward saved, where PyTorch's result is not NaN",
    "minus_inf_rows": "rows of only -inf",
    "clashing": "NaN beside an infinity in one row, two infinities in one row",
    "NaN_that_counts": "NaN where results depend on it",
}


def op_section(op: Op, device: DeviceInfo, reference_source: str, characters: int = MAX_REFERENCE) -> str:
    """Return the section about the op: its reference, tensors, workloads, check inputs and tolerance."""
    derived = f" (derived: {', '.join(op.derived)})" if op.derived else ""
    parts = [f"# The op: {op.name}"]
    if op.note:
        parts.append(one_line(op.note, MAX_MEANING))
    if reference_source.strip():
        parts += ["The PyTorch reference:", fenced("python", clipped(reference_source, characters))]
    parts += [
        "Tensors, by the names a plan uses:",
        *listed([_tensor_line(tensor, "input") for tensor in op.inputs], MAX_TENSORS),
        *listed([_tensor_line(tensor, "output") for tensor in op.outputs], MAX_TENSORS),
        f"Dims: {one_line(', '.join(op.dims), 1000) or 'none'}{derived}.",
        f"Parameters: {_parameters(op)}.",
        f"Dtypes: {', '.join(op.dtypes)}.",
        "Workloads, all timed, with the least work of any kernel:",
        *listed([f"- {_workload_line(op, workload, device)}" for workload in op.workloads(device.kind)], MAX_WORKLOADS),
    ]
    if op.awkward:
        others = "" if op.only_listed else " (other shapes are drawn at random)"
        parts.append(f"Also checked where `when` accepts them, but not timed{others}:")
        parts += listed([f"- {one_line(w.key, MAX_WORKLOAD)}" for w in op.awkward], MAX_AWKWARD)
    values = "; ".join(["normal", *(VALUES.get(name, name) for name in op.values)])
    return "\n".join([*parts, f"Inputs are drawn: {values}.", *_extremes(op), _tolerance(op.tolerance)])


def _extremes(op: Op) -> Iterator[str]:
    """Yield the required outputs at the extremes of the inputs, and the extremes that the op leaves undefined."""
    met = [*(EXTREME[name] for name in op.extremes), *(_words(name) for name in op.arrangements)]
    yield f"Each of these is also checked separately: {'; '.join(met)}."
    if any(name in NOT_FINITE for name in op.extremes):
        yield "Outputs must be NaN and infinite where PyTorch's are: fmaxf and fminf drop NaN, comparisons are false."
    if op.exempt:
        left = "; ".join(f"{EXTREME[name]} ({why})" for name, why in op.exempt.items())
        yield f"Never checked, because PyTorch leaves the result open: {one_line(left, MAX_MEANING)}."


def _words(name: str) -> str:
    return name.replace("_", " ")


def bound_by_memory(op: Op, device: DeviceInfo) -> bool:
    """Return whether moving the bytes takes longer than the arithmetic at every workload."""
    lights = [speed_of_light(op, workload, device) for workload in op.workloads(device.kind)]
    if not any(light.bytes_us for light in lights):
        return op.matrix_flops is None  # without rates of the device, decide by the op alone
    return all(light.bytes_us >= light.arithmetic_us for light in lights)


def device_section(op: Op, info: DeviceInfo) -> str:
    """Return the section about the device: its limits and measured rates, and instructions that the op can use."""
    if not policy_of(info.kind).times_are_gpu_times:
        return (
            f"# The device: {one_line(info.name, MAX_NOTE)} ({info.kind})\n"
            "Kernels run here on an emulator: threads are simulated on a CPU, so no times are shown. It supports only "
            "this inline PTX: mma.sync (m16n8k16 in bf16 and f16, m16n8k8 in tf32, sums in f32), ldmatrix, cp.async "
            "and ex2.approx; it does not support wmma. The goal is still a kernel that is fast on a GPU such as arch "
            f"{GPU_GOAL}: coalesced accesses, few barriers, enough blocks.\n"
            f"Limits: {_limits(info)}."
        )
    lines = [f"# The device: {info.name} ({info.kind})", f"Limits: arch {info.arch}, {_limits(info)}."]
    if not info.arch.startswith(SMALL_ARCHS):
        lines.append(
            f"A multiprocessor has {REGISTERS} registers and holds {THREADS} threads in at most {BLOCKS} blocks, so "
            f"all its threads fit only with up to {REGISTERS // THREADS} registers per thread."
        )
    rates = [f"copy bandwidth {info.copy_gb_s:.0f} GB/s"] if info.copy_gb_s else []
    streams = bound_by_memory(op, info)
    rates += [f"{dtype} matrix products {rate:.0f} TFLOP/s" for dtype, rate in info.tflops if not streams]
    rates += [f"reads from the L2 {info.l2_gb_s:.0f} GB/s"] if info.l2_gb_s else []
    rates += [f"{info.launch_us:.1f} us for one more launch"] if info.launch_us else []
    rates += [f"{info.grid_barrier_us:.1f} us for one barrier of a cooperative grid"] if info.grid_barrier_us else []
    measured = [f"Measured: {', '.join(rates)}."] if rates else []
    products = op.matrix_flops is not None and not streams
    taught = instructions_section(info.arch, products=products, streams=not products)
    return "\n".join([*lines, *measured, *([f"\n{taught}"] if taught else [])])


def _tensor_line(tensor: TensorSpec, role: str) -> str:
    dtype = tensor.dtype or "the workload's dtype"
    return f"- {tensor.name} [{one_line(', '.join(tensor.dims), MAX_WORKLOAD)}]: {role}, {dtype}"


def _parameters(op: Op) -> str:
    named = (f"{name} ({type(value).__name__}, {value} at first)" for name, value in op.parameters.items())
    return one_line(", ".join(named), 1000) or "none"


def _workload_line(op: Op, workload: Workload, device: DeviceInfo) -> str:
    read, written = op.least_read(workload), op.bytes_of(op.outputs, workload)
    needs = [f"read {nbytes(read)}", f"write {nbytes(written)}", flops(all_flops(op, workload))]
    return f"{one_line(workload.key, MAX_WORKLOAD)}: {', '.join(needs)}{''.join(_floor(op, workload, device))}"


def _floor(op: Op, workload: Workload, device: DeviceInfo) -> Iterator[str]:
    """Yield the speed-of-light times and the side of the roofline, if the device's rates are known."""
    least, rates = speed_of_light(op, workload, device), dict(device.tflops)
    if not least.bytes_us:
        return
    yield f"; {us(least.bytes_us)} for the bytes"
    if op.matrix_flops is None and "float32" in rates:
        yield f", {us(least.arithmetic_us)} for the arithmetic in float32"
    elif least.matrix_us:
        yield f", {us(least.arithmetic_us)} for the arithmetic, its products at the rate of {least.unit}"
    yield f": bound by {'memory' if least.bytes_us >= least.arithmetic_us else 'arithmetic'}"


def _tolerance(tolerance: Tolerance) -> str:
    if tolerance.exact:
        return "Tolerance: none, the outputs must equal PyTorch's exactly."
    itself = " Outputs are positive, and the relative error of each is limited, too." if tolerance.relative else ""
    return (
        f"Tolerance: against float64, the root mean square error may be {tolerance.factor:g} times PyTorch's own "
        f"at that dtype, and no element may be off by more than {4 * tolerance.factor:g} times its own rounding plus "
        f"PyTorch's.{itself}"
    )


def _limits(info: DeviceInfo) -> str:
    cache = f", {nbytes(info.l2_bytes)} of L2" if info.l2_bytes else ""
    return f"{info.sms} multiprocessors (`sms`), {nbytes(info.shared_bytes)} of shared memory per block{cache}"
