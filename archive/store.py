"""Store: the interface of an archive for the rest of the program, with the filters of its queries."""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack

from archive.kernel import Kernel, Proposal
from archive.records import SHIPPED, DeviceInfo, Evaluation, Leg, Merged, Profile, Standard
from archive.runs import AskedQuestion, Run
from archive.summaries import (
    BriefEvaluation,
    BriefProposal,
    EvaluationSummary,
    Judged,
    KernelId,
    KernelSummary,
    Origin,
    ProposalSummary,
    RankedTimes,
    Skips,
)

T = TypeVar("T")
Record = Kernel | Proposal | AskedQuestion | Evaluation | Merged | Profile | Standard | Run | Leg
R = TypeVar(
    "R", Kernel, KernelSummary, KernelId, Proposal, ProposalSummary, BriefProposal, AskedQuestion, Evaluation,
    EvaluationSummary, Origin, Skips, BriefEvaluation, Judged, RankedTimes, DeviceInfo, Merged, Profile, Standard, Run,
    Leg,
)  # fmt: skip


class Filters(TypedDict, total=False):
    """Filters of a query. Not every filter applies to every kind of record."""

    ids: Collection[str]
    prefix: str  # beginning of the id
    kernels: Collection[str]  # ids of the kernels that the records are about
    parents: Collection[str]  # only proposals made from any of these kernels
    run: str
    device: str  # a DeviceInfo's key
    outcome: str
    passed: bool
    in_force: bool  # whether the evaluation is the latest of its kernel on its device
    confirmed: bool
    proposer: str
    since: float  # only proposals after this time, in seconds since 1970
    shipped: bool  # whether the verdict ships with the package
    measured: bool  # whether the evaluation has times
    # with `op` and `device`: only the newest evaluation with times on each set of workloads
    newest_timed: Literal[True]
    code: str
    # with `op` and `device`: only the evaluations that determine the champions, in the usual order
    contending: Literal[True]
    fastest: int  # at most this many records, those with the largest speedups
    newest: int  # at most this many records, those added to the archive last
    oldest: int  # at most this many records, those added first
    after: int  # only records added after the summary with this number


class Store(Protocol):
    """The interface of an archive.

    Records are never changed or removed. Each record has an id that follows from its content, so appending a record
    again changes nothing, and a merge of two archives is the union of their records.
    """

    def append(self, *records: Record) -> int:
        """Add the records, all or none of them, and return the number of new ones."""

    def find(self, kind: type[R], op: str = "", **filters: Unpack[Filters]) -> list[R]:
        """Return the records of a kind that pass every filter, oldest first. An empty `op` means every op."""

    def count(self, kind: type[R], by: str, op: str = "", **filters: Unpack[Filters]) -> dict[str, int]:
        """Return the number of records that pass every filter, by `op`, `device` or `outcome`."""


class ArchiveFile(Store, Protocol):
    """An archive in a file, which also lists its ops and stores values that are computed from their records."""

    def ops(self, kind: type[R]) -> list[str]:
        """Return the ops with records of a kind, sorted."""

    def derived(self, what: str, op: str, make: Callable[[], object], read: Callable[[Any], T]) -> T:
        """Compute a value from an op's records with `make`, store it as JSON, and return it as converted by `read`.

        It is computed only if records of the op were added since the last time; `what` names the value and its format.
        """


def evaluations_of(store: Store, verdicts: Iterable[EvaluationSummary | RankedTimes]) -> dict[str, Evaluation]:
    """Return the evaluations that these verdicts summarise, by their ids in the archive."""
    ids = {(verdict.kernel_id, verdict.created, verdict.device): verdict.id for verdict in verdicts}
    found = store.find(Evaluation, ids=list(ids.values()))
    return {ids[one.kernel_id, one.created, one.device.key]: one for one in found}


def workloads_of(store: Store, leaders: Mapping[str, RankedTimes]) -> list[str]:
    """Return the workloads with a champion, and those that the champions do not accept."""
    skips = store.find(Skips, ids={one.id for one in leaders.values()}) if leaders else []
    return list(dict.fromkeys([*leaders, *(workload for one in skips for workload in one.workloads)]))


def unasked(store: Store, op: str, device: DeviceInfo) -> frozenset[str]:
    """Return the kernels that only ship with the package and have no verdict on the device."""
    shipped = {one.kernel_id for one in store.find(ProposalSummary, op, proposer=SHIPPED)}
    proposed = {one.kernel_id for one in store.find(ProposalSummary, op, kernels=shipped) if not one.shipped}
    judged = store.find(EvaluationSummary, op, device=device.key, kernels=shipped)
    return frozenset(shipped - proposed - {verdict.kernel_id for verdict in judged})


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection while records are read or modules imported: both make hardly any garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
