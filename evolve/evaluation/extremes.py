"""Extremes: the check of a kernel on inputs that random draws never contain, such as NaN, zeros and one hub."""

import itertools

from evolve.devices.device import Program
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled
from reference_ops.inputs import meets_extremes_by_rows
from reference_ops.op import EXTREME_ROWS, NORMAL, Op, Workload

SMALL_BYTES = 2**22  # of a workload that meets every extreme
Pair = tuple[Workload, Program]


def check_extremes(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check every extreme and every arrangement once per dtype at a small workload, for one dtype in a CUDA graph.

    Where rows are independent, one draw has rows of every extreme. Raises RejectedError at the first fault.
    """
    everywhere = (*programs.awkward, *programs.declared)  # listed shapes: a fault there holds for all equal code
    dtypes = list(dict.fromkeys(workload.dtype for workload, _ in everywhere))
    graphed = inspector.rng.choice(dtypes)
    for dtype in dtypes:
        own = [pair for pair in everywhere if pair[0].dtype == dtype]
        in_rows = [pair for pair in own if meets_extremes_by_rows(op, pair[0])]
        if small := [pair for pair in in_rows if op.nbytes(pair[0]) <= SMALL_BYTES]:
            workload, program = inspector.rng.choice(small)
            inspector.check_on(program, op, workload, (EXTREME_ROWS,), in_graph=dtype == graphed)
            workload, program = _chosen(own, op, inspector)
            inspector.check_on(program, op, workload, op.arranged)
        else:
            awkward = [pair for pair in programs.awkward if pair[0].dtype == dtype]
            workload, program = _chosen(awkward or own, op, inspector)
            inspector.check_on(program, op, workload, (*op.extremes, *op.arranged), in_graph=dtype == graphed)


def check_stretched(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check every arrangement where one dim is long, and rows of every extreme, or normal inputs if rows are few."""
    for workload, program in programs.stretched:
        numbers = EXTREME_ROWS if meets_extremes_by_rows(op, workload) else NORMAL
        inspector.check_on(program, op, workload, (numbers, *op.arranged))


def check_declared(programs: Compiled[Program], op: Op, inspector: Inspector, *, confirm: bool) -> None:
    """Check the arrangements at the declared workloads, one at each in turn; to confirm, the extremes too."""
    names = inspector.rng.sample([*op.arranged], len(op.arranged))
    if confirm:
        names += inspector.rng.sample(op.extremes, len(op.extremes))
    for (workload, program), name in zip(programs.declared, itertools.cycle(names), strict=False):
        inspector.check_on(program, op, workload, (name,))


def check_missing(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check each distribution that no group of rows has met, at the smallest workload: a kernel may accept few."""
    met = {check.values for check in inspector.checks}
    everywhere = (*programs.awkward, *programs.held_out, *programs.declared)
    workload, program = min(everywhere, key=lambda pair: op.nbytes(pair[0]))
    inspector.check_on(program, op, workload, [name for name in op.values if name not in met])


def _chosen(pairs: list[Pair], op: Op, inspector: Inspector) -> Pair:
    """Return one of the larger small workloads, where an index or a mask has room; else the smallest of all."""
    in_order = sorted(pairs, key=lambda pair: op.nbytes(pair[0]))
    small = [pair for pair in in_order if op.nbytes(pair[0]) <= SMALL_BYTES] or in_order[:1]
    return inspector.rng.choice(small[len(small) // 2 :])
