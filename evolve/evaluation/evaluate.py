"""Evaluation of one kernel: compiles, checks and times it, and confirms a champion, up to the first fault."""

import itertools
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from archive import library
from archive.kernel import Kernel
from archive.records import Check, Envelope, Evaluation, Resources, Traits
from evolve.devices.choose import policy_of
from evolve.devices.device import Device, Program, RejectedError
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compilation, Compiled, Shapes, traits, verdict_on, with_declared
from evolve.evaluation.confirm import Beyond, check_beyond, confirmation
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.timing import measure
from evolve.evaluation.truth import defined
from reference_ops import catalog
from reference_ops.arrangements import ALL_LAST
from reference_ops.edges import exceeds_16_bits
from reference_ops.inputs import has_rows_of_extremes, meets_extremes_by_rows
from reference_ops.op import (
    CLASHING,
    ENDS_WITH_NAN,
    EXTREME_ROWS,
    INFINITE,
    LARGE,
    MEETING,
    MINUS_INF,
    MIXED,
    NAN,
    NORMAL,
    OF_WEIGHTS,
    SAVED_NAN,
    SHIFTED,
    SHIFTED_COLUMNS,
    Op,
    Workload,
)
from reference_ops.parameters import not_finite_where_it_matters
from reference_ops.shapes import integers_of, without_rows

WARM_UP, FLOAT32 = "softmax", "float32"
EXTREMES_AT_ONCE = 2  # number of extremes at a declared workload whose rows depend on each other
ROWS_WITH_TAILS = 4  # enough for two inputs to have NaN in different rows, beside rows without NaN
SMALL_BYTES = 2**22  # size of a workload at which every extreme is checked
SLOWER = (
    "note: another setting of its knobs is clearly faster everywhere, so this setting was checked in only a few calls"
)
# NaN occurs three times: at the end of a row, at its beginning, and in between.
OF_A_SINGLE_ROW = (LARGE, SHIFTED, "far_below", "masked", NAN, NAN, NAN, INFINITE, MINUS_INF, CLASHING)
Pair = tuple[Workload, Program]


def evaluate(
    kernel: Kernel,
    op: Op,
    evaluator: "Evaluator",
    *,
    shapes_seed: int,
    bars: Mapping[str, float],
    confirm: bool = False,
    known: Traits | None = None,
) -> Evaluation:
    """Evaluate one kernel. Any fault of the kernel becomes the evaluation's outcome, unless it ends the process.

    `known` are the traits of its machine code, if a compiler has found them. Measurements at the workloads that
    `evaluator.lacking` names afterwards are not complete.
    """
    device, checks = evaluator.device, list[Check]()
    evaluator.lacking.clear()
    found = known

    def judge(verdict: Evaluation) -> Evaluation:
        nonlocal found
        compilation = Compilation(kernel, op, device.info, device.compile, device.tools.compile_without_traits)
        evaluator.watch("compile")
        shapes = compilation.shapes(shapes_seed, confirm=confirm)
        seed = secrets.randbelow(2**31)  # drawn after compilation, so that no kernel can depend on it
        inspector = Inspector(device, evaluator.arena, random.Random(seed), checks, evaluator.watch)
        verdict, agreed = replace(verdict, seed=seed), list[bool]()

        def check(pairs: Sequence[Pair]) -> None:
            agreed.extend(inspector.check(program, op, workload) for workload, program in pairs)

        programs = check_listed(compilation, shapes, inspector, check)
        found = of_code = traits(kernel, programs)
        # A fault at a random shape is not a verdict on other kernels with the same code: they may get other shapes.
        found = None
        evaluator.watch("compile")
        programs = defined_ones(compilation.drawn(programs, shapes), op, device)
        check(programs.held_out)
        check_once(programs, op, inspector)
        check_stretched(programs, op, inspector)
        found = of_code
        check(programs.declared)
        check_declared(programs, op, inspector, confirm=confirm)
        check_missing(programs, op, inspector)
        verdict = replace(verdict, deterministic=all(agreed))
        passed = _timed(verdict, programs, op, evaluator, inspector, bars, confirm=confirm)
        tested = [workload for workload, _ in programs.everywhere]
        if confirm:
            tested += _beyond(inspector, kernel, op, passed)
        conditions = device.tools.conditions
        return replace(passed, envelope=envelope(op, tested), conditions=conditions and conditions())

    verdict = verdict_on(kernel, op, device.info, judge)
    return replace(verdict, checks=tuple(checks), traits=found)


