"""Choice of a kernel for one workload: the kernel that was fastest at the nearest measured sizes, or none."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archive.binding import IllegalError, Point, accepts, bind
from archive.kernel import Bound, Kernel
from archive.plan import PlanError
from evolve.export.template.calls import NoKernelError
from evolve.export.template.forms import BYTES_PER_US
from evolve.export.template.manifest import ExportedEntry, Measured, Shipped
from evolve.export.template.options import Options
from reference_ops.op import Number, Workload

Row = tuple[Shipped | None, Measured]
# Parameters that count calls. No size depends on them, so they may exceed the tested values.
COUNTERS = ("step",)


@dataclass(frozen=True)
class Question:
    """A workload on one device for which to choose a kernel."""

    op: str
    device: str  # name of the device
    workload: Workload
    point: Point
    options: Options
    elements: Mapping[str, int]  # number of elements of each tensor
    free: Mapping[str, frozenset[str]]  # free parameters of each kernel; key: its id, or "" for PyTorch
    compiled: bool = False  # whether the call is in torch.compile, whose code is then the alternative
    sizes: frozenset[str] = frozenset()  # parameters that are the size of a tensor, such as `k` of topk
    arch: str = ""  # architecture of the device
    # the backward's kernel decides; a kernel of the forward need not win, but must not be slow
    for_backward: bool = False

    @property
    def tunes(self) -> bool:
        """Whether times measured on this machine decide."""
        return self.options.autotune and not self.compiled and not self.options.pinned(self.op)

    @property
    def is_free(self) -> bool:
        """Whether kernels that did not win may be tried."""
        return self.tunes or self.for_backward or bool(self.options.pinned(self.op))


@dataclass(frozen=True)
class Choice:
    """A kernel that accepts the workload, and the measurement for which it was chosen."""

    shipped: Shipped
    measured: Measured
    bound: Bound


def choices(entry: ExportedEntry, kernels: Mapping[str, Kernel], question: Question) -> Iterator[Choice]:
    """Yield the kernels to try, best first, then raise a NoKernelError with the reason why each was refused.

    With autotuning, all allowed kernels are tried, otherwise those up to the nearest size at which PyTorch was the
    fastest.
    """
    if refusal := question.options.refusal(question.op):
        raise NoKernelError(refusal)
    pinned = question.options.pinned(question.op)
    if pinned and pinned not in kernels:
        raise NoKernelError(f"the options pin {question.op} to {pinned}, which the package does not have")
    free, faster = question.is_free, "torch.compile" if question.compiled else "PyTorch"
    refusals: list[str] = []
    tried: set[str] = set()
    for shipped, measured in _ranked(_comparable(entry, question), question):
        if not free and (shipped is None or not measured.beats_pytorch(compiled=question.compiled)):
            raise NoKernelError(f"{faster} was the fastest at {measured.times.workload}, the nearest that was measured")
        if shipped is None or shipped.id in tried:
            continue
        tried.add(shipped.id)
        found = _choice(shipped, measured, kernels[shipped.id], question)
        if isinstance(found, str):
            refusals.append(f"{shipped.id} {found}")
        else:
            yield found
            refusals.append(f"{shipped.id} exceeds a limit of this device")
    raise NoKernelError("; ".join(dict.fromkeys(refusals)) or "PyTorch was the fastest at every measured size")


def nearest(entry: ExportedEntry, question: Question) -> Measured:
    """Return the measurement at the nearest sizes, of any kernel. Raise a NoKernelError if there is none."""
    return _ranked(_comparable(entry, question), question)[0][1]


def bytes_per_us(entry: ExportedEntry, device: str) -> float:
    """Return the bandwidth of copies that was measured on a device, or that of a slow GPU."""
    tested = (one for kernel in entry.kernels for one in kernel.tested if one.device == device)
    return next((one.copy_gb_s * 1e3 for one in tested if one.copy_gb_s), BYTES_PER_US)


def _choice(shipped: Shipped, measured: Measured, kernel: Kernel, question: Question) -> Choice | str:
    """Return the choice of a kernel, or the reason why it cannot be chosen."""
    if refusal := _refused(shipped, measured, question):
        return refusal
    try:
        if not accepts(kernel, question.point):
            return f"does not accept {question.workload.key}"
        bound = bind(kernel, question.point)
    except (IllegalError, PlanError) as error:
        return f"cannot be launched here: {error}"
    limit = question.options.workspace_limit
    if limit is not None and _workspace(bound) > limit:
        return f"needs {_workspace(bound)} bytes of workspace, and {limit} are allowed"
    return Choice(shipped, measured, bound)


def _refused(shipped: Shipped, measured: Measured, question: Question) -> str:
    """Return the reason why the options or the tests exclude a kernel; empty if they do not."""
    pinned = question.options.pinned(question.op)
    if pinned and shipped.id != pinned:
        return f"is excluded, because the options pin {question.op} to {pinned}"
    if question.options.is_deterministic and not measured.deterministic:
        return "is not known to be deterministic"
    if question.for_backward and measured.times.median_us > measured.times.eager_us:
        return f"was slower than eager PyTorch at {measured.times.workload}"
    excess = _beyond(shipped, measured, question)
    return f"is refused: {excess}" if excess else ""


def _workspace(bound: Bound) -> int:
    return sum(workspace.nbytes for workspace in bound.workspace)


def _beyond(shipped: Shipped, measured: Measured, question: Question) -> str:
    """Return a description of what exceeds every envelope of the kernel's tests, or an empty string."""
    integers = [(name, value) for name, value in question.workload.parameters if isinstance(value, int)]
    sizes = {name: value for name, value in (*question.workload.dims, *integers) if name not in COUNTERS}
    tested = [found.envelope for found in shipped.tested if found.device == measured.device and found.envelope]
    found = [envelope.excess(sizes, question.elements) for envelope in tested]
    return found[0] if found and all(found) else ""


