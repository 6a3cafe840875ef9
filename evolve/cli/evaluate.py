"""`evolve evaluate` and `work`: pending kernels of an archive, or of a folder shared with other machines."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from archive import ArchiveError, seeds
from archive.claims import claims_on
from archive.kernel import Kernel
from archive.records import DeviceInfo, Evaluation
from archive.sqlite import open_archive
from archive.store import Store
from evolve import wiring
from evolve.cli import lookup, signals
from evolve.cli.exchange import ADD_FILE, take_files, without_op
from evolve.cli.options import (
    LOCAL,
    AddressOption,
    ArchiveOption,
    DeviceOption,
    EngineOption,
    ExampleOption,
    GpusOption,
    JsonOption,
    Machines,
    archive_option,
    kernel_ids,
    op_names,
    with_example,
)
from evolve.cli.session import print_waits, starting_engine, wait_for_device
from evolve.cli.signals import Stopped
from evolve.devices import choose
from evolve.engines import trial
from evolve.engines.engine import Engine, Job, devices_of, on_device
from evolve.engines.shared_folder import Folder, FolderClaims, claims_in
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.basis import Basis
from evolve.report.explain import explanation
from evolve.report.kernel import evaluation_details
from evolve.report.progress import Phases
from evolve.report.standing import Standing, devices, standing
from evolve.report.standing_tables import origin, print_next_steps, print_standing
from evolve.report.words import SHORT_INDENT, complain, console, counted, one_line, print_json, say, short, times
from evolve.selection import selection
from evolve.selection.sharing import Share
from evolve.selection.view import OpView
from reference_ops import catalog
from reference_ops.catalog import is_path

EXPLAIN_HELP = "Do not evaluate; print what was checked on this kernel, and why it passed or failed."
TARGETS_HELP = "Ops, or .cu files with kernels, plus the op's file if it is not in the catalog [default: all pending]."
ORIGIN_SHOWN, REASON_SHOWN = 60, 200  # characters


def evaluate(  # noqa: PLR0913, PLR0917 - one per option
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP | FILE.cu]...", help=TARGETS_HELP, autocompletion=op_names, show_default=False),
    ] = None,
    explain: Annotated[
        str, typer.Option("--explain", metavar="ID", help=EXPLAIN_HELP, autocompletion=kernel_ids, show_default=False)
    ] = "",
    shipped: Annotated[
        bool, typer.Option("--shipped", help="Also evaluate the kernels of the named ops that ship with evolve.")
    ] = False,
    example: ExampleOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
    engine: EngineOption = LOCAL,
    address: AddressOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate pending kernels, or explain a verdict. Pending kernels have no verdict on this device yet.

    Kernels that a GPU has judged are evaluated on the emulated device only if their op or file is named.
    """
    if shipped and not targets:
        raise UserError("--shipped needs an OP", "name ops, such as softmax; `evolve ops` lists them")
    if explain:
        print_explanation(explain, targets or [], device, archive, as_json=as_json)
        return
    output = console(stderr=as_json)
    sources = [target for target in targets or [] if target.endswith(".cu")]
    named = [*sources, *with_example(tuple(one for one in targets or () if one not in sources), example)]
    try:
        with signals.as_stopped(), closing(wiring.archive(archive)) as store:
            check_targets(named)
            phases, machines = Phases(), Machines(gpus, engine, address)
            with starting_engine(device, phases, output, machines) as started, claims_on(store.path) as claims:
                share = Share(claims, phases.wait)
                print_waits(phases, output)
                chosen = parse_targets(named, store)
                wait_for_device(started, device, output)
                results = []
                for info in devices_of(started):
                    of_device = on_device(started, info.key)
                    pending = list(pending_ops(chosen, info, store, shipped=shipped))
                    results += evaluate_ops(pending, of_device, store, share, output)
            given = archive_option(store.path)
    except Stopped:
        output.print("stopped. Finished evaluations are in the archive; the same command continues from them.")
        raise
    if as_json:
        print_json([facts.of_standing(result) for result in results])
    else:
        for result in results:
            _print_result(result, chosen, given, output)
    if not results:
        lookup.absent(
            "nothing to evaluate: no kernel is pending on this device",
            "`evolve run` or `evolve tell FILE.cu` adds kernels",
        )
    judged = [result.verdicts[kernel_id] for result in results for kernel_id in chosen.kernels & result.verdicts.keys()]
    if not (any(verdict.passed for verdict in judged) if judged else any(result.champions for result in results)):
        raise typer.Exit(1)


@dataclass(frozen=True)
class Targets:
    """The ops and kernels named on the command line; empty if all pending kernels are to be evaluated."""

    ops: dict[str, str]  # locators; key: op name
    kernels: frozenset[str]  # ids of kernels from files
    restricted: frozenset[str]  # names of ops of which only the kernels in `kernels` are evaluated

    @property
    def everything(self) -> bool:
        return not self.ops


@dataclass(frozen=True)
class PendingOp:
    """Kernels of one op to evaluate."""

    op: str
    locator: str
    kernels: tuple[str, ...]  # ids of the pending kernels
    named: frozenset[str] = frozenset()  # ids of the kernels whose verdicts are printed at the end


