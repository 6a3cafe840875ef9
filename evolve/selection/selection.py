"""Selection: the kernels to evaluate next, and the requests for proposers."""

import heapq
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from archive.kernel import Kernel
from archive.records import Evaluation, Outcome, Standard
from archive.runs import BEST_OF_N
from archive.summaries import EvaluationSummary
from evolve.devices.choose import policy_of
from evolve.request import Candidate, Left, ReadWhenAsked, Request
from evolve.selection import population
from evolve.selection.duplicates import Duplicates
from evolve.selection.view import OpView
from reference_ops.op import Op

FAILURES_SHOWN, DONORS = 6, 3
PROFILES = 2  # largest number of profiles per round, because each takes a few seconds
REPAIRS = 3  # number of successive repairs after which a kernel is not repaired again
BEYOND_REPAIR = (Outcome.PASSED, Outcome.DUPLICATE)
UNLIMITED = Left()


@dataclass(frozen=True)
class Agenda:
    """The kernels that wait for a verdict: duplicates of kernels judged before, and new kernels to evaluate."""

    repeated: tuple[Evaluation, ...]
    new: tuple[Kernel, ...]
    bars: tuple[tuple[str, float], ...]  # the time to beat on each workload, in us
    duplicates: Duplicates
    settings: frozenset[str]  # the new kernels that differ only in knobs from a kernel that has passed


def agenda(view: OpView, waiting: Iterable[str]) -> Agenda:
    """Separate these kernels into those that repeat the text of a kernel judged before, and new ones."""
    duplicates, kernels = Duplicates(view), view.kernels(waiting).values()
    logs = {kernel.id: duplicates.by_text(kernel) for kernel in kernels}
    repeated = tuple(
        Evaluation(kernel_id, view.op, view.device, Outcome.DUPLICATE, log, created=time.time())
        for kernel_id, log in logs.items()
        if log
    )
    new = tuple(kernel for kernel in kernels if not logs[kernel.id])
    _, lessons = view.history()
    settings = frozenset(kernel.id for kernel in new if lessons.has_passed(kernel.family))
    return Agenda(repeated, new, view.bars(), duplicates, settings)


def request(view: OpView, op: Op, wanted: int, *, seed: int, left: Left = UNLIMITED) -> Request:
    """Return a request with parents drawn for it, failures to repair, lessons, and all known kernels."""
    history, lessons = view.history()
    rng = random.Random(f"{seed} {len(view.proposals())}")
    plain = Request(
        op=op,
        device=view.device,
        wanted=wanted,
        seed=rng.randrange(2**31),
        run=view.scope.run,
        known=view.known(),
        trials=history.trials(),
        pytorch_us=_pytorch_times(view, op),
        left=left,
    )
    if view.scope.strategy == BEST_OF_N:
        return plain
    alive = view.alive()
    return replace(
        plain,
        untried=not (view.proposals() or view.families()),
        population=view.candidates(alive),
        parents=view.candidates(population.parents(alive, view.used(), wanted, rng)),
        failures=view.candidates(_unrepaired(view)),
        tried=ReadWhenAsked(view.tried),
        kernels=view.kernels,
        donors=_donors(view, rng),
        lessons=lessons.sentences(timed=policy_of(view.device.kind).times_are_gpu_times),
    )


def _pytorch_times(view: OpView, op: Op) -> tuple[tuple[str, float], ...]:
    """Return the latest best time of PyTorch on each workload, from evaluations or `evolve ops --measure`."""
    if not policy_of(view.device.kind).times_are_gpu_times:
        return ()
    times = {
        standard.workload: standard.best_us
        for standard in view.store.find(Standard, op.name)
        if standard.device.key == view.device.key
    }
    times |= {workload: timing.baseline_us for workload, timing in view.latest_times().items()}
    keys = [workload.key for workload in op.workloads(view.device.kind)]
    return tuple((key, times[key]) for key in keys if key in times)


def unprofiled(request: Request) -> list[tuple[Kernel, str]]:
    """Return the parents without a profile on their workload with the most to gain, each with that workload."""
    found: dict[str, tuple[Kernel, str]] = {}
    for parent in request.parents:
        weak = population.weakest(parent.evaluation)
        if weak and all(profile.workload != weak.workload for profile in parent.profiles):
            found[parent.kernel.id] = (parent.kernel, weak.workload)
    return list(found.values())[:PROFILES]


def _donors(view: OpView, rng: random.Random) -> tuple[Candidate, ...]:
    """Return the kernels with the largest speedups of a few other ops, because their ideas may apply here."""
    found = view.store.count(
        EvaluationSummary, "op", device=view.device.key, outcome=str(Outcome.PASSED), in_force=True, measured=True
    )
    others = sorted(set(found) - {view.op})
    best = [
        verdict
        for other in rng.sample(others, min(DONORS, len(others)))
        for verdict in view.store.find(
            EvaluationSummary, other, device=view.device.key, outcome=str(Outcome.PASSED), in_force=True, fastest=1
        )
    ]
    kernels, evaluations = view.kernels(verdict.kernel_id for verdict in best), view.evaluations(best)
    return tuple(
        Candidate(kernels[verdict.kernel_id], evaluations[verdict.id])
        for verdict in best
        if verdict.kernel_id in kernels
    )


def _unrepaired(view: OpView) -> list[EvaluationSummary]:
    """Return the latest failed designs, newest first, except those that repeated repairs did not fix."""
    tries: dict[str, int] = {}  # kernel -> number of successive repairs that led to it
    repaired = set[str]()
    for proposal in view.repairs():
        repaired.update(proposal.parents)
        tries.setdefault(proposal.kernel_id, 1 + max((tries.get(p, 0) for p in proposal.parents), default=0))
    families, (_, lessons) = view.families(), view.history()
    failed = (
        verdict
        for kernel_id, verdict in view.verdicts().items()
        if verdict.outcome not in BEYOND_REPAIR
        and kernel_id in families
        and kernel_id not in repaired
        and tries.get(kernel_id, 0) < REPAIRS
        and not lessons.has_passed(families[kernel_id])  # if the design has passed, only this setting is wrong
    )
    return heapq.nsmallest(FAILURES_SHOWN, failed, key=lambda verdict: (-verdict.created, verdict.kernel_id))
