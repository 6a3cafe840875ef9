"""Extremes: the check of a kernel on inputs that random draws never contain, such as NaN, zeros and one hub."""

import itertools

from evolve.devices.device import Program
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled
from reference_ops.op import Op, Workload

SMALL_BYTES = 2**22  # of a workload that meets every extreme
Pair = tuple[Workload, Program]


def check_extremes(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check every extreme once per dtype at a small workload.

    Raises RejectedError at the first fault.
    """
    everywhere = programs.awkward or (*programs.held_out, *programs.declared)
    for dtype in dict.fromkeys(workload.dtype for workload, _ in everywhere):
        workload, program = _chosen([pair for pair in everywhere if pair[0].dtype == dtype], op, inspector)
        inspector.check_on(program, op, workload, op.extremes)


def check_arrangements(programs: Compiled[Program], op: Op, inspector: Inspector) -> None:
    """Check all arrangements where one dim is long, and one in turn, or an extreme, at each declared workload."""
    for workload, program in programs.stretched:
        inspector.check_on(program, op, workload, op.arranged)
    names = sorted(inspector.rng.sample(op.extremes, len(op.extremes)), key=lambda name: name not in op.arranged)
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