def check_targets(targets: Sequence[str]) -> None:
    """Raise an error for ops that do not exist, before anything is loaded or started."""
    for target in targets:
        if not target.endswith(".cu"):
            catalog.check(target)


def parse_targets(targets: Sequence[str], store: Store) -> Targets:
    """Return the ops and kernels that the command line names; kernels in files are archived at once."""
    kernels = [target for target in targets if target.endswith(".cu")]
    defined = [target for target in targets if is_path(target) and target not in kernels]
    files = {trial.load(target).name: catalog.lasting(target) for target in defined}
    named = [target for target in targets if target not in (*kernels, *defined)]
    ops = {**files, **{name: name for name in named}}
    if not kernels:
        return Targets(ops, frozenset(), frozenset())
    told, strangers = take_files(tuple(Path(target) for target in kernels), defined, store)
    for complaint in without_op(tuple(Path(target) for target in kernels), strangers):
        complain(complaint, ADD_FILE)
    taken = [one.proposal for one in told]
    for proposal in taken:
        if proposal.kernel is None:
            complain(one_line(proposal.failure, 300))
    found = dict.fromkeys(proposal.op for proposal in taken if proposal.kernel)  # in the order of the files
    if not found:
        raise UserError(
            f"no kernel in {counted(len(kernels), 'file')} can be evaluated", "correct the errors listed above"
        )
    ids = frozenset(proposal.kernel_id for proposal in taken if proposal.kernel)
    return Targets({**{op: op for op in found}, **ops}, ids, frozenset(found).difference(named))


def pending_ops(targets: Targets, info: DeviceInfo, store: Store, *, shipped: bool = False) -> Iterator[PendingOp]:
    """Yield the ops to evaluate with their pending kernels, and warn about pending ops outside the catalog.

    With `shipped`, the kernels that ship with the package are pending too.
    """
    for op in targets.ops or sorted(store.count(Kernel, "op")):
        view = OpView(store, op, info)
        view.ask_for(kernel.id for kernel in (seeds.kernels(op) if shipped else []))
        pending = view.pending(every=not targets.everything)
        if op in targets.restricted:
            pending = [kernel_id for kernel_id in pending if kernel_id in targets.kernels]
        if not targets.everything:
            yield PendingOp(op, targets.ops[op], tuple(pending), targets.kernels)
        elif pending and op in catalog.names():
            yield PendingOp(op, op, tuple(pending))
        elif pending:
            complain(
                f"{op} is not in the catalog, so {counted(len(pending), 'kernel')} stay pending",
                lookup.how_to_name(store, op, "evolve evaluate"),
            )


@dataclass
class OpInProgress:
    """An op whose pending kernels are being evaluated."""

    work: PendingOp
    view: OpView
    before: Standing
    left: Sequence[str]  # ids of the kernels that still need a verdict


def evaluate_ops(
    works: Sequence[PendingOp], engine: Engine, store: Store, share: Share, output: Console
) -> list[Standing]:
    """Evaluate kernels of several ops, archive and print each verdict, and return the ops' standings afterwards.

    A kernel that another process is evaluating is skipped. It is evaluated here if that process ends without a verdict.
    """
    ops = {work.op: _begun(work, engine, store) for work in works}
    named = [work.op for work in works if work.kernels]
    total, number = sum(len(work.kernels) for work in works), 0
    if total:
        what = named[0] if len(named) == 1 else f"{len(named)} ops"
        output.print(f"{what}: {counted(total, 'kernel')} to evaluate on {engine.info.name}", style="bold")
    while any(op.left for op in ops.values()):
        for found in _evaluations(list(ops.values()), engine, share):
            op = ops[found.op]
            for evaluation in share.judged(op.view, [found]):
                store.append(evaluation)
                signals.check()
                number += 1
                of = f"{found.op}: " if len(named) > 1 else ""
                what = f"{short(found.kernel_id)} {one_line(origin(op.before, found.kernel_id), ORIGIN_SHOWN)}"
                line = f"[{number}/{total}] {of}{what}: {_verdict(evaluation, op.before.basis)}"
                say(output, line, "" if evaluation.passed else "red", indent=SHORT_INDENT)
        if not any(share.others_work(op.view) for op in ops.values()):
            break
        for op in ops.values():
            judged = op.view.verdicts()
            op.left = [one for one in op.left if one not in judged]
    if others := total - number:
        output.print(f"another process has evaluated {counted(others, 'kernel')}")
    return [standing(store, work.op, engine.info, named=work.named) for work in works]


def _begun(work: PendingOp, engine: Engine, store: Store) -> OpInProgress:
    before = standing(store, work.op, engine.info, named=work.kernels)
    return OpInProgress(work, OpView(store, work.op, engine.info), before, work.kernels)


