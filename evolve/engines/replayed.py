"""Replay of a run on the archive as it was when the run began, with the verdicts of the recorded run."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from archive.kernel import Kernel, Proposal
from archive.records import SHIPPED, DeviceInfo, Evaluation, Merged, Profile, Standard
from archive.runs import Run
from archive.sqlite import SqliteStore, open_archive
from archive.store import Filters, R, Record, Store
from archive.summaries import EvaluationSummary, ProposalSummary
from evolve.engines.engine import Engine, Job


@dataclass(frozen=True)
class SeenStore:
    """A store from which readers get only the records that the recorded run had.

    Appended records are also added to the whole archive.
    """

    seen: Store
    whole: Store

    def append(self, *records: Record) -> int:
        self.seen.append(*records)
        return self.whole.append(*records)

    def find(self, kind: type[R], op: str = "", **filters: Unpack[Filters]) -> list[R]:
        return self.seen.find(kind, op, **filters)

    def count(self, kind: type[R], by: str, op: str = "", **filters: Unpack[Filters]) -> dict[str, int]:
        return self.seen.count(kind, by, op, **filters)


def seen_by(run: Run, whole: Store, device: DeviceInfo) -> SeenStore:
    """Return the archive as it was when the run began, limited to records that a search for the run's op reads."""
    proposals = [one for one in whole.find(Proposal, run.op) if one.created < run.created]
    seeded = {one.kernel_id for one in whole.find(ProposalSummary, proposer=SHIPPED) if one.created < run.created}
    found = [one for one in whole.find(Evaluation, run.op) if one.created < run.created]
    # A shipped verdict is older than the archive: if its kernel was there, the verdict was too.
    evaluations = [one for one in found if not one.shipped or one.kernel_id in seeded]
    donated = whole.find(Evaluation, ids=list(_best_of_others(run, whole, device, seeded)))
    evaluated = {one.kernel_id for one in (*evaluations, *donated)}
    kept = evaluated | {proposal.kernel_id for proposal in proposals}
    ids = {one.id for one in evaluations}
    seen = _empty()
    seen.append(
        *(kernel for kernel in whole.find(Kernel, ids=kept)),  # first, so that their order is the same
        *proposals,
        *sorted((*evaluations, *donated), key=lambda one: one.created),
        *(mark for mark in whole.find(Merged, run.op) if mark.evaluation_id in ids),
        *(one for one in whole.find(Profile, run.op) if one.created < run.created),
        *(one for one in whole.find(Standard, run.op) if one.created < run.created),
    )
    return SeenStore(seen, whole)


def _best_of_others(run: Run, whole: Store, device: DeviceInfo, seeded: Collection[str]) -> Iterator[str]:
    """Yield the evaluation with the largest speedup of each other op, because kernels may be ported from there."""
    measured = [
        (one, shipped)
        for shipped in (True, False)
        for one in whole.find(EvaluationSummary, device=device.key, passed=True, measured=True, shipped=shipped)
    ]
    found = [one for one, shipped in measured if not shipped or one.kernel_id in seeded]
    latest = {one.kernel_id: one for one in found if one.created < run.created and one.op != run.op}
    best: dict[str, EvaluationSummary] = {}
    for one in latest.values():
        held = best.get(one.op)
        if held is None or (-one.speedup, one.kernel_id) < (-held.speedup, held.kernel_id):
            best[one.op] = one
    return (one.id for one in best.values())


def _empty() -> SqliteStore:
    return open_archive(Path(":memory:"))


@dataclass(frozen=True)
class RecordedVerdicts:
    """An engine that repeats the verdicts of a run on this device, and evaluates kernels without one."""

    engine: Engine
    run: Run
    whole: Store

    @property
    def info(self) -> DeviceInfo:
        return self.engine.info

    @property
    def unprofiled(self) -> str:
        return self.engine.unprofiled

    def evaluate(self, jobs: Iterable[Job]) -> Iterator[Evaluation]:
        missing = []
        for job in jobs:
            if found := self._verdict(job):
                yield found
            else:
                missing.append(job)
        yield from self.engine.evaluate(missing)

    def profile(self, kernel: Kernel, op: str, workload: str) -> Profile | None:
        recorded = (
            profile
            for profile in self.whole.find(Profile, self.run.op, kernels=[kernel.id])
            if (profile.device, profile.workload) == (self.info.key, workload) and profile.created >= self.run.created
        )
        return next(recorded, None) or self.engine.profile(kernel, op, workload)

    def close(self) -> None:
        self.engine.close()

    def _verdict(self, job: Job) -> Evaluation | None:
        """Return the first verdict since the run began or, for a confirmation, the first confirmation after it."""
        first, *later = (
            *(
                one
                for one in self.whole.find(Evaluation, self.run.op, kernels=[job.kernel.id])
                if one.device.key == self.info.key and one.created >= self.run.created
            ),
            None,
        )
        if not job.confirm:
            return first
        again = (first, *later) if first and first.confirmed else later
        return next((one for one in again if one and (one.confirmed or not one.passed)), None)
