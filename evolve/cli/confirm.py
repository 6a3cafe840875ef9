"""`evolve confirm` tests champions more strictly, `verify` tests them after an update or on another GPU."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from archive.claims import claims_on
from archive.records import DeviceInfo, Evaluation
from archive.store import Store
from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import lookup, options, signals
from evolve.cli.options import (
    OFFLINE,
    ArchiveOption,
    DeviceOption,
    ExampleOption,
    GpusOption,
    JsonOption,
    Machines,
    archive_option,
    op_names,
    with_example,
)
from evolve.cli.session import engine_on, print_waits, starting_engine, wait_for_device
from evolve.cli.signals import Stopped
from evolve.devices.choose import policy_of
from evolve.engines import trial
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.basis import known_basis
from evolve.report.kernel import duels_table, sanitizer_words
from evolve.report.live import confirmation_line
from evolve.report.progress import Phases
from evolve.report.words import complain, console, counted, listed, print_json, say, say_command, short, times_note
from evolve.selection.population import Champion
from evolve.selection.sharing import Share
from evolve.selection.view import OpView
from reference_ops import catalog

if TYPE_CHECKING:
    from archive.sqlite import SqliteStore
    from evolve.engines.engine import Engine
    from evolve.export.verify import Row, Task, Workers


def confirm(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP]...", help="Names of ops, or paths of Python files [default: all in the archive].",
                       autocompletion=op_names, show_default=False),
    ] = None,
    example: ExampleOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Test champions again in a fresh process. This adds held-out shapes, duels with PyTorch and compute-sanitizer."""
    output, named = console(stderr=as_json), with_example(tuple(ops or ()), example)
    try:
        with signals.as_stopped(), closing(wiring.archive(archive)) as store:
            locators = dict(_named(named)) if ops else dict(_archived(store))
            with (
                engine_on(device, phases := Phases(), output, Machines(gpus)) as engine,
                claims_on(store.path) as claims,
            ):
                share = Share(claims, phases.wait)
                print_waits(phases, output)
                verdicts = _confirmed(locators, engine, store, share, output)
                any_champion = any(_champions(op, engine, store) for op in locators)
    except Stopped:
        output.print("stopped. Finished confirmations are in the archive; the same command continues from them.")
        raise
    if as_json:
        print_json([facts.of_evaluation(verdict) for verdict in verdicts])
    if any_champion and not verdicts:
        output.print("nothing is left to confirm: every champion on this device is confirmed")
    elif not verdicts:
        of = f" of {listed(list(locators))}" if ops else ""
        lookup.absent(
            f"nothing to confirm: the archive has no champion{of} on this device",
            "`evolve top` shows the champions of each device",
        )
    if not all(verdict.confirmed for verdict in verdicts):
        raise typer.Exit(1)


