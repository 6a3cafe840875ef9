"""Which kernel runs for a workload: the nearest measurement on the same GPU decides. Pure, so it needs no GPU."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archive.binding import Bound, IllegalError, Point, accepts, bind
from archive.kernel import Kernel
from archive.plan import PlanError
from evolve.export.template.calls import NoKernelError
from evolve.export.template.manifest import Entry, Measured, Shipped
from reference_ops.op import Workload

Row = tuple[Shipped | None, Measured]


@dataclass(frozen=True)
class Question:
    """What is to be computed, and where."""

    device: str  # the GPU's name
    workload: Workload
    point: Point
    deterministic: bool  # only kernels that gave the same bits whenever they ran


@dataclass(frozen=True)
class Choice:
    """A kernel that can take on the workload, and the measurement that speaks for it."""

    shipped: Shipped
    measured: Measured
    bound: Bound


def choices(entry: Entry, kernels: Mapping[str, Kernel], question: Question) -> Iterator[Choice]:
    """The kernels to try, best first. Where none is left, a NoKernelError says why."""
    refusals: list[str] = []
    for shipped, measured in _ranked(_comparable(entry, question), question.workload):
        if shipped is None or not measured.wins:
            raise NoKernelError(f"PyTorch was the fastest at {measured.times.workload}, the nearest that was measured")
        if question.deterministic and not measured.deterministic:
            refusals.append(f"{shipped.id} is not known to be deterministic")
            continue
        try:
            if accepts(kernels[shipped.id], question.point):
                yield Choice(shipped, measured, bind(kernels[shipped.id], question.point))
                refusals.append(f"{shipped.id} breaks a limit of the GPU here")
            else:
                refusals.append(f"{shipped.id} does not accept {question.workload.key}")
        except (IllegalError, PlanError) as error:
            refusals.append(f"{shipped.id} cannot be launched here: {error}")
    raise NoKernelError("; ".join(dict.fromkeys(refusals)))


def _comparable(entry: Entry, question: Question) -> list[Row]:
    """What was measured on this GPU, at this dtype, with these parameters."""
    workload = question.workload
    rows = list(entry.table())
    rows, devices = _kept(rows, [m.device for _, m in rows], question.device)
    if not rows:
        raise NoKernelError(f"nothing was measured on {question.device}, only on {devices}")
    rows, dtypes = _kept(rows, [m.dtype for _, m in rows], workload.dtype)
    if not rows:
        raise NoKernelError(f"nothing was measured at {workload.dtype}, only at {dtypes}")
    rows, parameters = _kept(rows, [m.parameters for _, m in rows], dict(workload.parameters))
    if not rows:
        raise NoKernelError(f"nothing was measured with {dict(workload.parameters)}, only with {parameters}")
    return rows


def _kept(rows: list[Row], values: list[object], wanted: object) -> tuple[list[Row], str]:
    """The rows that have the wanted value, and all the values that there were."""
    kept = [row for row, value in zip(rows, values, strict=True) if value == wanted]
    return kept, ", ".join(dict.fromkeys(str(value) for value in values))


def _ranked(rows: list[Row], workload: Workload) -> list[Row]:
    """Nearest first; among equally near ones the fastest."""
    return sorted(rows, key=lambda row: (_distance(row[1].dims, dict(workload.dims)), row[1].times.median_us))


def _distance(measured: Mapping[str, int], wanted: Mapping[str, int]) -> float:
    """How far apart two points are, in factors rather than differences: 1 to 2 is as far as 1000 to 2000."""
    return math.hypot(*(math.log(measured[name] / size) for name, size in wanted.items()))