def check_listed(
    compilation: Compilation[Program], shapes: Shapes, inspector: Inspector, check: Callable[[Sequence[Pair]], None]
) -> Compiled[Program]:
    """Compile for the listed workloads, and check the awkward ones and every extreme, one dtype after the other.

    Most faults show at the smallest workload or in the first dtype, and then nothing else is compiled.
    """
    graphed, parts = inspector.rng.choice(shapes.dtypes), list[Compiled[Program]]()
    for dtype in shapes.dtypes:
        own = shapes.listed_in(dtype)
        parts.append(compilation.listed(own, compiled_in_turn(compilation, own.awkward, check, inspector.watch)))
        check_extremes(parts[-1], compilation.op, inspector, graphed)
        check_tails(parts[-1], compilation.op, inspector)
    declared = dict(pair for part in parts for pair in part.declared)
    return with_declared(
        Compiled(
            declared=tuple((workload, declared[workload]) for workload in shapes.declared if workload in declared),
            awkward=tuple(pair for part in parts for pair in part.awkward),
            skipped=(*shapes.skipped, *(reason for part in parts for reason in part.skipped)),
        )
    )


def compiled_in_turn(
    compilation: Compilation[Program],
    workloads: Iterable[Workload],
    check: Callable[[Sequence[Pair]], None],
    watch: Callable[[str], None],
) -> tuple[Pair, ...]:
    """Compile for each workload after the program for the previous workload has passed `check`.

    The smallest workload comes first: most faults show there, and then nothing else is compiled.
    """
    passed: list[Pair] = []
    for workload in workloads:
        watch("compile")
        pairs = compilation.at((workload,))
        check(pairs)
        passed += pairs
    watch("compile")
    return tuple(passed)


def glance(kernel: Kernel, op: Op, evaluator: "Evaluator", *, bars: Mapping[str, float]) -> Evaluation | None:
    """Return the verdict on a kernel that is clearly slower than the times to beat at all its workloads, else None.

    It is used for knob settings of a kernel that has passed, because it checks and times only a few calls. A fault in
    one of these calls is a verdict, too.
    """
    device, checks, contends = evaluator.device, list[Check](), False
    evaluator.lacking.clear()

    def judge(verdict: Evaluation) -> Evaluation:
        nonlocal contends
        evaluator.watch("compile")
        programs = Compilation(kernel, op, device.info, device.compile).as_declared()
        seed, measurements = secrets.randbelow(2**31), []
        inspector = Inspector(device, evaluator.arena, random.Random(seed), checks, evaluator.watch)
        for workload, program in programs.declared:
            inspector.check_on(program, op, workload, (NORMAL,))
            times = evaluator.baselines_at_hand(op, workload)
            evaluator.watch("time")
            measurements.append(measure(inspector, program, op, workload, times, bars.get(workload.key)))
            if contends := workload.key not in bars or not measurements[-1].coarse:
                return verdict
        declared = [program for _, program in programs.declared]
        return replace(
            verdict,
            seed=seed,
            log="\n".join(dict.fromkeys((SLOWER, *(program.log for program in declared if program.log)))),
            measurements=tuple(measurements),
            skipped=programs.skipped,
            resources=_largest_resources(declared),
        )

    verdict = verdict_on(kernel, op, device.info, judge)
    return None if contends else replace(verdict, checks=tuple(checks))


def warm_up(evaluator: "Evaluator") -> None:
    """Check a plain kernel, so that PyTorch has loaded its GPU code when the first kernel arrives."""
    op, (kernel,) = catalog.load(WARM_UP), library.plain(WARM_UP)
    inspector = Inspector(evaluator.device, evaluator.arena, random.Random(0), [], lambda _phase: None)
    small = [workload for workload in op.awkward if workload.dtype == FLOAT32]
    with suppress(RejectedError, RuntimeError):  # a fault of the device is reported with the first kernel
        pairs = Compilation(kernel, op, evaluator.device.info, evaluator.device.compile).at(small)
        for workload, program in pairs:
            inspector.check(program, op, workload)
        check_extremes(Compiled(pairs, pairs), op, inspector)


def defined_ones(programs: Compiled[Program], op: Op, device: Device) -> Compiled[Program]:
    """Return the programs, except those of drawn workloads that the op does not accept.

    At `edges`, results must also be finite.
    """

    def accepted(pairs: tuple[Pair, ...], *, finite: bool = False) -> tuple[Pair, ...]:
        return tuple(pair for pair in pairs if defined(op, pair[0], device.torch_device, finite=finite))

    return replace(
        programs,
        held_out=accepted(programs.held_out),
        stretched=accepted(programs.stretched),
        long=accepted(programs.long),
        once=accepted(programs.once, finite=True),
        edges=accepted(programs.edges, finite=True),
        thin=accepted(programs.thin),
    )


