"""A kernel's page: its text, plan, parents, measurements, checks, and the question that it answers."""

from collections.abc import Sequence
from dataclasses import dataclass

from archive.kernel import Kernel, Proposal
from archive.records import Check, DeviceInfo, Evaluation, Profile
from archive.runs import AskedQuestion, Run
from archive.store import Store
from archive.summaries import EvaluationSummary, ProposalSummary
from evolve.devices.choose import policy_of
from evolve.devices.counters import COUNTERS
from evolve.pages import addresses
from evolve.pages.lineage import absent, ancestry
from evolve.prompting.bottleneck import Bottleneck, bottleneck, side
from evolve.report.basis import Basis
from evolve.report.profile import quantity
from evolve.report.standing import basis_of

WIDEST_LOAD = 16  # width in bytes if the compiler's traits are unknown
CHILDREN_SHOWN = 100
ANCESTORS_SHOWN = 20


@dataclass(frozen=True)
class Checked:
    """The checks of one output with one kind of values: their number, and the check closest to its tolerance."""

    output: str
    values: str
    number: int
    worst: Check


@dataclass(frozen=True)
class Profiled:
    """A profile in words."""

    profile: Profile
    counters: tuple[tuple[str, str], ...]
    roofline: str
    bottleneck: Bottleneck | None


@dataclass(frozen=True)
class Judged:
    """One evaluation, and the times with which its times are compared."""

    evaluation: Evaluation
    basis: Basis
    in_force: bool
    checked: tuple[Checked, ...]
    profiles: tuple[Profiled, ...]

    @property
    def mean(self) -> float | None:
        return self.basis.mean(self.evaluation)


@dataclass(frozen=True)
class Asked:
    """A proposal of the kernel, with the question that it answers if a model was asked."""

    proposal: Proposal
    question: AskedQuestion | None


@dataclass(frozen=True)
class Child:
    """A child of this kernel, with its latest verdict, preferably from a GPU."""

    kernel_id: str
    operator: str
    outcome: str
    speedup: float | None  # None without GPU times


@dataclass(frozen=True)
class KernelPage:
    """The content of a kernel's page."""

    kernel: Kernel
    asked: tuple[Asked, ...]
    parents: tuple[Kernel, ...]
    ancestors: tuple[str, ...]  # the first parent, that kernel's first parent, and so on
    earlier_ancestors: bool  # whether there are more ancestors
    judged: tuple[Judged, ...]  # GPUs first, newest first
    children: tuple[Child, ...]
    more_children: int
    absent: frozenset[str]  # addresses of parents, ancestors and runs that the archive lacks


def kernel_page(store: Store, kernel_id: str) -> KernelPage | None:
    """Read the page of a kernel by its whole id; None if the archive does not have it."""
    found = store.find(Kernel, ids=[kernel_id])
    if not found:
        return None
    (kernel,) = found
    proposals = store.find(Proposal, kernels=[kernel_id])
    questions = {one.proposal_id: one for one in store.find(AskedQuestion, ids=[one.id for one in proposals])}
    parents = dict.fromkeys(parent for one in proposals for parent in one.parents)
    made = store.find(ProposalSummary, parents=[kernel_id])
    children = {child.kernel_id: child for child in made if child.kernel_id}
    (ancestors, more), judged = ancestry(store, kernel_id, ANCESTORS_SHOWN), _judged(store, kernel)
    runs = {one.run for one in proposals} | {one.evaluation.run for one in judged}
    return KernelPage(
        kernel=kernel,
        asked=tuple(Asked(one, questions.get(one.id)) for one in proposals),
        parents=tuple(store.find(Kernel, ids=list(parents))),
        ancestors=tuple(ancestors),
        earlier_ancestors=more,
        judged=tuple(judged),
        children=tuple(_children(store, list(children.values())[:CHILDREN_SHOWN])),
        more_children=max(0, len(children) - CHILDREN_SHOWN),
        absent=absent(store, [*parents, *ancestors]) | _absent_runs(store, runs),
    )


def _absent_runs(store: Store, runs: set[str]) -> frozenset[str]:
    held = {one.id for one in store.find(Run, ids=list(runs))}
    return frozenset(map(addresses.run_page, runs - held))


def _judged(store: Store, kernel: Kernel) -> list[Judged]:
    evaluations = store.find(Evaluation, kernels=[kernel.id])
    infos = {one.device.key: one.device for one in evaluations}
    bases = {key: basis_of(store, kernel.op, info) for key, info in infos.items()}
    latest = {one.device.key: one for one in evaluations}
    profiles = store.find(Profile, kernel.op, kernels=[kernel.id])
    return [
        Judged(
            one,
            bases[one.device.key],
            latest[one.device.key] is one,
            tuple(_checked(one.checks)),
            tuple(_profiled(profile, one) for profile in _newest(profiles, one.device))
            if latest[one.device.key] is one else (),
        )
        for one in sorted(evaluations, key=_first_shown)
    ]  # fmt: skip


def _first_shown(evaluation: Evaluation) -> tuple[bool, float]:
    return not policy_of(evaluation.device.kind).times_are_gpu_times, -evaluation.created


def _newest(profiles: Sequence[Profile], device: DeviceInfo) -> list[Profile]:
    """Return the newest profile on each workload."""
    return list({one.workload: one for one in profiles if one.device == device.key}.values())


def _checked(checks: Sequence[Check]) -> list[Checked]:
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.output, check.values), []).append(check)
    return [
        Checked(output, values, len(group), max(group, key=lambda check: check.worst))
        for (output, values), group in groups.items()
    ]


def _profiled(profile: Profile, evaluation: Evaluation) -> Profiled:
    counted = dict(profile.counters)
    access = max(evaluation.traits.load_bytes, evaluation.traits.store_bytes) if evaluation.traits else WIDEST_LOAD
    return Profiled(
        profile,
        tuple((words, quantity(counted[name], unit)) for name, words, unit in COUNTERS if name in counted),
        side(counted),
        bottleneck(counted, access or WIDEST_LOAD),
    )


def _children(store: Store, proposals: Sequence[ProposalSummary]) -> list[Child]:
    ids = [one.kernel_id for one in proposals]
    every = store.find(EvaluationSummary, kernels=ids, in_force=True)
    verdicts = {one.kernel_id: one for one in sorted(every, key=_of_gpu)}
    return [_child(one, verdicts.get(one.kernel_id)) for one in proposals]


def _of_gpu(verdict: EvaluationSummary) -> bool:
    return policy_of(verdict.device.partition(" ")[0]).times_are_gpu_times


def _child(proposal: ProposalSummary, verdict: EvaluationSummary | None) -> Child:
    outcome = str(verdict.outcome) if verdict else "pending"
    speedup = verdict.speedup if verdict and verdict.passed and _of_gpu(verdict) else None
    return Child(proposal.kernel_id, proposal.operator, outcome, speedup)
