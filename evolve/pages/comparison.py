"""Comparisons of two kernels, of two runs, or of the devices of an op."""

from collections.abc import Sequence
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation, Measurement
from archive.runs import Run
from archive.store import Store
from archive.summaries import EvaluationSummary
from evolve import budget
from evolve.pages.overview import ChampionTime, OpLine, op_line
from evolve.pages.run_page import Quality, qualities
from evolve.report.basis import Basis, known_basis
from evolve.report.standing import basis_of, devices


@dataclass(frozen=True)
class TimePair:
    """The times of two kernels on one workload of one device; None where a kernel has none."""

    workload: str
    a: Measurement | None
    b: Measurement | None

    @property
    def ratio(self) -> float | None:
        """The speedup of the second kernel over the first."""
        return self.a.median_us / self.b.median_us if self.a and self.b else None

    @property
    def certain(self) -> bool:
        """Whether the intervals of the two times do not overlap."""
        return bool(self.a and self.b and (self.a.high_us < self.b.low_us or self.b.high_us < self.a.low_us))


@dataclass(frozen=True)
class OnDevice:
    """Two kernels on one device."""

    device: DeviceInfo
    outcomes: tuple[str, str]
    times: tuple[TimePair, ...]


@dataclass(frozen=True)
class KernelComparison:
    a: Kernel
    b: Kernel
    on: tuple[OnDevice, ...]


def kernels_compared(store: Store, a: str, b: str) -> KernelComparison | None:
    """Read two kernels by their whole ids; None if the archive lacks one."""
    found = {kernel.id: kernel for kernel in store.find(Kernel, ids=[a, b])}
    if a not in found or b not in found:
        return None
    evaluations = store.find(Evaluation, kernels=[a, b])
    latest = {(one.device.key, one.kernel_id): one for one in evaluations}
    infos = {one.device.key: one.device for one in evaluations}
    return KernelComparison(
        found[a], found[b],
        tuple(_on(info, latest.get((key, a)), latest.get((key, b))) for key, info in infos.items()),
    )  # fmt: skip


def _on(device: DeviceInfo, a: Evaluation | None, b: Evaluation | None) -> OnDevice:
    timed = [{m.workload: m for m in one.measurements} if one else {} for one in (a, b)]
    workloads = dict.fromkeys([*timed[0], *timed[1]])
    outcomes = (str(a.outcome) if a else "not evaluated", str(b.outcome) if b else "not evaluated")
    return OnDevice(device, outcomes, tuple(TimePair(one, timed[0].get(one), timed[1].get(one)) for one in workloads))


@dataclass(frozen=True)
class RunSide:
    """One of the runs that are compared."""

    run: Run
    spent: budget.Spent
    qualities: tuple[Quality, ...]

    @property
    def best(self) -> float | None:
        return self.qualities[-1].best if self.qualities else None


@dataclass(frozen=True)
class RunComparison:
    sides: tuple[RunSide, ...]
    basis: Basis


def runs_compared(store: Store, a: str, b: str) -> RunComparison | None:
    """Read two runs of one op on one device by their whole ids; None if the archive lacks one of them."""
    found = {run.id: run for run in store.find(Run, ids=[a, b])}
    if len(found) < 2 or len({(run.op, run.device) for run in found.values()}) > 1:
        return None
    op, device = found[a].op, found[a].device
    info = next((one for one in store.find(DeviceInfo, op) if one.key == device), None)
    basis = basis_of(store, op, info) if info else known_basis(device.partition(" ")[0])
    past = budget.history(store, op, device)
    return RunComparison(tuple(_side(store, found[one], past, basis) for one in (a, b)), basis)


def _side(store: Store, run: Run, past: budget.History, basis: Basis) -> RunSide:
    own = [one.kernel_id for one in past.of_run.get(run.id, ()) if one.kernel_id]
    verdicts = store.find(EvaluationSummary, kernels=own, device=run.device, in_force=True)
    return RunSide(
        run,
        budget.spent(run.id, past),
        tuple(qualities(run, past, {one.kernel_id: one for one in verdicts}, basis)),
    )


@dataclass(frozen=True)
class DeviceRow:
    """A kernel that is champion on some device, with its mean ratio over the workloads on each device."""

    kernel_id: str
    means: tuple[float | None, ...]
    leads: tuple[int, ...]  # for each device, the number of workloads of which it is the champion


@dataclass(frozen=True)
class DeviceComparison:
    op: str
    lines: tuple[OpLine, ...]
    workloads: tuple[str, ...]
    champions: tuple[tuple[ChampionTime | None, ...], ...]  # rows by workload, columns by device
    rows: tuple[DeviceRow, ...]


def devices_compared(store: Store, op: str) -> DeviceComparison | None:
    """Read the champions of an op on each of its devices; None if there are fewer than two."""
    found = devices(store, op)
    if len(found) < 2:
        return None
    lines = [op_line(store, op, info) for info in found]
    held = [{one.workload: one for one in line.champions} for line in lines]
    workloads = tuple(dict.fromkeys(one.workload for line in lines for one in line.champions))
    return DeviceComparison(
        op,
        tuple(lines),
        workloads,
        tuple(tuple(of_device.get(workload) for of_device in held) for workload in workloads),
        tuple(_rows(store, op, lines)),
    )


def _rows(store: Store, op: str, lines: Sequence[OpLine]) -> list[DeviceRow]:
    kernels = list(dict.fromkeys(one.kernel_id for line in lines for one in line.champions))
    means = []
    for line in lines:
        basis = basis_of(store, op, line.device)
        verdicts = store.find(EvaluationSummary, op, device=line.device.key, in_force=True, kernels=kernels)
        means.append({one.kernel_id: basis.mean(one) for one in verdicts if one.passed})
    leads = [[sum(one.kernel_id == kernel for one in line.champions) for line in lines] for kernel in kernels]
    return [
        DeviceRow(kernel, tuple(of_device.get(kernel) for of_device in means), tuple(led))
        for kernel, led in zip(kernels, leads, strict=True)
    ]