def _named(ops: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the locator of each op on the command line."""
    for op in ops:
        yield trial.load(op).name, lookup.locator(op)


def _archived(store: "SqliteStore") -> Iterator[tuple[str, str]]:
    """Yield the name and the locator of each op evaluated on this device; warn about ops outside the catalog."""
    for op in sorted(store.count(Evaluation, "op", shipped=False)):
        if op in op_names():
            yield op, op
        else:
            complain(f"{op} is not in the catalog, so it is left out", lookup.how_to_name(store, op, "evolve confirm"))


def _champions(op: str, engine: "Engine", store: "SqliteStore") -> tuple[Champion, ...]:
    return OpView(store, op, engine.info).champions()


def _confirmed(
    locators: Mapping[str, str], engine: "Engine", store: "SqliteStore", share: Share, output: Console
) -> list[Evaluation]:
    """Confirm the champions of all ops; print each verdict as it arrives, and all duels at the end."""
    from evolve.confirm import Champions
    from evolve.confirm import confirm as confirmed

    verdicts: list[Evaluation] = []
    ops = [Champions(locator, OpView(store, op, engine.info), share) for op, locator in locators.items()]
    for verdict in confirmed(ops, engine):
        signals.check()
        say(output, f"{verdict.op}: {confirmation_line(verdict)}", "" if verdict.confirmed else "red")
        verdicts.append(verdict)
    for op in locators:
        _print_duels(op, engine, store, output)
    for verdict in verdicts:
        if not verdict.confirmed:
            command = f"evolve evaluate --explain {short(verdict.kernel_id)}{archive_option(store.path)}"
            say_command(output, f"why {short(verdict.kernel_id)} failed:", command, "dim")
    return verdicts


def _print_duels(op: str, engine: "Engine", store: "SqliteStore", output: Console) -> None:
    on_gpu = known_basis(engine.info.kind).is_pytorch
    champions = [champion for champion in _champions(op, engine, store) if champion.duel and on_gpu]
    in_force = {
        evaluation.kernel_id: evaluation
        for evaluation in store.find(Evaluation, op, kernels=[champion.kernel_id for champion in champions])
        if evaluation.device.key == engine.info.key
    }
    if champions:
        output.print(f"\n{op} on {engine.info.name}", style="bold")
        duels = tuple(champion.duel for champion in champions if champion.duel)
        output.print(duels_table(duels, {champion.workload: champion.kernel_id for champion in champions}))
        for kernel_id in dict.fromkeys(champion.kernel_id for champion in champions):
            words, style = sanitizer_words(in_force[kernel_id])
            say(output, f"{short(kernel_id)} under the sanitizer: {words}", style)


MINUTES = 10.0
MANIFEST = "manifest.json"
TARGETS_HELP = "Names of ops, or the folder of an exported package [default: every op with champions]."


def verify(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OP... | PACKAGE]", help=TARGETS_HELP, autocompletion=op_names, show_default=False),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="Begin no evaluation after this time.")] = MINUTES,
    retune: Annotated[
        bool,
        typer.Option("--retune", help="Afterwards, let the tuner adapt the knobs to this GPU in the remaining time."),
    ] = False,
    device: DeviceOption = "",
    gpus: GpusOption = "",
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check and time champions again on this device.

    Exit with code 1 if a champion is wrong, or slower than before on this GPU.
    """
    from evolve.export import verify as verification
    from evolve.report.verified import verification_facts

    output, limit = console(stderr=as_json), options.parse_budget(minutes, None, None, None, None)
    package, ops = _parted(targets or [])
    for op in ops:
        catalog.check(op)
    try:
        with signals.as_stopped(), ExitStack() as stack:
            engine = stack.enter_context(starting_engine(device, phases := Phases(), output, Machines(gpus)))
            if retune and not policy_of(engine_kind := engine.info.kind).times_are_gpu_times:
                raise UserError(
                    f"the {engine_kind} device has no GPU times, so knobs cannot be tuned on it", "leave out --retune"
                )
            store = stack.enter_context(closing(wiring.archive(archive)))
            wait_for_device(engine, device, output)
            claims = stack.enter_context(claims_on(store.path))
            deadline = time.monotonic() + (limit.seconds or 0.0)
            work = verification.Workers(engine, store, Share(claims, phases.wait))
            tasks, info = _tasks(package, ops, store, engine.info), engine.info
            verdicts = _verified(tasks, work, deadline, output)
            for number, (task, locator) in enumerate(tasks if retune else ()):
                seconds = (deadline - time.monotonic()) / (len(tasks) - number)
                if seconds > 0 and any(verdict.passed for verdict in verdicts[task.op]):
                    verdicts[task.op] += _retuned(task, locator, work, seconds, output)
            rows = [row for task, _ in tasks for row in verification.rows(task, verdicts[task.op], info)]
    except Stopped:
        output.print("stopped. Finished verdicts are in the archive; the same command starts again.")
        raise
    if as_json:
        print_json(verification_facts(rows, info))
    else:
        _print(rows, info, output)
    if any(row.status.is_regression for row in rows):
        raise typer.Exit(1)


def _parted(targets: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the folder of a package with its manifest, or else the ops."""
    folders = [Path(target) for target in targets if Path(target).is_dir()]
    if not folders:
        return None, list(targets)
    if len(targets) > 1:
        raise UserError(
            "a package cannot be verified together with ops or other packages",
            "name one package, or ops without a package",
        )
    found = sorted({path.parent for pattern in (MANIFEST, f"*/{MANIFEST}") for path in folders[0].glob(pattern)})
    if len(found) != 1:
        raise UserError(f"{folders[0]} holds no exported package", "name the folder that `evolve export` wrote")
    return found[0], []


def _tasks(package: Path | None, ops: Sequence[str], store: Store, info: DeviceInfo) -> "list[tuple[Task, str]]":
    """Return the tasks with the locators of their ops."""
    from evolve.export import verify as verification

    if package:
        tasks = verification.from_package(package, info)
        for task in tasks:
            if task.op not in op_names():
                complain(f"{task.op} is not in the catalog, so it is left out", "run `evolve confirm` with its file")
        found = [(task, task.op) for task in tasks if task.op in op_names()]
    else:
        evaluated = [op for op in sorted(store.count(EvaluationSummary, "op")) if op in op_names()]
        named = {trial.load(op).name: lookup.locator(op) for op in ops} or {op: op for op in evaluated or op_names()}
        every = [(verification.from_archive(store, op, info), locator) for op, locator in named.items()]
        found = [(task, locator) for task, locator in every if task]
    if not any(task.kernels for task, _ in found):
        lookup.absent("there is no kernel to verify", "`evolve top` shows the champions; `evolve run OP` finds some")
    return found


def _verified(
    tasks: "Sequence[tuple[Task, str]]", work: "Workers", deadline: float, output: Console
) -> dict[str, list[Evaluation]]:
    """Return the new verdicts by op."""
    from evolve.export.verify import verified

    verdicts: dict[str, list[Evaluation]] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=output, transient=True, disable=not output.is_terminal) as progress:
        bar = progress.add_task("", total=sum(len(task.kernels) for task, _ in tasks))
        for task, locator in tasks:
            progress.update(bar, description=task.op)
            found = verdicts.setdefault(task.op, [])
            for verdict in verified(task, locator, work, deadline):
                found.append(verdict)
                progress.update(bar, advance=1)
                signals.check()
    return verdicts


def _retuned(task: "Task", locator: str, work: "Workers", seconds: float, output: Console) -> Iterator[Evaluation]:
    from evolve.export.verify import retuned

    with output.status(f"tuning {task.op}"):
        for verdict in retuned(trial.load(locator), locator, wiring.proposer(OFFLINE), work, seconds):
            signals.check()
            yield verdict


def _print(rows: "Sequence[Row]", info: DeviceInfo, output: Console) -> None:
    from evolve.report import verified as report

    output.print(report.verified_table(rows, info, output.width))
    output.print()
    for reason in report.reasons(rows):
        output.print(reason, style="red", soft_wrap=True)
    output.print(report.summary(rows, info))
    if note := times_note(info.kind):
        output.print(f"checked, not timed ({note})", style="yellow")
    else:
        output.print(report.MEANS, style="dim")
    if left := sum(row.status == "not reached" for row in rows):
        output.print(f"{counted(left, 'row')} not reached: give more --minutes, or name fewer ops", style="yellow")
