"""Compilation of a kernel for every workload of an evaluation: the op's workloads, and random held-out workloads."""

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

from archive.binding import IllegalError, accepts, bind
from archive.binding import check as check_plan
from archive.kernel import Bound, Kernel
from archive.plan import PlanError
from archive.records import DeviceInfo, Evaluation, Outcome, Traits, content_id
from evolve.devices.choose import policy_of
from evolve.devices.device import CompileResult, RejectedError
from evolve.op_on_device import all_flops, point, signature
from reference_ops.edges import (
    equal_sizes,
    exceeds_16_bits,
    long_rows,
    small_quotients,
    small_sizes,
    square_matrices,
    with_other_elements,
)
from reference_ops.op import Op, Workload
from reference_ops.parameters import (
    beyond_listed,
    crossed_parameters,
    far_apart,
    special_parameters,
    with_one_change,
)
from reference_ops.rows import thinned, without_rows
from reference_ops.shapes import held_out, past_few_bits, powers_of_two, stretched
from reference_ops.windows import overlapping_windows, windows_past_borders

HELD_OUT, HELD_OUT_TO_CONFIRM = 2, 6
# A champion is also tested at a shape nearly as large as the largest declared one: some faults show only there.
LARGE_SHARE, LARGEST_BYTES = 4, 2**31
# number of kinds of declared rows; a few rows of each kind are run under the sanitizer
MOST_THIN, THIN_BYTES = 4, 2**26
P = TypeVar("P")
M = TypeVar("M", bound=CompileResult)