def check_extremes(programs: Compiled[Program], op: Op, inspector: Inspector, graphed: str = "") -> None:
    """Check every extreme and every arrangement once per dtype at a small workload.

    One dtype, `graphed` if it is given, is checked in a CUDA graph. Where rows are independent, one draw has rows of
    every extreme. Raises RejectedError at the first fault.
    """
    everywhere = (*programs.awkward, *programs.declared)  # listed shapes: a fault there holds for all equal code
    dtypes = list(dict.fromkeys(workload.dtype for workload, _ in everywhere))
    graphed = graphed or inspector.rng.choice(dtypes)
    for dtype in dtypes:
        own = [pair for pair in everywhere if pair[0].dtype == dtype]
        in_rows = [pair for pair in own if meets_extremes_by_rows(op, pair[0])]
        if small := [pair for pair in in_rows if op.nbytes(pair[0]) <= SMALL_BYTES]:
            workload, program = inspector.rng.choice(small)
            inspector.check_on(program, op, workload, (EXTREME_ROWS,), in_graph=dtype == graphed)
            workload, program = _chosen(own, op, inspector)
            inspector.check_on(program, op, workload, op.arrangements)
        else:
            awkward = [pair for pair in programs.awkward if pair[0].dtype == dtype]
            workload, program = _chosen(awkward or own, op, inspector)
            inspector.check_on(program, op, workload, (*op.extremes, *op.arrangements), in_graph=dtype == graphed)