def _evaluations(ops: Sequence[OpInProgress], engine: Engine, share: Share) -> Iterator[Evaluation]:
    """Yield the verdicts on the kernels that are left, except those that another process claims first."""
    agendas = [(op, selection.agenda(op.view, share.free(op.view, op.left))) for op in ops]
    for op, agenda in agendas:
        yield from (verdict for verdict in agenda.repeated if share.take(op.view, verdict.kernel_id))
    yield from engine.evaluate(
        Job(kernel, op.work.locator, agenda.bars, duplicates=agenda.duplicates)
        for op, agenda in agendas
        for kernel in agenda.new
        if share.take(op.view, kernel.id)
    )


def _verdict(evaluation: Evaluation, basis: Basis) -> str:
    if evaluation.passed:
        best = basis.best(evaluation)
        over = "" if basis.is_pytorch else " over the first kernel"
        return "passed" if best is None else f"passed, best {times(best)}{over}"
    return f"{evaluation.outcome}: {one_line(evaluation.log, REASON_SHOWN)}"


def _print_result(result: Standing, targets: Targets, given: str, output: Console) -> None:
    for kernel_id in sorted(targets.kernels & result.verdicts.keys()):
        output.print(f"\n{short(kernel_id)}", style="bold", end="")
        for part in evaluation_details(result.verdicts[kernel_id], output.width, result.basis):
            output.print(part)
    output.print()
    print_standing(output, result, population=False)
    print_next_steps(output, result, targets.ops.get(result.op, result.op), given)


def print_explanation(prefix: str, targets: Sequence[str], kind: str, archive: Path | None, *, as_json: bool) -> None:
    """Explain the latest verdict on each device, or on each device of one kind."""
    if targets:
        raise UserError(
            f"--explain takes no ops or files, got {', '.join(targets)}",
            "leave them out, or leave out --explain to evaluate them",
        )
    if kind:
        choose.check_kind(kind)
    store = wiring.archive(archive, read_only=True)
    kernel = lookup.kernel(store, prefix)
    verdicts = [e for e in store.find(Evaluation, kernels=[kernel.id]) if kind in ("", e.device.kind)]
    infos = [info for info in devices(store, kernel.op) if any(e.device.key == info.key for e in verdicts)]
    by_device = [[e for e in verdicts if e.device.key == info.key] for info in infos]
    if as_json:
        print_json([facts.of_evaluation(of_one[-1]) for of_one in by_device])
    if not by_device:
        where = f" on a {kind} device" if kind else ""
        op = kernel.op if kernel.op in op_names() else "FILE.py"
        given = f"{f' --device {kind}' if kind else ''}{archive_option(store.path)}"
        lookup.absent(f"{short(kernel.id)} has no evaluation{where}", f"`evolve evaluate {op}{given}` makes one")
    if as_json:
        return
    output = console()
    for number, of_one in enumerate(by_device):
        if number:
            output.print("\n")
        for part in explanation(kernel, of_one, output.width):
            output.print(part)


LOOK_SECONDS = 5.0
FOLDER_HELP = "Folder that all machines see, or HOST:FOLDER if ssh reaches it, with archives (*.db) of kernels."
MINUTES_HELP = "Minutes to wait for archives with more kernels [default: end when no kernel is pending]."


def work(
    folder: Annotated[str, typer.Argument(metavar="FOLDER|HOST:FOLDER", help=FOLDER_HELP)],
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Ops to evaluate; files of ops outside the catalog must be named.",
                       autocompletion=op_names, show_default=False),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help=MINUTES_HELP, show_default=False)] = 0.0,
    example: ExampleOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
) -> None:  # fmt: skip
    """Evaluate the pending kernels of a shared folder. Workers on any number of machines share the work.

    `evolve merge FOLDER` adds the verdicts to an archive.
    """

    output, named = console(), with_example(tuple(ops or ()), example)
    check_targets(named)
    place = Folder(folder)
    place.list()
    deadline = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="evolve-work-") as here:
        phases = Phases()
        with (
            closing(open_archive(Path(here) / "archive.db")) as store,
            starting_engine(device, phases, output, Machines(gpus)) as engine,
            claims_in(place, store) as claims,
        ):
            print_waits(phases, output)
            targets = Targets({trial.load(op).name: catalog.lasting(op) for op in named}, frozenset(), frozenset())
            try:
                with signals.as_stopped():
                    wait_for_device(engine, device, output)
                    _work(claims, targets, engine, store, Share(claims, phases.wait), deadline, output)
            except Stopped:
                output.print("stopped. Finished evaluations are in the folder; other workers evaluate the rest.")
                raise
            finally:
                output.print(f"{counted(claims.committed, 'verdict')} by this worker")
    output.print(f"next: evolve merge {folder}", soft_wrap=True)


def _work(
    claims: FolderClaims,
    targets: "Targets",
    engine: Engine,
    store: Store,
    share: Share,
    deadline: float,
    output: Console,
) -> None:
    """Evaluate the folder's pending kernels, and look for new ones until the deadline."""

    while True:
        try:
            claims.refresh()
        except ArchiveError as error:
            raise UserError(str(error), "remove that file; its kernel is then evaluated again") from error
        pending = [work for work in pending_ops(targets, engine.info, store) if work.kernels]
        evaluate_ops(pending, engine, store, share, output)
        signals.check()
        if time.monotonic() >= deadline and not pending:
            return
        if not pending:
            time.sleep(LOOK_SECONDS)
