"""`evolve evaluate`: work through what is pending, one line per verdict."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.kernel import Kernel
from archive.records import Evaluation, Proposal
from archive.store import SqliteStore
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, archive_option, op_names
from evolve.cli.starting import engine_on
from evolve.cli.stopping import Stopped
from evolve.report import facts
from evolve.report.console import complain, console, print_json
from evolve.report.details import evaluation_details
from evolve.report.progress import Phases
from evolve.report.standing import Standing, standing
from evolve.report.summary import print_next_steps, print_standing
from evolve.report.tables import made
from evolve.report.words import best_speedup, counted, one_line, short, times

if TYPE_CHECKING:
    from evolve.engines.engine import Engine


@dataclass(frozen=True)
class Work:
    """Kernels of one op to evaluate."""

    op: str
    locator: str
    kernels: tuple[Kernel, ...]


def evaluate(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP | FILE.cu]...", help="Ops, or kernels in files [default: all that is pending].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    device: DeviceOption = "",
    op: Annotated[str, typer.Option("--op", metavar="PATH", help="The file of an op outside the catalog.")] = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Evaluate what was proposed and has no verdict on this device yet."""
    shown = console(stderr=as_json)
    try:
        with closing(wiring.archive(archive)) as store:
            files = tuple(Path(target) for target in targets or [] if target.endswith(".cu"))
            named = [target for target in targets or [] if not target.endswith(".cu")]
            if files:
                from evolve.cli.telling import told

                wanted = tuple(one.proposal for one in told(files, store, op))
                _say_refused(wanted)
            else:
                wanted = ()
            with engine_on(device, Phases(), shown) as engine:
                works = list(_works(named, wanted, op, engine, store, everything=not targets))
                results = [_worked(work, engine, store, shown) for work in works]
    except Stopped:
        shown.print("stopped. What was evaluated is in the archive; the same command goes on from there.")
        raise
    _report(results, wanted, store, shown, as_json=as_json)


def _works(
    named: list[str],
    told: tuple[Proposal, ...],
    op_file: str,
    engine: "Engine",
    store: SqliteStore,
    *,
    everything: bool,
) -> Iterator[Work]:
    """What to evaluate, op by op; ops that nobody knows how to load are named and passed over."""
    from evolve.loop import pending
    from reference_ops import catalog

    files = {lookup.op_name(path): str(catalog.locate(path)) for path in [*named, op_file] if path.endswith(".py")}
    names = [lookup.op_name(name) for name in named]
    if everything:
        names = sorted({kernel.op for kernel in store.find(Kernel)})
    for name in dict.fromkeys([*names, *(proposal.op for proposal in told)]):
        waiting = pending(store, name, engine.info)
        if not (everything or name in names):
            ids = {proposal.kernel_id for proposal in told}
            waiting = [kernel for kernel in waiting if kernel.id in ids]
        if name in files or name in catalog.names():
            yield Work(name, files.get(name, name), tuple(waiting))
        elif everything:
            if waiting:
                complain(
                    f"{name} is not in the catalog: {counted(len(waiting), 'kernel')} left pending",
                    f"give the file that defines it: evolve evaluate PATH/{name}.py",
                )
        else:
            catalog.locate(name)  # raises, with what there is


def _worked(work: Work, engine: "Engine", store: SqliteStore, shown: Console) -> Standing:
    from evolve.engines.engine import Job

    if work.kernels:
        shown.print(f"{work.op}: {counted(len(work.kernels), 'kernel')} to evaluate", style="bold")
    proposals = store.find(Proposal, work.op)
    names = standing(work.op, engine.info, store.find(Kernel, work.op), proposals, [])
    jobs = (Job(kernel, work.locator) for kernel in work.kernels)
    for number, evaluation in enumerate(engine.evaluate(jobs), start=1):
        store.append(evaluation)
        what = f"{short(evaluation.kernel_id)} {made(names, evaluation.kernel_id)}"
        passed = f"passed, best {times(best_speedup(evaluation))}"
        said = passed if evaluation.passed else f"{evaluation.outcome}: {one_line(evaluation.log)}"
        shown.print(
            f"[{number}/{len(work.kernels)}] {what}: {said}", style="" if evaluation.passed else "red", soft_wrap=True
        )
    return standing(work.op, engine.info, names.kernels.values(), proposals, store.find(Evaluation, work.op))


def _say_refused(told: tuple[Proposal, ...]) -> None:
    for proposal in told:
        if proposal.kernel is None:
            complain(one_line(proposal.failure, 300))


def _report(
    results: list[Standing], told: tuple[Proposal, ...], store: SqliteStore, shown: Console, *, as_json: bool
) -> None:
    if as_json:
        print_json([facts.of_standing(result) for result in results])
    else:
        asked = {proposal.kernel_id for proposal in told if proposal.kernel}
        for result in results:
            for kernel_id in sorted(asked & result.verdicts.keys()):
                shown.print(f"\n{short(kernel_id)}", style="bold", end="")
                for part in evaluation_details(result.verdicts[kernel_id]):
                    shown.print(part)
            shown.print()
            print_standing(shown, result, population=False)
            print_next_steps(shown, result, archive_option(store.path))
    if not results:
        lookup.absent("there is nothing to evaluate", "`evolve run softmax` or `evolve tell FILE.cu` brings kernels")
    judged = [result.verdicts[p.kernel_id] for p in told for result in results if p.kernel_id in result.verdicts]
    if not (any(verdict.passed for verdict in judged) if told else any(result.champions for result in results)):
        raise typer.Exit(1)
