"""A kernel compiled for every workload it will be tested at: those that the op lists, and some that nobody listed."""

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from archive.binding import Bound, IllegalError, accepts, bind
from archive.kernel import Kernel
from archive.kernel import check as check_plan
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Outcome, Traits, content_id
from evolve.devices.device import Machined, RejectedError
from evolve.op_on_device import point, signature
from reference_ops.op import Op, Workload
from reference_ops.shapes import held_out

HELD_OUT, HELD_OUT_TO_CONFIRM = 2, 6
HELD_OUT_BYTES = {"cuda": 2**25, "emulated": 2**18}
# A processor takes a kernel's threads one after the other: many short rows, with a block each, would take minutes.
EMULATED_THREADS = 2**19
# A champion meets one more, nearly as large as the largest declared: what goes wrong there may do so nowhere else.
LARGE_SHARE, LARGEST_BYTES = 4, 2**31
P = TypeVar("P")
M = TypeVar("M", bound=Machined)


@dataclass(frozen=True)
class Compiled(Generic[P]):
    """Programs by workload."""

    declared: tuple[tuple[Workload, P], ...]
    awkward: tuple[tuple[Workload, P], ...]
    held_out: tuple[tuple[Workload, P], ...]
    skipped: tuple[str, ...]  # declared workloads without a program, and why


def compiled(
    kernel: Kernel, op: Op, info: DeviceInfo, compile_bound: Callable[[Bound], P], shapes_seed: int, *, confirm: bool
) -> Compiled[P]:
    """Compile for all workloads. Raises PlanError or RejectedError at the first that the kernel accepts and fails."""
    check_plan(kernel, signature(op))
    if reserved := kernel.plan.reserved:
        raise RejectedError(Outcome.UNSUPPORTED, f"the plan asks for {reserved}, which is not supported yet")
    declared, skipped = _programs(kernel, op, op.workloads(info.kind), info, compile_bound)
    if not declared:
        raise RejectedError(Outcome.ILLEGAL, "no workload is left: " + "; ".join(skipped))
    awkward, _ = _programs(kernel, op, op.awkward, info, compile_bound)
    rng, most = random.Random(shapes_seed), HELD_OUT_BYTES[info.kind]
    most_threads = max(EMULATED_THREADS, *(_threads(kernel, op, workload, info) for workload, _ in declared))

    def accepts(workload: Workload) -> bool:
        try:
            threads = _threads(kernel, op, workload, info)
        except IllegalError:
            return False
        return info.kind != "emulated" or threads <= most_threads

    drawn = held_out(op, accepts, rng, HELD_OUT_TO_CONFIRM if confirm else HELD_OUT, most)
    if confirm:
        largest = min(LARGEST_BYTES, max(op.nbytes(workload) for workload, _ in declared))
        drawn += held_out(op, accepts, rng, 1, largest, largest // LARGE_SHARE)
    unforeseen, _ = _programs(kernel, op, drawn, info, compile_bound)
    return Compiled(tuple(declared), tuple(awkward), tuple(unforeseen), tuple(skipped))


def verdict_on(kernel: Kernel, op: Op, info: DeviceInfo, judge: Callable[[Evaluation], Evaluation]) -> Evaluation:
    """What `judge` makes of an evaluation that has passed so far; a fault of the kernel becomes its outcome."""
    started = time.monotonic()
    verdict = Evaluation(kernel.id, op.name, info, Outcome.PASSED, "", created=time.time())
    try:
        verdict = judge(verdict)
    except PlanError as error:
        verdict = replace(verdict, outcome=Outcome.MALFORMED, log=str(error))
    except RejectedError as error:
        verdict = replace(verdict, outcome=error.outcome, log=error.log)
    return replace(verdict, seconds=round(time.monotonic() - started, 3))


def precompile(
    kernel: Kernel, op: Op, info: DeviceInfo, compile_bound: Callable[[Bound], Machined], shapes_seed: int,
    *, confirm: bool = False,
) -> Evaluation:  # fmt: skip
    """The verdict as far as it can be known without a GPU: what passes compiles everywhere, and has its traits."""

    def judge(verdict: Evaluation) -> Evaluation:
        programs = compiled(kernel, op, info, compile_bound, shapes_seed, confirm=confirm)
        return replace(verdict, traits=traits(kernel, programs))

    return verdict_on(kernel, op, info, judge)


def traits(kernel: Kernel, programs: Compiled[M]) -> Traits | None:
    """What the kernel is on all declared workloads.

    Its code counts on the awkward ones as well: a kernel may be mended there alone. So does where it says that it may
    be used, for shapes that nobody listed.
    """
    places = [(workload.key, program.traits) for workload, program in (*programs.declared, *programs.awkward)]
    of_each = [found for _, found in places[: len(programs.declared)] if found]
    if len(of_each) < len(programs.declared):
        return None
    codes = sorted((key, found.code) for key, found in places if found)
    return _widest(of_each, content_id([kernel.op, kernel.plan.when, sorted(kernel.plan.dtypes), codes]))


def _widest(of_each: Sequence[Traits], code: str) -> Traits:
    return Traits(
        code=code,
        load_bytes=max(found.load_bytes for found in of_each),
        store_bytes=max(found.store_bytes for found in of_each),
        shared_bytes=max(found.shared_bytes for found in of_each),
        registers=max(found.registers for found in of_each),
        threads=max(found.threads for found in of_each),
        launches=max(found.launches for found in of_each),
        tensor_cores=any(found.tensor_cores for found in of_each),
        atomics=any(found.atomics for found in of_each),
        occupancy=min(found.occupancy for found in of_each),
    )


def bound_at(kernel: Kernel, op: Op, workload: Workload, info: DeviceInfo) -> Bound:
    """The kernel at one workload, or an IllegalError that says why it does not run there."""
    place = point(op, workload, info)
    if not accepts(kernel, place):
        raise IllegalError("not accepted by the kernel's `when` or `dtypes`")
    return bind(kernel, place)


def _programs(
    kernel: Kernel, op: Op, workloads: Iterable[Workload], info: DeviceInfo, compile_bound: Callable[[Bound], P]
) -> tuple[list[tuple[Workload, P]], list[str]]:
    """The kernel compiled for every workload it accepts, and why it was not for the others."""
    programs, skipped = [], []
    for workload in workloads:
        try:
            programs.append((workload, compile_bound(bound_at(kernel, op, workload, info))))
        except IllegalError as error:
            skipped.append(f"{workload.key}: {error}")
        except RejectedError as error:
            if error.outcome is not Outcome.ILLEGAL:
                raise RejectedError(error.outcome, f"{workload.key}: {error.log}") from error
            skipped.append(f"{workload.key}: {error.log}")
    return programs, skipped


def _threads(kernel: Kernel, op: Op, workload: Workload, info: DeviceInfo) -> int:
    """Those of all launches together."""
    launches = bound_at(kernel, op, workload, info).launches
    return sum(math.prod(launch.grid) * math.prod(launch.block) for launch in launches)