@dataclass(frozen=True)
class Shapes:
    """The workloads of an evaluation.

    The kernel's plan accepts each of them, but the kernel may not compile for all.
    """

    declared: tuple[Workload, ...]
    awkward: tuple[Workload, ...] = ()
    held_out: tuple[Workload, ...] = ()
    stretched: tuple[Workload, ...] = ()  # larger in one dim than any that the op lists
    long: tuple[Workload, ...] = ()  # the longest listed rows: one row for each distribution, or a single row
    # checked on few inputs: parameters that are zero or far apart, sizes that few bits cannot index
    once: tuple[Workload, ...] = ()
    # also checked on few inputs: sizes of 1 to 4, equal sizes, powers of two, large parameters
    edges: tuple[Workload, ...] = ()
    thin: tuple[Workload, ...] = ()  # few rows of declared lengths, for slow tools; used only by confirmations
    skipped: tuple[str, ...] = ()  # declared workloads that the plan does not accept, and why

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of the listed workloads, first that of the first awkward workload, which is the smallest."""
        return tuple(dict.fromkeys(workload.dtype for workload in (*self.awkward, *self.declared)))

    def listed_in(self, dtype: str) -> "Shapes":
        """Return the listed workloads of this dtype."""
        declared, awkward = (
            tuple(one for one in of_any if one.dtype == dtype) for of_any in (self.declared, self.awkward)
        )
        return Shapes(declared, awkward)


@dataclass(frozen=True)
class Compiled(Generic[P]):
    """The programs of a kernel, each with its workload. The fields are those of `Shapes`."""

    declared: tuple[tuple[Workload, P], ...]
    awkward: tuple[tuple[Workload, P], ...]
    held_out: tuple[tuple[Workload, P], ...] = ()
    stretched: tuple[tuple[Workload, P], ...] = ()
    long: tuple[tuple[Workload, P], ...] = ()
    once: tuple[tuple[Workload, P], ...] = ()
    edges: tuple[tuple[Workload, P], ...] = ()
    thin: tuple[tuple[Workload, P], ...] = ()
    skipped: tuple[str, ...] = ()  # declared workloads without a program, and why

    @property
    def everywhere(self) -> tuple[tuple[Workload, P], ...]:
        return (*self.awkward, *self.held_out, *self.once, *self.edges, *self.long, *self.stretched, *self.declared)


@dataclass(frozen=True)
class Compilation(Generic[P]):
    """Compilation of one kernel for one device. Methods raise PlanError or RejectedError for faults of the kernel."""

    kernel: Kernel
    op: Op
    info: DeviceInfo
    compile_bound: Callable[[Bound], P]
    compile_without_traits: Callable[[Bound], P] | None = None  # in place of `compile_bound`, if it is cheaper

    def shapes(self, seed: int, *, confirm: bool) -> Shapes:
        """Return the workloads of an evaluation, some of which are drawn from the seed. Nothing is compiled."""
        op, policy, rng = self.op, policy_of(self.info.kind), random.Random(seed)
        declared, skipped = self._declared()
        bound_to = cache(self._bound)  # the same workloads are often tried for several reasons
        most_threads = max(policy.held_out_threads or 0, *(_threads(bound_to(workload)) for workload in declared))

        @cache
        def accepts(workload: Workload) -> bool:
            try:
                threads = _threads(bound_to(workload))
            except IllegalError:
                return False
            return policy.held_out_threads is None or threads <= most_threads

        def accepts_long(workload: Workload) -> bool:
            if all_flops(op, workload) > policy.stretched_flops or not accepts(workload):
                return False
            return policy.stretched_steps is None or _steps(op, workload, bound_to(workload)) <= policy.stretched_steps

        drawn = held_out(op, accepts, rng, HELD_OUT_TO_CONFIRM if confirm else HELD_OUT, policy.held_out_bytes)
        if confirm:
            largest = min(LARGEST_BYTES, max(op.nbytes(workload) for workload in declared))
            drawn += held_out(op, accepts, rng, 1, largest, largest // LARGE_SHARE)
        longer = stretched(op, accepts_long, rng, policy.stretched_bytes)
        rows = long_rows(op, accepts, rng, policy.stretched_bytes)
        edges = small_sizes(op, accepts, rng, policy.held_out_bytes)
        edges += equal_sizes(op, accepts, rng, policy.held_out_bytes)
        edges += small_quotients(op, accepts, policy.held_out_bytes)
        edges += powers_of_two(op, accepts_long, policy.held_out_bytes)
        single = special_parameters(op, accepts, policy.held_out_bytes)
        single += crossed_parameters(op, accepts, rng, policy.held_out_bytes)
        single += far_apart(op, accepts, policy.held_out_bytes)
        single += windows_past_borders(op, accepts, policy.held_out_bytes)
        single += square_matrices(op, accepts, policy.held_out_bytes)
        single += with_other_elements(op, single, accepts, rng, policy.held_out_bytes)
        past = past_few_bits(op, accepts_long, rng, policy.stretched_bytes)
        wide = [one for one in (*past, *longer) if exceeds_16_bits(op, one)]
        single += past + with_other_elements(op, wide, accepts_long, rng, policy.stretched_bytes)
        few = few_rows(op, declared, accepts) if confirm else ()
        awkward, _ = self._accepted(op.awkward)
        changed = with_one_change(op, accepts, rng, policy.held_out_bytes)
        changed += with_other_elements(op, changed, accepts, rng, policy.held_out_bytes)
        if policy.edge_compilations is not None and not confirm:
            others = (*declared, *awkward, *drawn, *longer, *rows, *single)
            edges = _with_few_compilations(edges, others, rng, policy.edge_compilations, bound_to)
            changed = _with_few_compilations(changed, (*others, *edges), rng, policy.edge_compilations, bound_to)
        single += changed
        beyond = beyond_listed(op, accepts, policy.held_out_bytes)
        edges += beyond + with_other_elements(op, beyond, accepts, rng, policy.held_out_bytes)
        edges += overlapping_windows(op, accepts, policy.held_out_bytes)
        return Shapes(
            declared, awkward, drawn, stretched=longer, long=rows, once=single, edges=edges, thin=few, skipped=skipped
        )

    def everything(self, seed: int, *, confirm: bool) -> Compiled[P]:
        """Compile for all workloads of an evaluation."""
        shapes, drawn = self.shapes(seed, confirm=confirm), self.without_traits()
        return replace(
            with_declared(self.listed(shapes, self.at(shapes.awkward))),
            held_out=drawn.at(shapes.held_out),
            stretched=drawn.at(shapes.stretched),
            long=drawn.at(shapes.long),
            once=drawn.at(shapes.once),
            edges=drawn.at(shapes.edges),
            thin=drawn.at(shapes.thin),
        )

    def listed(self, shapes: Shapes, awkward: tuple[tuple[Workload, P], ...]) -> Compiled[P]:
        """Compile for the declared workloads; `awkward` holds the programs for the others that the op lists."""
        declared, skipped = self._programs(shapes.declared)
        return Compiled(declared, awkward, skipped=(*shapes.skipped, *skipped))

    def without_traits(self) -> "Compilation[P]":
        """Return the compilation for all workloads but the declared ones and the first of each dtype."""
        return replace(self, compile_bound=self.compile_without_traits or self.compile_bound)

    def as_declared(self) -> Compiled[P]:
        """Compile only for the declared workloads."""
        declared, skipped = self._declared()
        return with_declared(self.listed(Shapes(declared, skipped=skipped), ()))

    def at(self, workloads: Iterable[Workload]) -> tuple[tuple[Workload, P], ...]:
        """Return a program for each of these workloads at which the kernel is legal."""
        return self._programs(workloads)[0]

    def _declared(self) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
        check_plan(self.kernel, signature(self.op))
        if reserved := self.kernel.plan.reserved:
            raise RejectedError(Outcome.UNSUPPORTED, f"the plan asks for {reserved}, which is not supported yet")
        declared, skipped = self._accepted(self.op.workloads(self.info.kind))
        if not declared:
            raise _no_workload_left(skipped)
        return declared, skipped

    def _accepted(self, workloads: Iterable[Workload]) -> tuple[tuple[Workload, ...], tuple[str, ...]]:
        """Return the workloads that the plan accepts, and why it does not accept the others."""
        accepted, skipped = [], []
        for workload in workloads:
            try:
                self._bound(workload)
            except IllegalError as error:
                skipped.append(f"{workload.key}: {error}")
            else:
                accepted.append(workload)
        return tuple(accepted), tuple(skipped)

    def _programs(self, workloads: Iterable[Workload]) -> tuple[tuple[tuple[Workload, P], ...], tuple[str, ...]]:
        """Return a program for every workload at which the kernel is legal, and why the others have none."""
        programs, skipped = [], []
        for workload in workloads:
            try:
                programs.append((workload, self.compile_bound(self._bound(workload))))
            except IllegalError as error:
                skipped.append(f"{workload.key}: {error}")
            except RejectedError as error:
                if error.outcome is not Outcome.ILLEGAL:
                    raise RejectedError(error.outcome, f"{workload.key}: {error.log}") from error
                skipped.append(f"{workload.key}: {error.log}")
        return tuple(programs), tuple(skipped)

    def _bound(self, workload: Workload) -> Bound:
        return bound_at(self.kernel, self.op, workload, self.info)


def _with_few_compilations(
    edges: Sequence[Workload],
    others: Iterable[Workload],
    rng: random.Random,
    most: int,
    bound_to: Callable[[Workload], Bound],
) -> tuple[Workload, ...]:
    """Return the edges that need no separate compilation, and up to `most` of the other edges."""

    def code(workload: Workload) -> object:
        bound = bound_to(workload)
        return bound.constants, bound.types

    compiled = set(map(code, others))
    free = [workload for workload in edges if code(workload) in compiled]
    rest = [workload for workload in edges if code(workload) not in compiled]
    return (*free, *rng.sample(rest, min(most, len(rest))))


def _threads(bound: Bound) -> int:
    """Return the total number of threads of all launches."""
    return sum(math.prod(launch.grid) * math.prod(launch.block) for launch in bound.launches)


def _steps(op: Op, workload: Workload, bound: Bound) -> int:
    """Return the total steps of a block's threads if the block processes rows one after the other, else zero.

    A launch of fewer threads than rows has such a block. In other blocks, each thread ends after a few steps.
    """
    rows = max(math.prod(op.shape(tensor, workload)[:-1]) for tensor in op.outputs)
    launches = [(math.prod(one.grid), math.prod(one.block)) for one in bound.launches]
    return rows * max((threads for blocks, threads in launches if blocks * threads < rows), default=0)


def with_declared(programs: Compiled[P]) -> Compiled[P]:
    """Return these programs. Raises RejectedError if none of them is for a declared workload."""
    if not programs.declared:
        raise _no_workload_left(programs.skipped)
    return programs


def _no_workload_left(skipped: Iterable[str]) -> RejectedError:
    return RejectedError(Outcome.ILLEGAL, "no workload is left: " + "; ".join(skipped))


def few_rows(op: Op, declared: Iterable[Workload], accepts: Callable[[Workload], bool]) -> tuple[Workload, ...]:
    """Return a workload with few rows for each kind of declared rows, largest rows first."""
    kinds = {without_rows(op, workload): workload for workload in declared}
    found = []
    for near in kinds.values():
        small = (tried for tried in thinned(op, near) if op.nbytes(tried) <= THIN_BYTES)
        if fewest := next((tried for tried in small if accepts(tried)), None):
            found.append(fewest)
    return tuple(sorted(found, key=op.nbytes, reverse=True)[:MOST_THIN])


def verdict_on(kernel: Kernel, op: Op, info: DeviceInfo, judge: Callable[[Evaluation], Evaluation]) -> Evaluation:
    """Return the evaluation that `judge` completes. If it raises for a fault of the kernel, that is the outcome."""
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
    kernel: Kernel, op: Op, info: DeviceInfo, compile_bound: Callable[[Bound], CompileResult], shapes_seed: int,
    *, confirm: bool = False, setting: bool = False,
) -> Evaluation:  # fmt: skip
    """Return the part of the verdict that needs no device: the kernel passes if it compiles for all its workloads.

    A `setting` of a known kernel's knobs is compiled only for the declared workloads.
    """

    def judge(verdict: Evaluation) -> Evaluation:
        compilation = Compilation(kernel, op, info, compile_bound)
        if setting:
            compilation.as_declared()
            return verdict
        return replace(verdict, traits=traits(kernel, compilation.everything(shapes_seed, confirm=confirm)))

    return verdict_on(kernel, op, info, judge)


def traits(kernel: Kernel, programs: Compiled[M]) -> Traits | None:
    """Return the traits of the kernel over all declared workloads, or None without machine code.

    Their `code` also covers the awkward workloads, because a kernel may have been corrected only for these. It covers
    the kernel's `when` and `dtypes` too, because held-out shapes depend on them.
    """
    found_at = [(workload.key, program.traits) for workload, program in (*programs.declared, *programs.awkward)]
    by_workload = [found for _, found in found_at[: len(programs.declared)] if found]
    if len(by_workload) < len(programs.declared):
        return None
    codes = sorted((key, found.code) for key, found in found_at if found)
    return _combined(by_workload, content_id([kernel.op, kernel.plan.when, sorted(kernel.plan.dtypes), codes]))


def _combined(by_workload: Sequence[Traits], code: str) -> Traits:
    return Traits(
        code=code,
        load_bytes=max(found.load_bytes for found in by_workload),
        store_bytes=max(found.store_bytes for found in by_workload),
        shared_bytes=max(found.shared_bytes for found in by_workload),
        registers=max(found.registers for found in by_workload),
        threads=max(found.threads for found in by_workload),
        launches=max(found.launches for found in by_workload),
        tensor_cores=any(found.tensor_cores for found in by_workload),
        atomics=any(found.atomics for found in by_workload),
        occupancy=min(found.occupancy for found in by_workload),
    )


def bound_at(kernel: Kernel, op: Op, workload: Workload, info: DeviceInfo) -> Bound:
    """Return the kernel bound to one workload. Raises IllegalError with the reason if it does not run there."""
    at = point(op, workload, info)
    if not accepts(kernel, at):
        raise IllegalError("not accepted by the kernel's `when` or `dtypes`")
    return bind(kernel, at)
