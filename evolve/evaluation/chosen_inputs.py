"""Inputs of an evaluation: on which distributions, extremes and arrangements a program is checked at which workload."""

import itertools

from evolve.devices.device import Program
from evolve.evaluation.check import Inspector
from evolve.evaluation.compiling import Compiled
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
from reference_ops.parameters import extremes_that_matter
from reference_ops.rows import without_rows
from reference_ops.shapes import integers_of

EXTREMES_AT_ONCE = 2  # number of extremes at a declared workload whose rows depend on each other
ROWS_WITH_TAILS = 4  # enough for two inputs to have NaN in different rows, beside rows without NaN
SMALL_BYTES = 2**22  # size of a workload at which every extreme is checked
# NaN occurs three times: at the end of a row, at its beginning, and in between.
OF_A_SINGLE_ROW = (LARGE, SHIFTED, "far_below", "masked", NAN, NAN, NAN, INFINITE, MINUS_INF, CLASHING)
Pair = tuple[Workload, Program]


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


def check_long(pair: Pair, op: Op, inspector: Inspector) -> None:
    """Check long rows on all distributions and NaN, and a single row on values that other rows can hide."""
    workload, program = pair
    alone = [name for name in OF_A_SINGLE_ROW if name in (*op.values, *op.extremes)]
    several = (MIXED, NAN) if NAN in op.extremes else (MIXED,)
    inspector.check_on(program, op, workload, alone if op.shape(op.varied[0], workload)[0] == 1 else several)


def check_parameters(pair: Pair, op: Op, inspector: Inspector) -> None:
    """Check special parameters and sizes beyond few bits on normal inputs.

    A vanishing term is also checked on inputs that are not finite, whose product with zero is NaN, a negative parameter
    on infinities, and a size beyond 16 bits with the last index everywhere.
    """
    workload, program = pair
    names = [NORMAL, *extremes_that_matter(op, workload)]
    names += [name for name in op.arrangements if name.endswith(ALL_LAST) and exceeds_16_bits(op, workload)]
    inspector.check_on(program, op, workload, names)


def check_edge(pair: Pair, op: Op, inspector: Inspector) -> None:
    """Check an edge on normal inputs, and a size of 1 on a few extremes."""
    workload, program = pair
    inspector.check_on(program, op, workload, (NORMAL,))
    check_size_of_one(pair, op, inspector)


def check_size_of_one(pair: Pair, op: Op, inspector: Inspector) -> None:
    """Check a few extremes if a size is 1, which is a special case in kernels."""
    workload, program = pair
    if 1 in (*op.sizes(workload).values(), *dict(integers_of(workload)).values()):
        inspector.check_on(program, op, workload, _few_extremes(op), few=True)


def _few_extremes(op: Op) -> tuple[str, ...]:
    """Return the inputs that are checked where a size is 1: rows of extremes, or NaN and numbers far from zero."""
    if has_rows_of_extremes(op):
        return (EXTREME_ROWS,)
    met = (*op.values, *op.extremes)
    far = [name for name in (SHIFTED_COLUMNS, SHIFTED) if name in met][:1]
    return (*far, *[name for name in (NAN,) if name in met])


def check_stretched(pair: Pair, op: Op, inspector: Inspector) -> None:
    """Check every arrangement where one dim is long, and rows of every extreme, or one extreme if there are few rows.

    Of the arrangements of weights, and of special values that meet, only one each is checked, because they depend
    little on the length.
    """
    workload, program = pair
    listed = max(op.shape(op.varied[0], other)[:1] for other in op.listed)
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
