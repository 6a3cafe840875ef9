"""`evolve run`: propose and evaluate kernels, keep the fittest, and show the progress."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.claims import claims_on
from archive.runs import Budget
from evolve import wiring
from evolve.cli import lookup, options, session, setups
from evolve.cli.options import (
    LOCAL,
    AddressOption,
    ArchiveOption,
    DeviceOption,
    EngineOption,
    EvalsOption,
    ExampleOption,
    GpusOption,
    JsonOption,
    Machines,
    MinutesOption,
    ModelOption,
    ProposerOption,
    RunOptions,
    RunSeedOption,
    TokensOption,
    UsdOption,
    op_names,
    with_example,
)
from evolve.cli.session import RunResult, print_proposer
from evolve.cli.setups import Setup
from evolve.cli.signals import Stopped, as_stopped
from evolve.engines import trial
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.report.words import console, listed, print_json, say, say_command, typed
from reference_ops import catalog

if TYPE_CHECKING:
    from reference_ops.op import Op

OPS_HELP = (
    "Names of ops, paths of Python or task files, or module:function. Several ops share one budget. Files "
    "named here are executed with your permissions."
)
OpsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="OP", help=OPS_HELP, autocompletion=op_names, show_default=False)
]
AllOption = Annotated[bool, typer.Option("--all", help="Evolve every op of the catalog, under one budget.")]
UntilSolOption = Annotated[
    float | None,
    typer.Option(help="Stop when every workload reaches this share of the speed of light, such as 0.95."),
]
StrategyOption = Annotated[
    str,
    typer.Option(metavar="evolve|best-of-n", help="best-of-n drafts every kernel from scratch.", show_default="evolve"),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Use only kernels that this run itself proposes.")]
NoTuneOption = Annotated[bool, typer.Option("--no-tune", help="Do not tune the knobs of the models' kernels.")]
NoSeedsOption = Annotated[bool, typer.Option("--no-seeds", help="Do not start from the shipped kernels.")]
NoChampionsOption = Annotated[
    bool, typer.Option("--no-champions", help="Start only from the simplest shipped kernels (simple.cu).")
]
ReplayOption = Annotated[
    str, typer.Option(metavar="RUN", help="Replay the answers of a recorded run instead of asking a model.")
]
ResumeOption = Annotated[
    str,
    typer.Option("--resume", metavar="RUN", help="Continue a run with the rest of its budget; `last` is the newest."),
]


def run(  # noqa: PLR0913, PLR0917 - one per option
    ops: OpsArgument = None,
    every: AllOption = False,
    minutes: MinutesOption = None,
    evals: EvalsOption = None,
    tokens: TokensOption = None,
    usd: UsdOption = None,
    until_sol: UntilSolOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
    engine: EngineOption = LOCAL,
    address: AddressOption = "",
    proposer: ProposerOption = "",
    model: ModelOption = None,
    strategy: StrategyOption = "",
    seed: RunSeedOption = None,
    fresh: FreshOption = False,
    no_tune: NoTuneOption = False,
    no_seeds: NoSeedsOption = False,
    no_champions: NoChampionsOption = False,
    replay: ReplayOption = "",
    resume: ResumeOption = "",
    example: ExampleOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evolve kernels for ops. Results are archived as they arrive; the same command continues from them."""
    limits = options.parse_budget(minutes, evals, tokens, usd, until_sol)
    machines = Machines(gpus, engine, address)
    given = RunOptions(
        device, proposer, tuple(model or ()), replay, fresh, no_tune, no_seeds, strategy, seed, no_champions, machines
    )
    named = with_example(tuple(ops or ()), example)
    command = ["evolve", "run", *named, *(["--all"] if every else []), *_location(given, archive)]
    if resume:
        if every:
            raise UserError("--resume continues with the ops of the run, so --all cannot be used", "leave out --all")
        setup = setups.resumed(resume, named, given, limits, archive)
    elif replay:
        setup = setups.replayed(named, given, limits, archive)
    else:
        setup = setups.new(named, given, limits, every=every)
    result = run_setup(setup, limits, archive, console(stderr=as_json), command)
    if as_json:
        print_json(result.facts)
    if not result.found:
        raise typer.Exit(1)


