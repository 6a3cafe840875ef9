"""Evaluation of one kernel: compiles, checks and times it, and confirms a champion, up to the first fault."""

import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from archive import library
from archive.kernel import Kernel
from archive.records import Check, Envelope, Evaluation, Resources, Traits
from evolve.devices.choose import policy_of
from evolve.devices.device import Program, RejectedError
from evolve.evaluation.check import Inspector
from evolve.evaluation.chosen_inputs import (
    Pair,
    check_declared,
    check_edge,
    check_extremes,
    check_long,
    check_missing,
    check_parameters,
    check_size_of_one,
    check_stretched,
    check_tails,
)
from evolve.evaluation.compiling import Compilation, Compiled, Shapes, traits, verdict_on, with_declared
from evolve.evaluation.confirm import Beyond, check_beyond, confirmation
from evolve.evaluation.evaluator import Evaluator
from evolve.evaluation.timing import measure
from evolve.evaluation.truth import defined
from reference_ops import catalog
from reference_ops.op import NORMAL, Op, Workload

WARM_UP, FLOAT32 = "softmax", "float32"
SLOWER = (
    "note: another setting of its knobs is clearly faster everywhere, so this setting was checked in only a few calls"
)


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
        programs = check_drawn(compilation, shapes, programs, inspector, check)
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

    The smallest workload comes first: most faults show there, and then nothing else is compiled. Only its program needs
    traits, besides those for the declared workloads.
    """
    passed: list[Pair] = []
    for workload in workloads:
        watch("compile")
        pairs = (compilation.without_traits() if passed else compilation).at((workload,))
        check(pairs)
        passed += pairs
    watch("compile")
    return tuple(passed)


def check_drawn(
    compilation: Compilation[Program],
    shapes: Shapes,
    listed: Compiled[Program],
    inspector: Inspector,
    check: Callable[[Sequence[Pair]], None],
) -> Compiled[Program]:
    """Compile for each drawn workload that the op accepts, after the program for the previous one has been checked.

    At special parameters and edges, results must also be finite. The rows for slow tools are only compiled.
    """
    op, drawn = compilation.op, compilation.without_traits()

    def checked(
        workloads: Iterable[Workload], judge: Callable[[Pair, Op, Inspector], None] | None, *, finite: bool = False
    ) -> tuple[Pair, ...]:
        passed = list[Pair]()
        for workload in workloads:
            inspector.watch("compile")
            if defined(op, workload, inspector.device.torch_device, finite=finite):
                for pair in drawn.at((workload,)):
                    if judge:
                        judge(pair, op, inspector)
                    passed.append(pair)
        return tuple(passed)

    for pair in listed.awkward:
        check_size_of_one(pair, op, inspector)
    return replace(
        listed,
        held_out=checked(shapes.held_out, lambda pair, *_: check((pair,))),
        long=checked(shapes.long, check_long),
        once=checked(shapes.once, check_parameters, finite=True),
        edges=checked(shapes.edges, check_edge, finite=True),
        stretched=checked(shapes.stretched, check_stretched),
        thin=checked(shapes.thin, None),
    )


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
        measurements.append(measure(inspector, program, op, workload, times, bar_us, len(declared)))
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
