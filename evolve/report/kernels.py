"""List of kernels, filtered by outcome, proposer, run, dtype and time."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from archive.kernel import Kernel
from archive.records import DeviceInfo, Outcome
from archive.runs import Run
from archive.store import Store, unasked, uncollected
from archive.summaries import EvaluationSummary, KernelSummary, ProposalSummary, Timing
from evolve.report.basis import PYTORCH, Basis
from evolve.report.standing import basis_of, devices
from evolve.report.tables import fitted, narrowed, plain_table, speed_style, when
from evolve.report.words import idea, short, times
from evolve.selection.view import judged_on_gpus

PENDING = "pending"
MANY = 10_000  # number of kernels above which reading all verdicts of an op takes less time than looking up single ones
SORTS = ("best", "mean", "when", "op", "outcome", "proposer")


@dataclass(frozen=True)
class KernelFilter:
    """Filter of listed kernels. Empty fields do not filter."""

    device: str = ""  # a part of the device's key
    dtype: str = ""
    outcome: str = ""  # the beginning of an outcome, or `pending`
    proposer: str = ""  # a part of the proposer's name
    run: str = ""
    since: float = 0.0

    @property
    def of_kernels(self) -> bool:
        """Whether the filter chooses single kernels, and not only ops, devices and workloads."""
        return bool(self.outcome or self.proposer or self.run or self.since)

    @property
    def outcomes(self) -> list[str]:
        return [str(one) for one in Outcome if str(one).startswith(self.outcome)]


@dataclass(frozen=True)
class KernelLine:
    """One kernel on one device."""

    kernel_id: str
    op: str
    device: DeviceInfo
    outcome: str
    mean: float | None
    best: float | None
    proposal: ProposalSummary | None
    created: float


def kernel_lines(store: Store, ops: Collection[str], choice: KernelFilter, by: str = "best") -> list[KernelLine]:
    """Return the chosen kernels of these ops on each device, sorted; the largest and the newest come first."""
    with uncollected():
        found = [
            line for op in ops for info in devices(store, op, choice.device) for line in _of(store, op, info, choice)
        ]
    return sorted(found, key=SORTED_BY[by], reverse=by in {"best", "mean", "when"})


SORTED_BY: Mapping[str, Callable[[KernelLine], tuple[float, str]]] = {
    "best": lambda line: (line.best or 0.0, line.kernel_id),
    "mean": lambda line: (line.mean or 0.0, line.kernel_id),
    "when": lambda line: (line.created, line.kernel_id),
    "op": lambda line: (0.0, line.op),
    "outcome": lambda line: (0.0, line.outcome),
    "proposer": lambda line: (0.0, line.proposal.proposer if line.proposal else ""),
}


def _of(store: Store, op: str, device: DeviceInfo, choice: KernelFilter) -> Iterator[KernelLine]:
    pending = _lists_pending(store, device, choice)
    verdicts, proposals = _verdicts_and_proposals(store, op, device, choice, pending=pending)
    basis = basis_of(store, op, device) if verdicts else PYTORCH
    judged = {verdict.kernel_id for verdict in verdicts}
    for verdict in verdicts:
        proposal = proposals.get(verdict.kernel_id)
        if not str(verdict.outcome).startswith(choice.outcome) or not _fits(proposal, choice):
            continue
        ratios = _ratios(verdict, basis, choice.dtype)
        if choice.dtype and not ratios and verdict.passed:
            continue
        mean = basis.mean(verdict) if verdict.passed else None
        created = proposal.created if proposal else verdict.created
        yield KernelLine(verdict.kernel_id, op, device, str(verdict.outcome), mean, max(ratios, default=None), proposal,
                         created)  # fmt: skip
    if pending:
        judged |= judged_on_gpus(store, op, device) | unasked(store, op, device)  # kernels that need no verdict here
        for kernel in store.find(KernelSummary, op):
            proposal = proposals.get(kernel.id)
            if kernel.id not in judged and _fits(proposal, choice):
                created = proposal.created if proposal else 0.0
                yield KernelLine(kernel.id, op, device, PENDING, None, None, proposal, created)


def _verdicts_and_proposals(
    store: Store, op: str, device: DeviceInfo, choice: KernelFilter, *, pending: bool
) -> tuple[Sequence[EvaluationSummary], Mapping[str, ProposalSummary]]:
    """Return current verdicts and the first proposals of their kernels: all that may be chosen, and few others."""
    outcomes = choice.outcomes
    if len(outcomes) == 1 and not pending:
        verdicts = store.find(EvaluationSummary, op, device=device.key, in_force=True, outcome=outcomes[0])
        return verdicts, _proposals(store, op, choice, [one.kernel_id for one in verdicts])
    proposals = _proposals(store, op, choice)
    if choice.proposer or choice.run or choice.since:
        proposals = {kernel_id: one for kernel_id, one in proposals.items() if _fits(one, choice)}
        if len(proposals) < MANY:
            kernels = proposals.keys()
            return store.find(EvaluationSummary, op, device=device.key, in_force=True, kernels=kernels), proposals
    return store.find(EvaluationSummary, op, device=device.key, in_force=True), proposals


def _lists_pending(store: Store, device: DeviceInfo, choice: KernelFilter) -> bool:
    """Return whether to list kernels without a verdict: if they are requested, or if the run is on this device."""
    if choice.outcome:
        return PENDING.startswith(choice.outcome)
    return any(run.device == device.key for run in store.find(Run, ids=[choice.run] if choice.run else []))


def _proposals(
    store: Store, op: str, choice: KernelFilter, kernels: Sequence[str] | None = None
) -> dict[str, ProposalSummary]:
    """Return the first proposal of each kernel, or of these kernels, within the chosen run if there is one."""
    # only with --since, because a proposal may repeat an earlier kernel
    if choice.since and not choice.run and kernels is None:
        kernels = [one.kernel_id for one in store.find(ProposalSummary, op, since=choice.since) if one.kernel_id]
    if choice.run:
        every = store.find(ProposalSummary, op, run=choice.run)
    else:
        every = store.find(ProposalSummary, op) if kernels is None else store.find(ProposalSummary, kernels=kernels)
    return {one.kernel_id: one for one in reversed(every) if one.kernel_id}


def _fits(proposal: ProposalSummary | None, choice: KernelFilter) -> bool:
    if proposal is None:
        return not (choice.proposer or choice.run or choice.since)
    return choice.proposer.lower() in proposal.proposer.lower() and proposal.created >= choice.since


def _ratios(verdict: EvaluationSummary, basis: Basis, dtype: str) -> list[float]:
    timings: list[Timing] = [one for one in verdict.measurements if not dtype or dtype in one.workload.split()]
    return [ratio for one in timings if verdict.passed and (ratio := basis.ratio(one)) is not None]


def kernels_table(store: Store, lines: Sequence[KernelLine], width: int) -> Table:
    """Return a table with a row per kernel."""
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, ids=[line.kernel_id for line in lines])}
    several = ["device"] if len({line.device.key for line in lines}) > 1 else []
    numbers = ["best", "mean"]
    table = plain_table(
        "kernel", "op", *several, "outcome", *numbers, "made by", "proposer", "run", "when", "idea", numbers=numbers,
        whole=["kernel", "when"],
    )  # fmt: skip
    for line in lines:
        proposal = line.proposal
        table.add_row(
            Text(short(line.kernel_id), "bold"),
            fitted(line.op),
            *[fitted(line.device.name) for _ in several],
            fitted(line.outcome, OUTCOME_STYLES.get(line.outcome, "red")),
            Text(times(line.best), speed_style(line.best)),
            Text(times(line.mean), speed_style(line.mean)),
            fitted(proposal.operator if proposal else ""),
            fitted(proposal.proposer if proposal else ""),
            fitted(short(proposal.run) if proposal else ""),
            when(line.created, width),
            fitted(idea(kernels.get(line.kernel_id)), "dim"),
        )
    return narrowed(table, width, ["run", "when", "mean", "idea", "device", "proposer", "made by"])


OUTCOME_STYLES = {"passed": "green", PENDING: "cyan", "duplicate": "dim"}
