"""Verification: checks and times champions again on this device, and compares the results with the known ones.

The new verdicts are archived like all others, so only a kernel that wins on this device remains its champion.
"""

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from archive import library
from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo, Evaluation, Measurement, Outcome
from archive.runs import Budget, Run, Scope
from archive.store import Store, evaluations_of
from archive.summaries import KernelSummary, RankedTimes
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines.engine import Engine, Job
from evolve.export.template import manifest
from evolve.loop import evolve
from evolve.proposers.tell import TELL
from evolve.request import Proposer
from evolve.search import Search
from evolve.selection import population
from evolve.selection.sharing import Share
from evolve.selection.view import OpView
from reference_ops.op import Op

NOT_HERE = (Outcome.UNSUPPORTED, Outcome.ILLEGAL)  # outcomes that may not occur on another device
SLOWER = 1.05  # factor of the upper end of the old interval above which a time is a regression


class Status(StrEnum):
    """The result for a workload's champion."""

    WINS = "wins"  # it beats PyTorch on this device
    PYTORCH = "PyTorch"  # PyTorch is as fast here, so the kernel is not used; it was not known to win on this device
    SLOWER = "slower"  # slower than before on this device: a regression
    LOST = "no longer wins"  # it no longer beats PyTorch, which it did on this device: a regression
    FAILED = "failed"  # it is wrong, or cannot run
    REFUSED = "refused"  # the kernel does not accept the workload on this device, or there is no time for it
    CHECKED = "checked"  # the kernel is right; this device has no GPU times
    LEFT = "not reached"  # the time limit was reached before

    @property
    def is_regression(self) -> bool:
        return self in (Status.SLOWER, Status.LOST, Status.FAILED)


@dataclass(frozen=True)
class Known:
    """A time that was known before the verification."""

    kernel_id: str
    device: str  # name
    measurement: Measurement
    won: bool
    here: bool  # measured on a device with the same key as this one


@dataclass(frozen=True)
class Task:
    """The kernels of one op to verify, with their known times by workload."""

    op: str
    kernels: tuple[Kernel, ...]
    known: Mapping[str, Known]
    unsupported: tuple[str, ...] = ()  # ids of kernels that this device cannot run


@dataclass(frozen=True)
class Row:
    """A workload before and after the verification; on a device without GPU times, a kernel."""

    op: str
    status: Status
    kernel_id: str  # id of the previous champion
    workload: str = ""
    before: Known | None = None
    after: Evaluation | None = None  # the verdict on the fastest verified kernel, or on one that failed

    @property
    def measurement(self) -> Measurement | None:
        """The new time."""
        found = self.after.measurements if self.after and self.workload else ()
        return next((one for one in found if one.workload == self.workload), None)


def from_archive(store: Store, op: str, device: DeviceInfo) -> Task | None:
    """Return an op's champions on the device, or on any GPU if it has none there, or else its shipped kernels."""
    infos = {info.key: info for info in store.find(DeviceInfo, op)}
    gpus = [info for info in infos.values() if policy_of(info.kind).times_are_gpu_times]
    own = [info for info in infos.values() if info.key == device.key]
    on_gpu = policy_of(device.kind).times_are_gpu_times
    for devices in (own, gpus) if on_gpu else (gpus, own):
        known: dict[str, Known] = {}
        kernels: dict[str, None] = {}
        for info in devices:
            leaders = population.leaders(store.find(RankedTimes, op, device=info.key))
            kernels |= dict.fromkeys(one.kernel_id for one in leaders.values())
            found = evaluations_of(store, leaders.values())
            known |= {w: _known(found[one.id], w, device) for w, one in leaders.items()}
        if kernels:
            return _task(op, store.find(Kernel, op, ids=kernels), known, device)
    ids = [kernel.id for kernel in library.shipped(op)]
    shipped = store.find(Kernel, op, ids=ids)
    return _task(op, shipped, {}, device) if shipped else None


def from_package(folder: Path, device: DeviceInfo) -> list[Task]:
    """Return the kernels of an exported package, with the times in its manifest."""
    tasks = []
    for op, entry in manifest.read(folder).items():
        known: dict[str, Known] = {}
        for shipped in entry.kernels:
            for one in shipped.measured:
                here = one.device == device.name and policy_of(device.kind).times_are_gpu_times
                found = Known(shipped.id, one.device, one.times, one.wins, here)
                held = known.get(one.times.workload)
                if held is None or _rank(found) < _rank(held):
                    known[one.times.workload] = found
        kernels = [shipped.load(folder) for shipped in entry.kernels]
        if kernels:
            tasks.append(_task(op, kernels, known, device))
    return tasks


def _rank(known: Known) -> tuple[bool, bool, float]:
    return not known.here, not known.won, known.measurement.median_us


