"""What to evaluate, and a line per verdict while it happens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve.cli import signals
from evolve.cli.telling import told
from evolve.engines.engine import Engine, Job
from evolve.errors import UserError
from evolve.report.console import complain
from evolve.report.standing import Standing, standing
from evolve.report.tables import made
from evolve.report.words import best_speedup, counted, one_line, short, times
from evolve.selection import selection
from reference_ops import catalog
from reference_ops.locators import is_path

MADE_SHOWN, REASON_SHOWN = 60, 200


@dataclass(frozen=True)
class Asked:
    """What the command line names; nothing at all means everything that is pending."""

    ops: dict[str, str]  # by name, how other processes find it
    kernels: frozenset[str]  # from files: of their ops only these, unless the op itself was named too
    restricted: frozenset[str]

    @property
    def everything(self) -> bool:
        return not self.ops


@dataclass(frozen=True)
class Work:
    """Kernels of one op to evaluate."""

    op: str
    locator: str
    kernels: tuple[Kernel, ...]


def asked(targets: Sequence[str], store: Store) -> Asked:
    """Understand the command line; kernels in files are archived at once."""
    kernels = [target for target in targets if target.endswith(".cu")]
    defined = [target for target in targets if is_path(target) and target not in kernels]
    files = {catalog.load(target).name: catalog.lasting(target) for target in defined}
    named = [target for target in targets if target not in (*kernels, *defined)]
    for name in named:
        catalog.locate(name)
    ops = {**files, **{name: name for name in named}}
    if not kernels:
        return Asked(ops, frozenset(), frozenset())
    taken = [one.proposal for one in told(tuple(Path(target) for target in kernels), defined, store)]
    for proposal in taken:
        if proposal.kernel is None:
            complain(one_line(proposal.failure, 300))
    found = {proposal.op for proposal in taken if proposal.kernel}
    if not found:
        raise UserError("none of these files holds a kernel that can be evaluated", "the reasons are above")
    ids = frozenset(proposal.kernel_id for proposal in taken if proposal.kernel)
    return Asked({**{op: op for op in found}, **ops}, ids, frozenset(found.difference(named)))


def works(asked: Asked, info: DeviceInfo, store: Store) -> Iterator[Work]:
    """What is to be done, op by op; pending ops that nobody can load are named and passed over."""
    for op in asked.ops or sorted({kernel.op for kernel in store.find(Kernel)}):
        waiting = selection.pending(store, op, info)
        if op in asked.restricted:
            waiting = [kernel for kernel in waiting if kernel.id in asked.kernels]
        if not asked.everything:
            yield Work(op, asked.ops[op], tuple(waiting))
        elif waiting and op in catalog.names():
            yield Work(op, op, tuple(waiting))
        elif waiting:
            complain(
                f"{op} is not in the catalog: {counted(len(waiting), 'kernel')} left pending",
                "give the file that defines it: evolve evaluate FILE.py",
            )


def worked(work: Work, engine: Engine, store: Store, shown: Console) -> Standing:
    """Evaluate, archive and say each verdict; where things stand afterwards."""
    if work.kernels:
        shown.print(f"{work.op}: {counted(len(work.kernels), 'kernel')} to evaluate", style="bold")
    proposals, kernels = store.find(Proposal, work.op), store.find(Kernel, work.op)
    names = standing(work.op, engine.info, kernels, proposals, [])
    agenda = selection.agenda(work.kernels, store, work.op, engine.info)
    jobs = (Job(kernel, work.locator, agenda.bars, known=agenda.known) for kernel in agenda.new)
    for number, evaluation in enumerate(chain(agenda.repeated, engine.evaluate(jobs)), start=1):
        store.append(evaluation)
        signals.check()
        what = f"{short(evaluation.kernel_id)} {one_line(made(names, evaluation.kernel_id), MADE_SHOWN)}"
        shown.print(
            f"[{number}/{len(work.kernels)}] {what}: {_verdict(evaluation)}",
            style="" if evaluation.passed else "red",
            soft_wrap=True,
        )
    return standing(work.op, engine.info, kernels, proposals, store.find(Evaluation, work.op))


def _verdict(evaluation: Evaluation) -> str:
    if evaluation.passed:
        return f"passed, best {times(best_speedup(evaluation))}"
    return f"{evaluation.outcome}: {one_line(evaluation.log, REASON_SHOWN)}"
