"""Diagnosis of a kernel: faults visible after compilation, and the usual causes of each failure."""

import re
from collections.abc import Iterator

from archive.binding import IllegalError, accepts, bind
from archive.kernel import Bound, Kernel
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Outcome, Resources, Traits
from evolve.devices.choose import policy_of
from evolve.op_on_device import point, speed_of_light, without_tensor_cores_us
from evolve.prompting.text import BLOCKS, MAX_WORKLOAD, REGISTERS, THREADS, nbytes, one_line
from reference_ops.op import Op

WIDEST_ACCESS = 16
HALVES = ("bfloat16", "float16")
MUCH = 64  # number of bytes read per byte written above which stores hardly matter
SPARSE = 0.5  # occupancy below this share of a multiprocessor's threads is reported
RESERVED_BYTES = 1024  # bytes of shared memory that the system reserves for each block on sm_80 and later


def form(traits: Traits) -> str:
    """Describe the compiled kernel in a few words: access widths, launches, shared memory, registers."""
    shared = f"{nbytes(traits.shared_bytes)} of shared memory per block" if traits.shared_bytes else "no shared memory"
    words = [
        f"{traits.load_bytes}-byte loads",
        "one launch" if traits.launches == 1 else f"{traits.launches} launches",
        shared,
        f"{traits.registers} registers per thread",
    ]
    return ", ".join(words + ["tensor cores"] * traits.tensor_cores + ["atomics"] * traits.atomics)


def diagnosis(kernel: Kernel, evaluation: Evaluation, op: Op) -> tuple[str, ...]:
    """Return the faults that are visible without a measurement, one sentence each.

    The op of a donor differs from `op`.
    """
    found = list(_spilled(evaluation.resources))
    if traits := evaluation.traits:
        stores_matter = kernel.op != op.name or _writes_much(op, evaluation.device)
        found += [*_narrow(traits, stores_matter=stores_matter), *_sparse(traits, evaluation.device)]
        if traits.launches > 1:
            found.append(
                f"{traits.launches} launches: data that passes between them goes through memory, and each launch costs "
                "time to start and to end."
            )
    if kernel.op == op.name and policy_of(evaluation.device.kind).times_are_gpu_times:
        found += _without_tensor_cores(evaluation, op)
        found += _few_blocks(kernel, evaluation, op)
    return tuple(found)


def _spilled(resources: tuple[Resources, ...]) -> Iterator[str]:
    for spent in resources:
        if spent.local_bytes:
            yield (
                f"`{one_line(spent.entry, 80)}` keeps {nbytes(spent.local_bytes)} per thread in local memory: "
                "registers that were spilled, or an array indexed at run time."
            )


def _writes_much(op: Op, device: DeviceInfo) -> bool:
    """Return whether any workload writes more than the few bytes of a reduction."""
    workloads = op.workloads(device.kind)
    return any(op.bytes_of(op.outputs, workload) * MUCH > op.least_read(workload) for workload in workloads)


def _narrow(traits: Traits, *, stores_matter: bool) -> Iterator[str]:
    loads, stores = traits.load_bytes, traits.store_bytes if stores_matter else 0
    alike = loads == stores
    for what, width in (("Loads and stores", loads),) if alike else (("Loads", loads), ("Stores", stores)):
        if 0 < width < WIDEST_ACCESS:
            yield (
                f"{what} in global memory are at most {width} bytes wide: 16-byte accesses would need "
                f"{WIDEST_ACCESS // width} times fewer instructions and have more bytes in flight."
            )