def _comparable(entry: ExportedEntry, question: Question) -> list[Row]:
    """Return the measurements on this device with this dtype and these parameters; free parameters need not match."""
    workload = question.workload
    rows = list(entry.table())
    if not rows:
        raise NoKernelError("the package has no kernel for it")
    every = [measured for _, measured in rows]
    is_here = [measured.device == question.device for measured in every]
    # A kernel that was not measured here may be tried if the options allow it: the machine code is the same.
    is_alike = [bool(question.options.pinned(question.op)) or measured.arch == question.arch for measured in every]
    if question.is_free and not question.for_backward and not any(is_here):
        is_here = is_alike
    rows, devices = _kept(rows, is_here, [measured.device for measured in every])
    if not rows:
        hint = "; options(autotune=True) measures such kernels here" if any(is_alike) else ""
        raise NoKernelError(f"nothing was measured on {question.device}, only on {devices}{hint}")
    rows, dtypes = _kept(rows, [m.dtype == workload.dtype for _, m in rows], [m.dtype for _, m in rows])
    if not rows:
        raise NoKernelError(f"nothing was measured at {workload.dtype}, only at {dtypes}")
    rows, parameters = _kept(rows, [_alike(row, question) for row in rows], [m.parameters for _, m in rows])
    if not rows:
        raise NoKernelError(f"nothing was measured with {dict(workload.parameters)}, only with {parameters}")
    return rows


def _alike(row: Row, question: Question) -> bool:
    """Return whether all parameters that are not free have the values with which they were measured."""
    shipped, measured = row
    free = question.free[shipped.id if shipped else ""] | question.sizes
    return all(measured.parameters.get(name) == v for name, v in question.workload.parameters if name not in free)


def _kept(rows: list[Row], matches: list[bool], values: list[object]) -> tuple[list[Row], str]:
    """Return the matching rows, and a list of all values."""
    kept = [row for row, matched in zip(rows, matches, strict=True) if matched]
    return kept, ", ".join(dict.fromkeys(str(value) for value in values))


def _ranked(rows: list[Row], question: Question) -> list[Row]:
    """Return the rows sorted by distance from the workload, then by parameters in common, then by time."""
    parameters = dict(question.workload.parameters)
    sizes = dict(question.workload.dims) | {name: int(parameters[name]) for name in question.sizes}
    return sorted(
        rows,
        key=lambda row: (
            _distance({**row[1].parameters, **row[1].dims}, sizes),
            _different(row[1].parameters, parameters),
            row[1].times.median_us,
        ),
    )


def _distance(measured: Mapping[str, Number], requested: Mapping[str, int]) -> float:
    """Return a distance based on ratios of sizes: 1 and 2 are as far apart as 1000 and 2000."""
    return math.hypot(*(math.log(measured[name] / size) for name, size in requested.items()))


def _different(measured: Mapping[str, Number], requested: Mapping[str, Number]) -> int:
    return sum(measured.get(name) != value for name, value in requested.items())
