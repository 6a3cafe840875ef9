"""`evolve evaluate`: gives verdicts on pending kernels, or explains one."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from evolve import wiring
from evolve.cli import lookup, signals
from evolve.cli.exchange import take_files
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, archive_option, kernel_ids, op_names
from evolve.cli.session import engine_on
from evolve.cli.signals import Stopped
from evolve.engines.engine import Engine, Job
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.explain import explanation
from evolve.report.kernel import evaluation_details
from evolve.report.progress import Phases
from evolve.report.standing import Standing, devices, standing
from evolve.report.tables import made, print_next_steps, print_standing
from evolve.report.words import best_speedup, complain, console, counted, one_line, print_json, short, times
from evolve.selection import selection
from reference_ops import catalog
from reference_ops.locators import is_path

EXPLAIN_HELP = "Evaluate nothing: say what was checked on a kernel, and why it passed or failed."
TARGETS_HELP = "Ops, or kernels in files (with their op, if it is your own) [default: all that is pending]."


def evaluate(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP | FILE.cu]...", help=TARGETS_HELP, autocompletion=op_names, show_default=False),
    ] = None,
    explain: Annotated[
        str, typer.Option("--explain", metavar="ID", help=EXPLAIN_HELP, autocompletion=kernel_ids, show_default=False)
    ] = "",
    device: DeviceOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate what was proposed and has no verdict on this device yet, or explain a verdict."""
    if explain:
        explained(explain, targets or [], device, archive, as_json=as_json)
        return
    shown = console(stderr=as_json)
    try:
        with closing(wiring.archive(archive)) as store:
            wanted = targets_of(targets or [], store)
            with engine_on(device, Phases(), shown) as engine:
                todo = list(pending_ops(wanted, engine.info, store))
                results = [evaluate_op(work, engine, store, shown) for work in todo]
            given = archive_option(store.path)
    except Stopped:
        shown.print("stopped. What was evaluated is in the archive; the same command goes on from there.")
        raise
    if as_json:
        print_json([facts.of_standing(result) for result in results])
    else:
        for result in results:
            _print_result(result, wanted, given, shown)
    if not results:
        lookup.absent(
            "nothing was evaluated: no kernel that can be is pending on this device",
            "`evolve run` or `evolve tell FILE.cu` brings new kernels",
        )
    judged = [result.verdicts[kernel_id] for result in results for kernel_id in wanted.kernels & result.verdicts.keys()]
    if not (any(verdict.passed for verdict in judged) if judged else any(result.champions for result in results)):
        raise typer.Exit(1)


def _print_result(result: Standing, targets: "Targets", given: str, shown: Console) -> None:
    for kernel_id in sorted(targets.kernels & result.verdicts.keys()):
        shown.print(f"\n{short(kernel_id)}", style="bold", end="")
        for part in evaluation_details(result.verdicts[kernel_id], shown.width):
            shown.print(part)
    shown.print()
    print_standing(shown, result, population=False)
    print_next_steps(shown, result, targets.ops.get(result.op, result.op), given)


MADE_SHOWN, REASON_SHOWN = 60, 200


@dataclass(frozen=True)
class Targets:
    """What the command line names; nothing at all means everything that is pending."""

    ops: dict[str, str]  # by name, how other processes find it
    kernels: frozenset[str]  # from files: of their ops only these, unless the op itself was named too
    restricted: frozenset[str]

    @property
    def everything(self) -> bool:
        return not self.ops


@dataclass(frozen=True)
class PendingOp:
    """Kernels of one op to evaluate."""

    op: str
    locator: str
    kernels: tuple[Kernel, ...]


def targets_of(targets: Sequence[str], store: Store) -> Targets:
    """Understand the command line; kernels in files are archived at once."""
    kernels = [target for target in targets if target.endswith(".cu")]
    defined = [target for target in targets if is_path(target) and target not in kernels]
    files = {catalog.load(target).name: catalog.lasting(target) for target in defined}
    named = [target for target in targets if target not in (*kernels, *defined)]
    for name in named:
        catalog.locate(name)
    ops = {**files, **{name: name for name in named}}
    if not kernels:
        return Targets(ops, frozenset(), frozenset())
    taken = [one.proposal for one in take_files(tuple(Path(target) for target in kernels), defined, store)]
    for proposal in taken:
        if proposal.kernel is None:
            complain(one_line(proposal.failure, 300))
    found = {proposal.op for proposal in taken if proposal.kernel}
    if not found:
        raise UserError("none of these files holds a kernel that can be evaluated", "the reasons are above")
    ids = frozenset(proposal.kernel_id for proposal in taken if proposal.kernel)
    return Targets({**{op: op for op in found}, **ops}, ids, frozenset(found.difference(named)))


def pending_ops(targets: Targets, info: DeviceInfo, store: Store) -> Iterator[PendingOp]:
    """What is to be done, op by op; pending ops that nobody can load are named and passed over."""
    for op in targets.ops or sorted({kernel.op for kernel in store.find(Kernel)}):
        waiting = selection.pending(store, op, info)
        if op in targets.restricted:
            waiting = [kernel for kernel in waiting if kernel.id in targets.kernels]
        if not targets.everything:
            yield PendingOp(op, targets.ops[op], tuple(waiting))
        elif waiting and op in catalog.names():
            yield PendingOp(op, op, tuple(waiting))
        elif waiting:
            complain(
                f"{op} is not in the catalog: {counted(len(waiting), 'kernel')} left pending",
                "give the file that defines it: evolve evaluate FILE.py",
            )


def evaluate_op(work: PendingOp, engine: Engine, store: Store, shown: Console) -> Standing:
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


def explained(prefix: str, targets: Sequence[str], kind: str, archive: Path | None, *, as_json: bool) -> None:
    """Explain the verdict in force on each device, or on those of one kind."""
    if targets:
        raise UserError("--explain takes one kernel's id, and nothing is evaluated", "leave out the ops and files")
    if kind and kind not in wiring.DEVICE_KINDS:
        raise UserError(f"there is no device `{kind}`", f"choose one of: {', '.join(wiring.DEVICE_KINDS)}")
    store = wiring.archive(archive, read_only=True)
    kernel = lookup.kernel(store, prefix)
    verdicts = [
        e for e in store.find(Evaluation, kernel.op) if e.kernel_id == kernel.id and kind in ("", e.device.kind)
    ]
    by_device = [[e for e in verdicts if e.device.key == info.key] for info in devices(verdicts)]
    if as_json:
        print_json([facts.of_evaluation(of_one[-1]) for of_one in by_device])
    if not by_device:
        where = f" on a device of the kind {kind}" if kind else ""
        op = kernel.op if kernel.op in op_names() else "FILE.py"
        given = f"{f' --device {kind}' if kind else ''}{archive_option(store.path)}"
        lookup.absent(f"{short(kernel.id)} was never evaluated{where}", f"`evolve evaluate {op}{given}` does that")
    if as_json:
        return
    shown = console()
    for number, of_one in enumerate(by_device):
        if number:
            shown.print("\n")
        for part in explanation(kernel, of_one, shown.width):
            shown.print(part)