def _known(evaluation: Evaluation, workload: str, device: DeviceInfo) -> Known:
    champion = population.champion(workload, evaluation)
    here = evaluation.device.key == device.key
    return Known(champion.kernel_id, evaluation.device.name, champion.measurement, champion.won, here)


def _task(op: str, kernels: Sequence[Kernel], known: Mapping[str, Known], device: DeviceInfo) -> Task:
    supported = tuple(kernel for kernel in kernels if choose.supports(device.kind, kernel))
    ids = {kernel.id for kernel in supported}
    return Task(op, supported, known, tuple(kernel.id for kernel in kernels if kernel.id not in ids))


@dataclass(frozen=True)
class Workers:
    """The engine that gives verdicts, the archive that stores them, and the division of the work among processes."""

    engine: Engine
    store: Store
    share: Share


def verified(task: Task, locator: str, work: Workers, deadline: float) -> Iterator[Evaluation]:
    """Yield a new verdict on each kernel once it is archived. No evaluation begins after the deadline."""
    store, share = work.store, work.share
    archived = {one.id for one in store.find(KernelSummary, task.op, ids=[kernel.id for kernel in task.kernels])}
    new = [kernel for kernel in task.kernels if kernel.id not in archived]
    store.append(*(Proposal(task.op, TELL, TELL, kernel, created=time.time()) for kernel in new))
    view = OpView(store, task.op, work.engine.info)
    view.known()
    jobs = (
        Job(kernel, locator, confirm=True)
        for kernel in task.kernels
        if time.monotonic() < deadline and share.take(view, kernel.id, view.last_read(kernel.id))
    )
    for verdict in share.judged(view, work.engine.evaluate(jobs)):
        store.append(verdict)
        yield verdict


def retuned(op: Op, locator: str, tuner: Proposer, work: Workers, seconds: float) -> Iterator[Evaluation]:
    """Let the tuner vary the knobs of the op's kernels for this long, and yield each verdict."""
    limit, info = Budget(seconds=seconds), work.engine.info
    run = Run(
        secrets.token_hex(4), op.name, info.key, tuner.name, 0, time.time(), budget=limit, words=(locator,)
    )  # fmt: skip
    work.store.append(run)
    deadline = time.monotonic() + seconds
    search = Search(run.id, op, locator, 0, limit, deadline, scope=Scope(run.id), share=work.share)
    for event in evolve(search, (), tuner, work.engine, work.store):
        if isinstance(event, Evaluation):
            yield event


def rows(task: Task, verdicts: Iterable[Evaluation], device: DeviceInfo) -> list[Row]:
    """Compare the known times with the new verdicts. The last verdict on a kernel counts."""
    latest = {verdict.kernel_id: verdict for verdict in verdicts}
    if not policy_of(device.kind).times_are_gpu_times:
        refused = [Row(task.op, Status.REFUSED, kernel_id) for kernel_id in task.unsupported]
        return [*(_checked(task.op, kernel.id, latest.get(kernel.id)) for kernel in task.kernels), *refused]
    fastest = population.leaders(latest.values())
    found = [_row(task, workload, known, latest, fastest) for workload, known in task.known.items()]
    new = [workload for workload in fastest if workload not in task.known]
    found += [_row(task, workload, None, latest, fastest) for workload in new]
    named = {row.kernel_id for row in found}
    return found + [
        Row(task.op, Status.FAILED, kernel.id, after=latest[kernel.id])
        for kernel in task.kernels
        if kernel.id not in named and kernel.id in latest and not latest[kernel.id].passed
    ]


def _row(
    task: Task, workload: str, known: Known | None, latest: Mapping[str, Evaluation], fastest: Mapping[str, Evaluation]
) -> Row:
    best = fastest.get(workload)
    before = known.kernel_id if known else best.kernel_id if best else ""
    verdict = latest.get(before)
    if verdict and not verdict.passed and verdict.outcome not in NOT_HERE:
        return Row(task.op, Status.FAILED, before, workload, known, verdict)
    if verdict is None and before not in task.unsupported:
        return Row(task.op, Status.LEFT, before, workload, known)
    if best is None:
        return Row(task.op, Status.REFUSED, before, workload, known, verdict)
    return Row(task.op, _status(known, best, workload), before, workload, known, best)


def _status(known: Known | None, best: Evaluation, workload: str) -> Status:
    champion = population.champion(workload, best)
    if known and known.here and champion.measurement.low_us > SLOWER * known.measurement.high_us:
        return Status.SLOWER
    if champion.won:
        return Status.WINS
    return Status.LOST if known and known.here and known.won else Status.PYTORCH


def _checked(op: str, kernel_id: str, verdict: Evaluation | None) -> Row:
    if verdict is None:
        return Row(op, Status.LEFT, kernel_id)
    if verdict.outcome in NOT_HERE:
        return Row(op, Status.REFUSED, kernel_id, after=verdict)
    return Row(op, Status.CHECKED if verdict.passed else Status.FAILED, kernel_id, after=verdict)
