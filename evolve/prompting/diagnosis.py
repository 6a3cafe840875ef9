"""What can be said of a kernel without running it, from what it was compiled to and from its plan."""

from collections.abc import Iterator

from archive.binding import Bound, IllegalError, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Resources, Traits
from evolve.light import light, without_tensor_cores_us
from evolve.op_on_device import point
from evolve.prompting.op_sections import BLOCKS, REGISTERS, THREADS
from evolve.prompting.text import nbytes, one_line
from reference_ops.op import Op

WIDEST_ACCESS = 16
HALVES = ("bfloat16", "float16")
MUCH = 64  # of so many bytes that are read, one is written
SPARSE = 0.5  # the share of a multiprocessor's threads below which occupancy is worth a word
RESERVED_BYTES = 1024  # of shared memory that each block takes beside its own, on sm_80 and later


def form(traits: Traits) -> str:
    """What kind of kernel this is after compilation, in a few words and with its own figures."""
    shared = f"{nbytes(traits.shared_bytes)} of shared memory a block" if traits.shared_bytes else "no shared memory"
    said = [
        f"{traits.load_bytes}-byte loads",
        "one launch" if traits.launches == 1 else f"{traits.launches} launches",
        shared,
        f"{traits.registers} registers a thread",
    ]
    return ", ".join(said + ["tensor cores"] * traits.tensor_cores + ["atomics"] * traits.atomics)


def diagnosis(kernel: Kernel, evaluation: Evaluation, op: Op) -> tuple[str, ...]:
    """The faults that show before any measurement, a sentence each; `op` may be another than the kernel's."""
    found = list(_spilled(evaluation.resources))
    if traits := evaluation.traits:
        stores_matter = kernel.op != op.name or _writes_much(op, evaluation.device)
        found += [*_narrow(traits, stores_matter=stores_matter), *_sparse(traits, evaluation.device)]
        if traits.launches > 1:
            found.append(
                f"{traits.launches} launches: what passes between them goes through memory, and each has its own start "
                "and end."
            )
    if kernel.op == op.name and evaluation.device.kind == "cuda":
        found += _without_tensor_cores(evaluation, op)
        found += _few_blocks(kernel, evaluation, op)
    return tuple(found)


def _spilled(resources: tuple[Resources, ...]) -> Iterator[str]:
    for spent in resources:
        if spent.local_bytes:
            yield (
                f"`{one_line(spent.entry, 80)}` keeps {nbytes(spent.local_bytes)} a thread in local memory: registers "
                "that were spilled, or an array indexed at run time."
            )


def _writes_much(op: Op, device: DeviceInfo) -> bool:
    """Whether any workload's results are more than next to nothing, as those of a reduction are."""
    workloads = op.workloads(device.kind)
    return any(op.bytes_of(op.outputs, workload) * MUCH > op.least_read(workload) for workload in workloads)


def _narrow(traits: Traits, *, stores_matter: bool) -> Iterator[str]:
    loads, stores = traits.load_bytes, traits.store_bytes if stores_matter else 0
    alike = loads == stores
    for what, width in (("Loads and stores", loads),) if alike else (("Loads", loads), ("Stores", stores)):
        if 0 < width < WIDEST_ACCESS:
            yield (
                f"{what} in global memory are {width} bytes wide at most: 16-byte ones would take "
                f"{WIDEST_ACCESS // width} times fewer instructions and have more bytes on their way at once."
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
        f"({traits.threads} threads a block, {traits.registers} registers a thread, "
        f"{nbytes(traits.shared_bytes)} of shared memory a block)."
    )


def _without_tensor_cores(evaluation: Evaluation, op: Op) -> Iterator[str]:
    device, traits = evaluation.device, evaluation.traits
    timed = {measurement.workload for measurement in evaluation.measurements}
    for workload in () if traits is None or traits.tensor_cores else op.workloads(device.kind):
        slow_us, bytes_us = without_tensor_cores_us(op, workload, device), light(op, workload, device).bytes_us
        if op.matrix_flops and workload.key in timed and workload.dtype in HALVES and slow_us > bytes_us > 0:
            yield (
                f"It does without tensor cores, though in {workload.dtype} at {one_line(workload.key, 160)} arithmetic "
                "takes longer than moving the bytes."
            )
            return


def _few_blocks(kernel: Kernel, evaluation: Evaluation, op: Op) -> Iterator[str]:
    """Where a launch leaves multiprocessors idle, at the first workload that was timed."""
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
                    f"{one_line(workload.key, 160)}: the others are idle."
                )
                return


def _bound(kernel: Kernel, op: Op, key: str, info: DeviceInfo) -> Bound | None:
    workload = next(workload for workload in op.workloads(info.kind) if workload.key == key)
    place = point(op, workload, info)
    try:
        return bind(kernel, place) if accepts(kernel, place) else None
    except (PlanError, IllegalError):
        return None
