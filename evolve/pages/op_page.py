"""An op's page: its champions and population on one device, how they were found, and their costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from archive.records import DeviceInfo, Outcome
from archive.runs import Run
from archive.store import Store
from archive.summaries import BriefProposal, EvaluationSummary, Judged, RankedTimes
from evolve.devices.choose import policy_of
from evolve.errors import kind_of
from evolve.pages.lineage import Family, absent, family_of
from evolve.report.best_so_far import Moment, moments
from evolve.report.standing import Standing, devices, places_of, standing
from evolve.report.words import one_line

REASONS_READ = 400  # number of newest failures of each outcome whose reasons are read
REASONS_SHOWN = 4
AXES = ("evaluations", "tokens", "dollars")
DOTS_DRAWN = 1_000  # largest number of kernels in the plot of the best so far, besides those with which it rose


@dataclass(frozen=True)
class Reason:
    """A reason why kernels failed, the number of the newest kernels that failed for it, and one of these kernels."""

    words: str
    number: int
    kernel_id: str


@dataclass(frozen=True)
class OutcomeLine:
    """The kernels with one outcome, and the reasons that their logs give."""

    outcome: str
    number: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class OpPage:
    """The content of the page of an op on one device."""

    standing: Standing
    main: bool  # whether this is the default device
    devices: tuple[DeviceInfo, ...]
    moments: tuple[Moment, ...]
    spent: tuple[float, float, float]  # cost of the op so far, in the order of AXES
    outcomes: tuple[OutcomeLine, ...]
    family: Family
    runs: tuple[Run, ...]  # newest first
    absent: frozenset[str]  # addresses of parents that the archive lacks

    @property
    def fittest(self) -> str:
        return self.standing.population[0].kernel_id if self.standing.population else ""


def op_page(store: Store, op: str, device: str = "") -> OpPage | None:
    """Read the page of an op on a device, by default its first; None if none of its kernels was evaluated there."""
    found = devices(store, op)
    main = _main(store, op, found)
    info = next((one for one in found if one.key == device), None) if device else main
    if info is None:
        return None
    ranked = store.find(RankedTimes, op, device=info.key)
    now = standing(store, op, info, places=places_of(store, op, info, ranked))
    verdicts = store.find(Judged, op, device=info.key)
    proposals = store.find(BriefProposal, op)
    runs = [run for run in store.find(Run, op) if run.device == info.key]
    family = family_of(store, now)
    return OpPage(
        standing=now,
        main=info is main,
        devices=tuple(found),
        moments=tuple(moments(ranked, verdicts, proposals, now.basis, DOTS_DRAWN)),
        spent=(
            float(len(verdicts)), float(sum(one.tokens for one in proposals)), sum(one.usd for one in proposals)
        ),
        outcomes=tuple(_outcome(store, op, info, outcome, number) for outcome, number in now.outcomes.items()),
        family=family,
        runs=tuple(reversed(runs)),
        absent=absent(store, (other for node in family.nodes for other in node.others)),
    )  # fmt: skip


def _main(store: Store, op: str, found: Sequence[DeviceInfo]) -> DeviceInfo | None:
    """Return the GPU on which most kernels of the op were judged, or another device if there is no GPU."""
    counts = store.count(EvaluationSummary, "device", op, in_force=True)
    return max(
        found,
        key=lambda one: (policy_of(one.kind).times_are_gpu_times, counts.get(one.key, 0)),
        default=None,
    )


def _outcome(store: Store, op: str, device: DeviceInfo, outcome: str, number: int) -> OutcomeLine:
    if outcome == str(Outcome.PASSED):
        return OutcomeLine(outcome, number, ())
    newest = store.find(EvaluationSummary, op, device=device.key, outcome=outcome, in_force=True, newest=REASONS_READ)
    found: dict[str, tuple[str, int, str]] = {}
    for verdict in newest:
        words = one_line(verdict.log.strip().split("\n")[0], 160) or "no log"
        kind = kind_of(words)
        _, before, _ = found.get(kind, ("", 0, ""))
        found[kind] = words, before + 1, verdict.kernel_id
    most = sorted(found.values(), key=lambda one: -one[1])[:REASONS_SHOWN]
    return OutcomeLine(outcome, number, tuple(Reason(*one) for one in most))
