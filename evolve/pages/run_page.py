"""A run's page: its budget, its cost by model and operator, and its results."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from archive.kernel import Kernel
from archive.records import DeviceInfo
from archive.runs import Run
from archive.store import Store
from archive.summaries import BriefEvaluation, BriefProposal, EvaluationSummary, ProposalSummary, RankedTimes
from evolve import budget
from evolve.budget import History, Spent
from evolve.report.basis import Basis, known_basis
from evolve.report.failures import reasons
from evolve.report.standing import basis_of
from evolve.report.words import idea
from evolve.selection import population

BEST_SHOWN = 12
Key = tuple[str, str]


@dataclass(frozen=True)
class Spending:
    """The cost of a run's requests to one model with one operator, and their results."""

    proposer: str
    operator: str
    questions: int
    kernels: int
    passed: int
    tokens: int
    usd: float
    seconds: float  # time spent waiting for replies
    best: float | None  # best ratio to the basis


@dataclass(frozen=True)
class Find:
    """One of the best kernels that the run itself proposed."""

    kernel_id: str
    idea: str
    operator: str
    mean: float | None
    best: float | None
    leads: int  # number of workloads of which it is the champion


@dataclass(frozen=True)
class Quality:
    """The cost of a run at one moment, and the best so far of its own kernels."""

    spent: Spent
    best: float  # largest ratio to the basis on any workload


@dataclass(frozen=True)
class RunPage:
    """The content of a run's page."""

    run: Run
    device: DeviceInfo | None
    basis: Basis
    spent: Spent
    legs: int
    spending: tuple[Spending, ...]
    failures: tuple[tuple[int, str], ...]  # number of replies without a kernel; key: reason
    outcomes: tuple[tuple[str, int], ...]
    best: tuple[Find, ...]
    qualities: tuple[Quality, ...]
    others: tuple[Run, ...]  # other runs of the same op on the same device


@dataclass(frozen=True)
class RunLine:
    """A run in the list of all runs."""

    run: Run
    spent: Spent
    proposals: int
    best: float | None


def run_page(store: Store, run_id: str) -> RunPage | None:
    """Read the page of a run by its whole id; None if the archive does not have it."""
    found = store.find(Run, ids=[run_id])
    if not found:
        return None
    (run,) = found
    info = next((one for one in store.find(DeviceInfo, run.op) if one.key == run.device), None)
    past = budget.history(store, run.op, run.device)
    basis = basis_of(store, run.op, info) if info else known_basis(run.device.partition(" ")[0])
    proposals = store.find(ProposalSummary, run=run.id)
    own = {one.kernel_id: one for one in reversed(proposals) if one.kernel_id}
    verdicts = _verdicts(store, run, list(own))
    counts: dict[str, int] = {}
    for verdict in verdicts.values():
        counts[str(verdict.outcome)] = counts.get(str(verdict.outcome), 0) + 1
    return RunPage(
        run=run,
        device=info,
        basis=basis,
        spent=budget.spent(run.id, past),
        legs=sum(leg.run == run.id for leg in past.legs),
        spending=tuple(_spending(proposals, verdicts, basis)),
        failures=tuple(reasons(one.failure for one in proposals if one.failure and not one.kernel_id)),
        outcomes=tuple(sorted(counts.items(), key=lambda one: -one[1])),
        best=tuple(_best(store, run, own, verdicts, basis)),
        qualities=tuple(qualities(run, past, verdicts, basis)),
        others=tuple(one for one in store.find(Run, run.op) if one.device == run.device and one.id != run.id),
    )


def _verdicts(store: Store, run: Run, kernels: Sequence[str]) -> dict[str, EvaluationSummary]:
    found = store.find(EvaluationSummary, kernels=kernels, device=run.device, in_force=True)
    return {verdict.kernel_id: verdict for verdict in found}


def qualities(run: Run, past: History, verdicts: dict[str, EvaluationSummary], basis: Basis) -> Iterable[Quality]:
    """Yield the cost and the best so far after each of the run's own kernels that passed."""
    spent, best = Spent(), 0.0
    for step in budget.steps(run.id, past):
        spent += step.spent
        verdict = verdicts.get(step.kernel_id)
        if verdict and verdict.passed:
            best = max(best, basis.best(verdict) or 0.0)
            yield Quality(spent, best)


def _spending(
    proposals: Sequence[ProposalSummary], verdicts: dict[str, EvaluationSummary], basis: Basis
) -> Iterable[Spending]:
    groups: dict[Key, list[ProposalSummary]] = {}
    for proposal in proposals:
        groups.setdefault((proposal.proposer, proposal.operator), []).append(proposal)
    for (proposer, operator), group in sorted(groups.items()):
        kernels = {one.kernel_id for one in group if one.kernel_id}
        passed = [verdicts[one] for one in kernels if one in verdicts and verdicts[one].passed]
        yield Spending(
            proposer=proposer,
            operator=operator,
            questions=len(group),
            kernels=len(kernels),
            passed=len(passed),
            tokens=sum(one.prompt_tokens + one.completion_tokens for one in group),
            usd=sum(one.usd for one in group),
            seconds=sum(one.seconds for one in group),
            best=max((basis.best(one) or 0.0 for one in passed), default=None),
        )


def _best(
    store: Store,
    run: Run,
    own: dict[str, ProposalSummary],
    verdicts: dict[str, EvaluationSummary],
    basis: Basis,
) -> Iterable[Find]:
    leaders = population.leaders(store.find(RankedTimes, run.op, device=run.device)).values()
    leads: dict[str, int] = {}
    for leader in leaders:
        leads[leader.kernel_id] = leads.get(leader.kernel_id, 0) + 1
    passed = [one for one in verdicts.values() if one.passed]
    passed.sort(key=lambda one: (-leads.get(one.kernel_id, 0), -(basis.mean(one) or 0.0)))
    shown = passed[:BEST_SHOWN]
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, ids=[one.kernel_id for one in shown])}
    for one in shown:
        yield Find(one.kernel_id, idea(kernels.get(one.kernel_id)), own[one.kernel_id].operator, basis.mean(one),
                   basis.best(one), leads.get(one.kernel_id, 0))  # fmt: skip


def run_lines(store: Store, op: str = "") -> list[RunLine]:
    """Return a line per run, newest first."""
    runs = store.find(Run, op)
    of_run = defaultdict[str, list[BriefProposal]](list)
    for proposal in store.find(BriefProposal, op):
        of_run[proposal.run].append(proposal)
    # key: op and device; value: speedups of the kernels that passed
    latest: dict[tuple[str, str], dict[str, float]] = {}
    for run in runs:
        key = run.op, run.device
        if key not in latest and known_basis(run.device.partition(" ")[0]).is_pytorch:
            verdicts = {one.kernel_id: one for one in store.find(BriefEvaluation, run.op, device=run.device)}
            latest[key] = {one.kernel_id: one.speedup for one in verdicts.values() if one.passed}
    return [_line(run, of_run[run.id], latest.get((run.op, run.device), {})) for run in reversed(runs)]


def _line(run: Run, proposals: Sequence[BriefProposal], speedups: Mapping[str, float]) -> RunLine:
    own = {one.kernel_id for one in proposals if one.kernel_id}
    spent = Spent(len(own), sum(one.tokens for one in proposals), sum(one.usd for one in proposals))
    return RunLine(run, spent, len(proposals), max((speedups[one] for one in own if one in speedups), default=None))