def check_tails(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check NaN and infinities in each input alone, at the end of rows of odd length, once per dtype."""
    names = [name for name in (NAN, INFINITE, SAVED_NAN) if name in op.extremes]
    names += [name for name in op.arrangements if name.endswith(ENDS_WITH_NAN)]
    pairs = [pair for pair in (*programs.awkward, *programs.declared) if _has_tails(op, pair[0])] if names else []
    for dtype in dict.fromkeys(workload.dtype for workload, _ in pairs):
        own = [pair for pair in pairs if pair[0].dtype == dtype]
        several = [pair for pair in own if op.shape(op.varied[0], pair[0])[:1] >= (ROWS_WITH_TAILS,)]
        workload, program = inspector.rng.choice(several or own)
        inspector.check_on(program, op, workload, names, in_turn=True)


def _has_tails(op: Op, workload: Workload) -> bool:
    """Return whether rows of the input with most dims are long at a small workload, and no multiple of a vector."""
    shape = max((op.shape(spec, workload) for spec in op.varied), key=len, default=())
    return bool(shape) and shape[-1] > 1 and shape[-1] % 2 == 1 and op.nbytes(workload) <= SMALL_BYTES


def check_once(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check edges on normal inputs, long rows on all distributions, and single rows on values that other rows can hide.

    Long rows also get NaN. A vanishing term is checked on inputs that are not finite, whose product with zero is NaN, a
    negative parameter on infinities, a size beyond 16 bits with the last index everywhere, and a size of 1, a special
    case in kernels, on a few extremes.
    """
    for workload, program in programs.long:
        alone = [name for name in OF_A_SINGLE_ROW if name in (*op.values, *op.extremes)]
        several = (MIXED, NAN) if NAN in op.extremes else (MIXED,)
        inspector.check_on(program, op, workload, alone if op.shape(op.varied[0], workload)[0] == 1 else several)
    for workload, program in programs.once:
        names = [NORMAL, *not_finite_where_it_matters(op, workload)]
        names += [name for name in op.arrangements if name.endswith(ALL_LAST) and exceeds_16_bits(op, workload)]
        inspector.check_on(program, op, workload, names)
    for workload, program in programs.edges:
        inspector.check_on(program, op, workload, (NORMAL,))
    for workload, program in (*programs.awkward, *programs.edges):
        if 1 in (*op.sizes(workload).values(), *dict(integers_of(workload)).values()):
            inspector.check_on(program, op, workload, _few_extremes(op), few=True)


def _few_extremes(op: Op) -> tuple[str, ...]:
    """Return the inputs that are checked where a size is 1: rows of extremes, or NaN and numbers far from zero."""
    if has_rows_of_extremes(op):
        return (EXTREME_ROWS,)
    met = (*op.values, *op.extremes)
    far = [name for name in (SHIFTED_COLUMNS, SHIFTED) if name in met][:1]
    return (*far, *[name for name in (NAN,) if name in met])


def check_stretched(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check every arrangement where one dim is long, and rows of every extreme, or one extreme if there are few rows.

    Of the arrangements of weights, and of special values that meet, only one each is checked, because they depend
    little on the length.
    """
    listed = max(op.shape(op.varied[0], workload)[:1] for workload in op.listed)
    for workload, program in programs.stretched:
        longer_rows = op.shape(op.varied[0], workload)[:1] <= listed  # rows must be longer, not only more numerous
        every = longer_rows and meets_extremes_by_rows(op, workload)
        numbers = (EXTREME_ROWS,) if every else (NORMAL, *inspector.rng.sample(op.extremes, min(1, len(op.extremes))))
        left = inspector.rng.sample(OF_WEIGHTS, len(OF_WEIGHTS) - 1) + inspector.rng.sample(MEETING, len(MEETING) - 1)
        inspector.check_on(program, op, workload, numbers)
        inspector.check_on(program, op, workload, [one for one in op.arrangements if one not in left], few=True)


def check_declared(programs: Compiled[Program], op: Op, inspector: Inspector, *, confirm: bool) -> None:
    """Check the arrangements at the declared workloads, one at each in turn. A confirmation checks the extremes, too.

    Rows of every extreme are checked at one workload of each kind of rows, because a kernel may treat each kind
    differently. Where rows depend on each other, only two extremes are checked.
    """
    several = (op.arrangements, op.extremes) if confirm else (op.arrangements,)
    names = [name for some in several for name in inspector.rng.sample(some, len(some))]
    for (workload, program), name in zip(programs.declared, itertools.cycle(names), strict=False):
        inspector.check_on(program, op, workload, (name,), few=True)
    in_any_order = inspector.rng.sample(programs.declared, len(programs.declared))
    for workload, program in {without_rows(op, pair[0]): pair for pair in in_any_order}.values():
        few = inspector.rng.sample(op.extremes, min(EXTREMES_AT_ONCE, len(op.extremes)))
        inspector.check_on(program, op, workload, (EXTREME_ROWS,) if has_rows_of_extremes(op) else few)


def check_missing(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check each distribution that no group of rows has had yet, at the smallest accepted workload."""
    met = {check.values for check in inspector.checks}
    workload, program = min(programs.everywhere, key=lambda pair: op.nbytes(pair[0]))
    inspector.check_on(program, op, workload, [name for name in op.values if name not in met])


def _chosen(pairs: list[Pair], op: Op, inspector: Inspector) -> Pair:
    """Return a small workload whose dims are large enough for an index or a mask, or else the smallest workload."""
    in_order = sorted(pairs, key=lambda pair: op.nbytes(pair[0]))
    small = [pair for pair in in_order if op.nbytes(pair[0]) <= SMALL_BYTES] or in_order[:1]
    return inspector.rng.choice(small[len(small) // 2 :])


def envelope(op: Op, workloads: Iterable[Workload]) -> Envelope:
    """Return the largest sizes and parameters of these workloads, and the most elements of each tensor."""
    largest, elements = dict[str, int | float](), dict[str, int]()
    for workload in workloads:
        for name, value in (*workload.dims, *workload.parameters):
            largest[name] = max(value, largest.get(name, value))
        for name, count in op.elements(workload).items():
            elements[name] = max(count, elements.get(name, count))
    return Envelope(tuple(largest.items()), max(elements.values()), tuple(elements.items()))


def _timed(
    verdict: Evaluation, programs: Compiled[Program], op: Op, evaluator: "Evaluator", inspector: Inspector,
    bars: Mapping[str, float], *, confirm: bool,
) -> Evaluation:  # fmt: skip
    """Time a correct kernel, and confirm it if it is a champion."""
    declared = programs.declared
    beside = evaluator.baselines_for if confirm else evaluator.baselines_at_hand
    baseline_times = [beside(op, workload) for workload, _ in declared]
    measurements = []
    for (workload, program), times in zip(declared, baseline_times, strict=True):
        evaluator.watch("time")
        bar_us = None if confirm else bars.get(workload.key)
        measurements.append(measure(inspector, program, op, workload, times, bar_us))
    return replace(
        verdict,
        log="\n".join(dict.fromkeys(program.log for _, program in declared if program.log)),
        measurements=tuple(measurements),
        skipped=programs.skipped,
        resources=_largest_resources([program for _, program in declared]),
        confirmed=confirmation(programs, op, inspector, baseline_times, measurements) if confirm else None,
    )


def _beyond(inspector: Inspector, kernel: Kernel, op: Op, passed: Evaluation) -> tuple[Workload, ...]:
    """Return the workload beyond 32 bits at which a champion was checked, if the device and the kernel allow one."""
    device = inspector.device
    if (elements := policy_of(device.info.kind).beyond_elements) is None:
        return ()
    listed = {workload.key: workload for workload in op.workloads(device.info.kind)}
    measured = tuple((listed[one.workload], one.median_us / 1e6) for one in passed.measurements)
    return check_beyond(inspector, kernel, op, Beyond(elements, device.tools.memory_bytes, measured))


def _largest_resources(programs: list[Program]) -> tuple[Resources, ...]:
    """Return, for each entry, the largest resources that it needs on any workload."""
    largest: dict[str, Resources] = {}
    for program in programs:
        for own in program.resources:
            held = largest.get(own.entry, own)
            largest[own.entry] = Resources(
                own.entry,
                max(own.registers, held.registers),
                max(own.shared_bytes, held.shared_bytes),
                max(own.local_bytes, held.local_bytes),
            )
    return tuple(largest.values())