def run_setup(
    setup: Setup, limits: Budget, archive: Path | None, output: Console, command: Sequence[str] = ()
) -> RunResult:
    """Load the ops, start the workers, run the session and print its output; `command` starts it again."""
    command = [*command] or ["evolve", "run", *setup.locators, *_location(setup.run_options, archive)]
    again, phases = typed(*command, *_repeated(setup, limits)), Phases()
    try:
        run_options = setup.run_options
        setups.check_strategy(run_options.strategy)
        for locator in setup.locators:
            catalog.check(locator)
        if not run_options.replay:
            wiring.check_models(run_options.proposer, run_options.models)
        with as_stopped(), ExitStack() as stack:
            engine = stack.enter_context(
                session.starting_engine(run_options.device, phases, output, run_options.machines)
            )
            models = None
            if not run_options.replay:  # this imports the client of the models' servers while the workers start
                models = wiring.language_models(run_options.proposer, run_options.models, phases.wait)
                _check_proposer(models.name if models else options.OFFLINE, setup)
            archive_created = _creating(archive)
            what = setup.locators[0] if len(set(setup.locators)) == 1 else f"{len(setup.locators)} ops"
            with output.status(f"loading {what}"):
                from evolve.cli import display

                with_seeds = not (run_options.no_seeds or run_options.fresh)
                loaded = _loaded(setup.locators, session.import_catalog if with_seeds else trial.nothing)
                session.load_ahead(engine, loaded)
                if with_seeds:
                    session.look_for_seeds([op for op, _ in loaded])  # runs while the workers start
            archive_created()
            store, tune = stack.enter_context(closing(wiring.archive(archive))), not run_options.no_tune
            if run_options.replay:
                proposer = wiring.replaying(store, run_options.replay, tune=tune)
                _check_proposer(proposer.name, setup)
            else:  # this imports PyTorch, as loading an op does; the first worker imports it at the same time
                proposer = wiring.with_tuner(models, tune=tune)
            session.wait_for_device(engine, run_options.device, output)
            _check_workloads([op for op, _ in loaded], engine.info.kind)
            for op, locator in loaded:
                if catalog.is_path(locator):
                    say(output, _described(op), begin="op        ")
            print_proposer(proposer.name, setup.budget, output)
            resuming = [word for word in command if word != "--all"]
            claims = stack.enter_context(claims_on(store.path))
            backends = session.Backends(proposer, engine, store, phases, claims)
            with output.status("looking for kernels to start from"):
                opened = session.opened(setup, loaded, backends, resuming)
            session.prepare_baselines(engine, loaded, at_once=not opened.seeds)
            again = opened.resume_command()
            return (display.run_search if len(opened.searches) == 1 else display.run_campaign)(opened, output)
    except Stopped:
        say_command(output, "stopped. To continue:", again)
        raise


def _loaded(locators: Sequence[str], meanwhile: Callable[[], object]) -> "list[tuple[Op, str]]":
    """Return each op once, with the locator by which worker processes find it; see `trial.load` for `meanwhile`."""
    found = [(trial.load(op, meanwhile), lookup.locator(op)) for op in locators]
    return list({op.name: (op, locator) for op, locator in found}.values())


def _described(op: "Op") -> str:
    """Return an op's tensors with their dims. Names are sizes that may vary; numbers are fixed."""
    inputs, outputs = (
        ", ".join(f"{spec.name}[{' '.join(spec.dims)}]" for spec in specs) for specs in (op.inputs, op.outputs)
    )
    free = [name for name, _ in op.gpu[0].dims]
    may_vary = f"{listed(free)} may vary" if free else "for exactly these sizes"
    return f"{op.name}: {inputs} -> {outputs}; {may_vary}; {listed(op.dtypes)}"


def _check_workloads(ops: "Sequence[Op]", kind: str) -> None:
    if large := [op.name for op in ops if not op.workloads(kind)]:
        from reference_ops.tasks.smaller import MOST_ELEMENTS, MOST_OPERATIONS, MOST_OUTPUTS

        limits = f"{MOST_OUTPUTS:,} outputs, {MOST_ELEMENTS:,} elements in all, {MOST_OPERATIONS:,} operations"
        raise UserError(
            f"no workload of {listed(large)} is small enough for the {kind} device, which accepts at most {limits}",
            "add an example within these limits, or run it on a machine with a GPU",
        )


def _check_proposer(name: str, setup: Setup) -> None:
    """Raise an error if the proposer needs known kernels and has none, or cannot enforce a limit in dollars."""
    offline = name == options.OFFLINE
    if offline and setup.run_options.fresh:
        raise UserError(
            "the offline proposer varies known kernels, and with --fresh there are none",
            "leave out --fresh, or set OPENAI_API_KEY or OPENAI_BASE_URL to let a model write kernels",
        )
    if setup.budget.usd is not None and not offline and not setup.run_options.replay:
        from evolve.proposers.llm.models import check_priced, check_spends

        check_priced(setup.run_options.models, name)
        if setup.budget == Budget(usd=setup.budget.usd, until_light=setup.budget.until_light):
            check_spends(setup.run_options.models)


def _creating(archive: Path | None) -> Callable[[], object]:
    """Create the archive in a forked process if it does not exist, and return a function that waits for the process.

    Adding the shipped kernels takes a second, during which this process imports PyTorch.
    """
    if wiring.archive_path(archive).exists() or not hasattr(os, "fork"):
        return lambda: None
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):  # this process opens the archive, too, and reports errors
            wiring.archive(archive).close()
        os._exit(0)
    return lambda: os.waitpid(pid, 0)


def _location(run_options: RunOptions, archive: Path | None) -> list[str]:
    """Return the options that were given for the place of evaluation and the archive."""
    given = {"--device": run_options.device, "--archive": str(archive or "")}
    words = [word for option, value in given.items() if value for word in (option, value)]
    return [*words, *run_options.machines.arguments()]


def _repeated(setup: Setup, limits: Budget) -> list[str]:
    """Return the options that start or resume the session again, without --device and --archive."""
    if setup.runs:
        return ["--resume", setup.runs[0].campaign or setup.runs[0].id, *options.budget_arguments(limits)]
    given = replace(setup.run_options, device="")
    strategy = ["--strategy", given.strategy] if given.strategy else []
    seed = ["--seed", str(given.seed)] if given.seed else []
    return [*given.arguments(), *strategy, *seed, *options.budget_arguments(limits)]
