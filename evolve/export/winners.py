"""Selection of kernels for export: the confirmed kernels that beat PyTorch on a GPU, with their times."""

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence

from archive.binding import IllegalError, accepts, bind, parse_for
from archive.kernel import Kernel
from archive.plan import PlanError
from archive.records import Evaluation, Merged
from archive.store import Store
from evolve.devices.choose import policy_of
from evolve.export.template.manifest import Measured, Shipped, Tested
from evolve.op_on_device import point, signature
from evolve.selection import population
from reference_ops import catalog
from reference_ops.op import Op

Row = tuple[str, Measured]  # a kernel's id and one of its times
Champions = Mapping[tuple[str, str], Row]  # key: the GPU's name and the workload


class NoWinnerError(Exception):
    """Raised when no kernel of an op can be exported; the message says why, and the hint says what to do."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint


def confirmed_on_gpus(
    op: Op, store: Store, kernels: Mapping[str, Kernel], *, trust_merged: bool = False
) -> list[Evaluation]:
    """Return the latest evaluations of confirmed kernels on GPUs. Raise a NoWinnerError if there is none.

    Evaluations from merged archives count only with `trust_merged`: a package should contain times measured here, or
    those that ship with evolve, which are marked as measured elsewhere.
    """
    named = shlex.quote(catalog.loaded_as(op))
    merged = set() if trust_merged else {one.evaluation_id for one in store.find(Merged, op.name)}
    every = [e for e in store.find(Evaluation, op.name) if policy_of(e.device.kind).times_are_gpu_times]
    on_gpus = [e for e in every if e.id not in merged]
    if not every:
        raise NoWinnerError("none of its kernels was evaluated on a GPU")
    if not on_gpus:
        raise NoWinnerError(
            "all its evaluations come from merged archives; none was made on this machine",
            f"run `evolve confirm {named}` to test the kernels on this machine's GPU; if the merged archives are "
            "your own, --trust-merged exports them without a test",
        )
    verdicts = [population.latest(on_gpus, key) for key in dict.fromkeys(e.device.key for e in on_gpus)]
    passed = [e for verdict in verdicts for e in verdict.values() if e.passed and e.kernel_id in kernels]
    if not any(list(_measured(op, kernels[e.kernel_id], e)) for e in passed):
        raise NoWinnerError("no kernel passed on a GPU at any current workload of the op")
    confirmed = [e for e in passed if e.confirmed]
    if not confirmed:
        raise NoWinnerError(
            "its champions are not confirmed yet", f"run `evolve confirm {named}` on the same GPU to test them again"
        )
    return confirmed


def rows(op: Op, evaluations: Sequence[Evaluation], kernels: Mapping[str, Kernel]) -> list[Row]:
    """Return every measured time of these evaluations, with the kernel's id."""
    return [(e.kernel_id, measured) for e in evaluations for measured in _measured(op, kernels[e.kernel_id], e)]


def fitting(op: Op, store: Store) -> dict[str, Kernel]:
    """Return the archive's kernels that fit the op's current definition."""
    return {kernel.id: kernel for kernel in store.find(Kernel, op.name) if _fits(kernel, op)}


def champions(rows: Sequence[Row]) -> Champions:
    """Return the fastest kernel for each GPU and workload."""
    best: dict[tuple[str, str], Row] = {}
    for kernel, measured in sorted(rows, key=lambda row: row[1].times.median_us):
        best.setdefault((measured.device, measured.times.workload), (kernel, measured))
    return best


def shipped(
    rows: Sequence[Row], best: Champions, kernels: Mapping[str, Kernel], evaluations: Sequence[Evaluation]
) -> tuple[Shipped, ...]:
    """Return the champions that beat PyTorch on some workload, with their times on all workloads that a kernel wins.

    A champion's time on a workload that another kernel wins is used where the other kernel refuses a nearby shape.
    """
    winners = dict.fromkeys(kernel for kernel, measured in best.values() if measured.wins_eager)
    if not winners:
        raise NoWinnerError(
            "no kernel was faster than eager PyTorch on a GPU, in a paired timing if eager PyTorch was the best "
            "baseline"
        )
    won = {place for place, (_, measured) in best.items() if measured.wins_eager}
    there = [(kernel, measured) for kernel, measured in rows if (measured.device, measured.times.workload) in won]
    return tuple(
        _shipped(
            kernels[winner],
            tuple(measured for kernel, measured in there if kernel == winner),
            tuple(_tested(evaluation) for evaluation in evaluations if evaluation.kernel_id == winner),
        )
        for winner in winners
    )


def pytorch_wins(best: Champions) -> tuple[Measured, ...]:
    """Return the champions' times on the workloads where PyTorch is faster."""
    return tuple(measured for _, measured in best.values() if not measured.wins_eager)


def _shipped(kernel: Kernel, measured: tuple[Measured, ...], tested: tuple[Tested, ...]) -> Shipped:
    return Shipped(
        id=kernel.id,
        file=f"kernels/{kernel.op}/{kernel.id}.cu",
        sha256=hashlib.sha256(kernel.text.encode()).hexdigest(),
        note=kernel.plan.note,
        when=kernel.plan.when,
        dtypes=kernel.plan.dtypes,
        measured=measured,
        tested=tested,
    )


def _tested(evaluation: Evaluation) -> Tested:
    confirmed = evaluation.confirmed
    return Tested(
        device=evaluation.device.name,
        outputs_judged=len(evaluation.checks),
        error=max((check.error / check.theirs for check in evaluation.checks if check.theirs), default=None),
        share_of_allowed=max((check.worst for check in evaluation.checks), default=None),
        held_out=confirmed.held_out if confirmed else (),
        sanitized=confirmed.sanitized if confirmed else (),
        envelope=evaluation.envelope,
        copy_gb_s=evaluation.device.copy_gb_s,
    )


def _measured(op: Op, kernel: Kernel, evaluation: Evaluation) -> Iterator[Measured]:
    """Yield the evaluation's times at the op's current workloads."""
    times = {measurement.workload: measurement for measurement in evaluation.measurements}
    for workload in op.gpu:
        if workload.key not in times:
            continue
        try:
            at = point(op, workload, evaluation.device)
            if not accepts(kernel, at):
                continue
            bound = bind(kernel, at)
        except (IllegalError, PlanError):  # the op has changed since the evaluation
            continue
        yield Measured(
            device=evaluation.device.name,
            arch=evaluation.device.arch,
            dtype=workload.dtype,
            dims=dict(workload.dims),
            parameters=dict(workload.parameters),
            times=times[workload.key],
            workspace_bytes=sum(workspace.nbytes for workspace in bound.workspace),
            deterministic=evaluation.deterministic,
            duel=evaluation.confirmed.duel(workload.key) if evaluation.confirmed else None,
            elsewhere=evaluation.shipped,
        )


def _fits(kernel: Kernel, op: Op) -> bool:
    try:
        parse_for(kernel.text, signature(op))
    except PlanError:
        return False
    return True