def _sparse(traits: Traits, device: DeviceInfo) -> Iterator[str]:
    if not 0 < traits.occupancy < SPARSE:
        return
    warps = -(-traits.threads // 32)
    blocks = {
        "registers": REGISTERS // max(1, -(-traits.registers // 8) * 8 * 32 * warps),
        "shared memory": (device.shared_bytes + RESERVED_BYTES) // (traits.shared_bytes + RESERVED_BYTES),
        "the size of its blocks": min(BLOCKS, THREADS // max(1, traits.threads)),
    }
    limit = min(blocks, key=lambda name: blocks[name])
    yield (
        f"Occupancy is at most {traits.occupancy:.0%} of a multiprocessor's threads, limited by {limit} "
        f"({traits.threads} threads per block, {traits.registers} registers per thread, "
        f"{nbytes(traits.shared_bytes)} of shared memory per block)."
    )


def _without_tensor_cores(evaluation: Evaluation, op: Op) -> Iterator[str]:
    device, traits = evaluation.device, evaluation.traits
    timed = {measurement.workload for measurement in evaluation.measurements}
    for workload in () if traits is None or traits.tensor_cores else op.workloads(device.kind):
        slow_us, bytes_us = without_tensor_cores_us(op, workload, device), speed_of_light(op, workload, device).bytes_us
        if op.matrix_flops and workload.key in timed and workload.dtype in HALVES and slow_us > bytes_us > 0:
            at = one_line(workload.key, MAX_WORKLOAD)
            yield (
                f"It does not use tensor cores, although in {workload.dtype} at {at} the arithmetic takes longer than "
                "moving the bytes."
            )
            return


def _few_blocks(kernel: Kernel, evaluation: Evaluation, op: Op) -> Iterator[str]:
    """Yield a sentence about the first launch with fewer blocks than multiprocessors at a timed workload."""
    info = evaluation.device
    timed = {measurement.workload for measurement in evaluation.measurements}
    for workload in op.workloads(info.kind):
        bound = _bound(kernel, op, workload.key, info) if workload.key in timed else None
        for launch in bound.launches if bound else ():
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
            if blocks < info.sms:
                counted = "1 block" if blocks == 1 else f"{blocks} blocks"
                yield (
                    f"`{one_line(launch.entry, 80)}` has {counted} for {info.sms} multiprocessors at "
                    f"{one_line(workload.key, MAX_WORKLOAD)}: the others are idle."
                )
                return


def _bound(kernel: Kernel, op: Op, key: str, info: DeviceInfo) -> Bound | None:
    workload = next(workload for workload in op.workloads(info.kind) if workload.key == key)
    place = point(op, workload, info)
    try:
        return bind(kernel, place) if accepts(kernel, place) else None
    except (PlanError, IllegalError):
        return None


COMPLAINT = re.compile(r"kernel\.cu(?:\((\d+)\)|:(\d+))|\bline (\d+): ")
AT_VALUES = re.compile(r"` on (\w+) values: ")
MAX_LINES, MAX_LINE = 6, 200

HINTS = {
    Outcome.UNSUPPORTED: "It needs a feature that this device does not support. Avoid the feature.",
    Outcome.ILLEGAL: (
        "On every workload that `when` accepts, its default knobs break a `require` or a limit of the hardware. Use "
        "smaller defaults, or a formula for block and shared that stays within the limit."
    ),
    Outcome.MALFORMED: (
        "The plan does not fit the op or the function. Usual causes: a name that the op does not have, args "
        "in another order or number than the parameters, a specialised name in `args` that the function has no "
        'parameter for, a missing extern "C", a key below a [table] that belongs above it, a dim passed as a pointer.'
    ),
    Outcome.COMPILE_ERROR: (
        "Start with the first message; later messages often follow from it. Usual causes: a name from the host's "
        "library or from std::, an argument that is specialised and also passed, a missing conversion between "
        "half types and float, `#if` on something that is not a knob."
    ),
    Outcome.LAUNCH_ERROR: (
        "The launch failed. Usual causes: more static and dynamic shared memory together than a block may have, too "
        "many registers for so many threads (add __launch_bounds__), a cooperative grid too large to be "
        "resident."
    ),
    Outcome.CRASHED: (
        "It accessed memory outside its buffers, or a misaligned address. Usual causes: an index that runs past the "
        "end at tails, 32-bit overflow of row * cols, a 16-byte access at an address that is not a multiple of 16, "
        "dynamic shared memory beyond `shared`."
    ),
    Outcome.TIMED_OUT: (
        "It did not end. Usual causes: a barrier or a __shfl_sync that not all of its threads reach (after an "
        "early return), a loop whose step can be 0, blocks waiting for others in a launch that is not "
        "cooperative, a counter in a workspace without `zero = true`."
    ),
    Outcome.WRONG: (
        "Its results differ from PyTorch's by more than rounding. Usual causes: a missing __syncthreads() "
        "between writing and reading shared memory, threads that return before a shuffle or barrier of the others, "
        "threads beyond the tail taking part in a reduction, sums or products in half precision, a type that is "
        "fixed where the dtype varies (__half2 on bfloat16), an output element that is never written, a "
        "specialised size used where the workload has another."
    ),
    Outcome.OUT_OF_BOUNDS: (
        "Bytes outside its buffers changed: it writes past an end. Usual cause: the last block or the last "
        "vector of a row reaches beyond the size; guard it, or let `when` require divisibility."
    ),
    Outcome.CHANGED_INPUT: (
        "After a run, an input had changed: the kernel writes to an input, or past the end of another buffer into it. "
        "Inputs are const; use workspace for values that must be kept."
    ),
    Outcome.KEEPS_STATE: (
        "It keeps state after the call, in a __device__ or static variable that it writes or in memory that it "
        "allocates, or it reads a clock. Declare a [workspace] (zero = true for counters), or make constant "
        "tables const."
    ),
    Outcome.UNSAFE: (
        "Its results are right only by chance, if at all: its code or the sanitizer shows a race, a stray access, or a "
        "value that is read before it is written. Usual causes: a missing __syncthreads() or __syncwarp(), a buffer in "
        "shared memory used again too early, a workspace read without `zero = true`; among blocks, a count or flag "
        "without __threadfence() before it, waiting without `cooperative = true`, __ldg of what the launch writes."
    ),
    Outcome.IMPLAUSIBLE: (
        "It is faster than its inputs can be read, so it cannot have read all of them. Every element of every "
        "input counts in every call."
    ),
    Outcome.DUPLICATE: (
        "It compiles to exactly the machine code of another kernel, so the compiler undid its changes or had already "
        "made them. Change the reads, the stored values or the computation, not only the text of the source."
    ),
}
# Reasons why a kernel can be right for normal numbers and wrong for others, by the name of the check inputs.
AT = {
    "uniform": "sums grow here instead of cancelling: accumulate in float32 and in several partial sums",
    "large": "exponentials and squares overflow here: subtract the maximum first, stay in float32",
    "far_below": "all numbers lie below -1e9 here, in float16 below -2000: begin a maximum at -INFINITY and not at a "
    "large negative number",
    "heavy_tail": "a few elements make up most of a sum here: none may be left out, or counted twice",
    "shifted": "rows lie far from zero here: begin a maximum at -INFINITY and not at 0, compute a variance from "
    "differences to the mean",
    "moved": "numbers have another mean and a larger spread here: assume nothing about their scale",
    "shifted_columns": "columns, or channels, lie far from zero here: compute a variance from differences to the mean",
    "integers": "everything is exact here, so this is not rounding: an element is missing, counted twice or misplaced",
    "constant": "all values of a row are equal here, and all zero in some rows: no variance, only ties; consider eps "
    "and 0/0",
    "masked": "half of the row is -inf here: -inf minus -inf is NaN; begin a running maximum at a finite number",
    "ties": "many values are equal here, and zeros have both signs: order them as the reference does",
    "tiny": "values are tiny here: eps counts, and squares may underflow to zero",
    "faint": "values are far below float16's range here: nothing may pass through float16 on its way",
    "vast": "values are far beyond float16's range here: nothing may pass through float16 on its way",
    "zero": "all inputs, or all gradients, are zero here: consider 0/0 and rsqrtf(0)",
    "minute": "all inputs, or all gradients, are around 1e-8 here: nothing may pass through float16 or fixed point",
    "subnormal": "all inputs are subnormal here: they are numbers, not zeros",
    "saturating": "all inputs are around 100 here: exponentials overflow, so inf/inf must not occur",
    "overflowing": "inputs reach the largest float16 here, and exceed it in wider dtypes: results beyond it must "
    "become infinite in float16, not 65504, and stay as they are in wider dtypes",
    "NaN": "some inputs are NaN here, and results must be NaN where PyTorch's are: fmaxf(NaN, y) is y, and comparisons "
    "with NaN are false, so keep it by x != x ? x : ...",
    "infinite": "some inputs are infinite here: inf * 0 and inf - inf are NaN, which must occur only where they do in "
    "PyTorch",
    "saved_infinite": "some of what the forward saved is infinite here: inf * 0 is NaN, which must not occur where "
    "PyTorch's result is a number",
    "clashing": "some rows hold NaN beside an infinity, or two infinities, here: an infinite maximum or sum must not "
    "hide NaN",
    "equal_infinities": "two inputs are the same infinity at an element here: inf - inf is NaN",
    "opposite_infinities": "two inputs are infinities of opposite signs at an element here: the result has the sign of "
    "PyTorch's, and inf - inf is NaN",
    "special_pairs": "two inputs are special at an element here: NaN beside an infinity or zero, or an infinity beside "
    "zero",
    "infinite_weights": "some weights are infinite here: they must not be cut off, and inf - inf is NaN",
    "minute_weights": "all weights and biases are around 1e-8 here: nothing may pass through float16 on its way",
    "zero_weights": "some weights are zero here, in whole rows and columns: 0/0 is NaN, and a bias remains",
    "minus_inf_rows": "some rows consist only of -inf here: a search that begins at -inf finds nothing, and -inf minus "
    "-inf is NaN",
}


def hint(evaluation: Evaluation) -> str:
    """Return the meaning of the outcome, and of the check inputs on which it occurred."""
    hints = [HINTS.get(evaluation.outcome, "")]
    if evaluation.outcome is Outcome.WRONG:
        if (match := AT_VALUES.search(evaluation.log)) and match.group(1) in AT:
            hints.append(f"It was wrong on {match.group(1)} values: {AT[match.group(1)]}.")
        if "never written" in evaluation.log:
            hints.append("Some elements were never written: look at the tails of the grid and of the loops.")
        if "when timed" in evaluation.log:
            hints.append("It was right when checked: it depends on what earlier calls left in memory, or on timing.")
    return " ".join(filter(None, hints))


def complaints(kernel: Kernel, log: str) -> tuple[str, ...]:
    """Return the lines of the kernel's text that a log names."""
    lines = kernel.text.split("\n")
    numbers = dict.fromkeys(int(next(filter(None, match.groups()))) for match in COMPLAINT.finditer(log[:20_000]))
    return tuple(
        f"line {number}: {one_line(lines[number - 1], MAX_LINE)}"
        for number in list(numbers)[:MAX_LINES]
        if 0 < number <= len(lines) and lines[number - 1].strip()
    )
