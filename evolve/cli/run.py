"""`evolve run`: propose, evaluate, keep the fittest, and show it while it happens."""

import shlex
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from archive.proposals import Budget
from evolve import wiring
from evolve.cli import lookup, options, session
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, ModelOption, RunOptions, op_names
from evolve.cli.session import Plan, engine_on, say_proposer
from evolve.cli.signals import Stopped
from evolve.errors import UserError
from evolve.report.progress import Phases
from evolve.report.words import console, print_json

if TYPE_CHECKING:
    from evolve.cli.session import Result
    from reference_ops.op import Op

MINUTES_HELP = (
    f"Time to spend; confirming the champions comes on top [default: {options.OFFLINE_MINUTES:g}, with a model "
    f"{options.MODEL_MINUTES:g}, unless --evals or, with a model, --tokens or --usd is given]."
)
OpsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="Ops: names, paths of Python files or of others' tasks, module:function. "
                   "Several share one budget. A file given here is run, with all that you may do.",
                   autocompletion=op_names, show_default=False),
]  # fmt: skip
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=-(2**63), max=2**63 - 1, show_default=False,
                 help="Every random choice follows from it [default: 0]."),
]  # fmt: skip
StrategyOption = Annotated[
    str, typer.Option(metavar="evolve|best-of-n", help="best-of-n asks each time anew.", show_default="evolve")
]
ExampleOption = Annotated[
    Path | None,
    typer.Option("--example", exists=True, dir_okay=False, show_default=False,
                 help="For OP module:function or file.py:function: a Python file with `examples`, a list of inputs."),
]  # fmt: skip
ResumeOption = Annotated[
    str, typer.Option("--resume", metavar="RUN", help="Go on with what is left of a run's budget; `last` is the newest")
]


def run(  # noqa: PLR0913, PLR0917 - one per option
    ops: OpsArgument = None,
    every: Annotated[bool, typer.Option("--all", help="Every op of the catalog, under one budget.")] = False,
    minutes: Annotated[float | None, typer.Option(help=MINUTES_HELP, show_default=False)] = None,
    evals: Annotated[int | None, typer.Option(help="Evaluations to spend.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens to spend on models.")] = None,
    usd: Annotated[float | None, typer.Option(help="Dollars to spend on models.")] = None,
    until_sol: Annotated[
        float | None, typer.Option(help="Stop when every workload reaches this share of the speed of light.")
    ] = None,
    device: DeviceOption = "",
    proposer: Annotated[
        str, typer.Option(metavar="offline|llm", help="Who proposes.", show_default="llm if a model is configured")
    ] = "",
    model: ModelOption = None,
    strategy: StrategyOption = "",
    seed: SeedOption = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Use only what this run itself proposes.")] = False,
    no_tune: Annotated[
        bool, typer.Option("--no-tune", help="Models only: nobody varies their kernels' knobs.")
    ] = False,
    no_seeds: Annotated[bool, typer.Option("--no-seeds", help="Leave out the shipped kernels.")] = False,
    replay: Annotated[
        str, typer.Option(metavar="RUN", help="Answer from a recorded run instead of asking a model.")
    ] = "",
    resume: ResumeOption = "",
    example: ExampleOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evolve kernels for ops. Everything found is archived at once; the same command goes on from there."""
    given = options.typed(minutes, evals, tokens, usd, until_sol)
    typed = RunOptions(
        device,
        proposer,
        tuple(model or ()),
        replay,
        fresh,
        no_tune,
        no_seeds,
        strategy,
        seed,
    )
    named = exemplified(tuple(ops or ()), example)
    base = ["evolve", "run", *named, *(["--all"] if every else []), *_places(device, archive)]
    if resume:
        if every:
            raise UserError("--resume goes on with the ops that the run has", "leave out --all")
        plan = session.resumed(resume, named, typed, given, archive)
    elif replay:
        plan = session.replayed(named, typed, given, archive)
    else:
        plan = session.new(named, typed, given, every=every)
    shown = console(stderr=as_json)
    result = carried_out(plan, given, archive, shown, base)
    if as_json:
        print_json(result.facts)
    if not result.found:
        raise typer.Exit(1)


def carried_out(plan: Plan, given: Budget, archive: Path | None, shown: Console, typed: Sequence[str] = ()) -> "Result":
    """The plan, from the first line that is shown to the last; `typed` is the command that would begin it again."""
    base = [*typed] or ["evolve", "run", *plan.locators, *_places(plan.run_options.device, archive)]
    again, phases = shlex.join([*base, *_kept(plan, given)]), Phases()
    try:
        with shown.status(f"loading {plan.locators[0] if len(plan.locators) == 1 else f'{len(plan.locators)} ops'}"):
            from evolve.cli import display, session

            loaded = _loaded(plan.locators)
        run_options, who = plan.run_options, None
        session.check_strategy(run_options.strategy)
        if not run_options.replay:
            who = wiring.proposer(run_options.proposer, run_options.models, tune=not run_options.no_tune)
        with ExitStack() as stack:
            store = stack.enter_context(closing(wiring.archive(archive)))
            who = who or wiring.replaying(store, run_options.replay, tune=not run_options.no_tune)
            _check_proposer(who.name, plan)
            engine = stack.enter_context(engine_on(run_options.device, phases, shown))
            _check_sizes([op for op, _ in loaded], engine.info.kind)
            say_proposer(who.name, plan.budget, shown)
            words = [word for word in base if word != "--all"]
            opened = session.opened(plan, loaded, session.Backends(who, engine, store, phases), words)
            again = opened.again()
            return (display.run_search if len(opened.searches) == 1 else display.run_campaign)(opened, shown)
    except Stopped:
        shown.print(f"stopped. To go on from here: {again}", soft_wrap=True)
        raise


def _loaded(locators: Sequence[str]) -> "list[tuple[Op, str]]":
    from reference_ops import catalog

    found = [(catalog.load(op), lookup.locator(op)) for op in locators]
    return list({op.name: (op, locator) for op, locator in found}.values())


def exemplified(ops: tuple[str, ...], example: Path | None) -> tuple[str, ...]:
    """The locator of a function names the file with its example inputs, so that workers find both."""
    if example is None:
        return ops
    if len(ops) != 1 or ":" not in ops[0]:
        raise UserError("--example belongs to one function", "give it as module:function or file.py:function")
    return (f"{ops[0]}@{example.resolve()}",)


def _check_sizes(ops: "Sequence[Op]", kind: str) -> None:
    if large := [op.name for op in ops if not op.workloads(kind)]:
        raise UserError(f"nothing of {', '.join(large)} is small enough to emulate", "run it on a machine with a GPU")


def _check_proposer(name: str, plan: Plan) -> None:
    """A fresh run needs somebody who writes kernels, and a limit in dollars is held only where a token has a price."""
    offline = name == options.OFFLINE
    if offline and plan.run_options.fresh:
        raise UserError(
            "the offline proposer varies kernels at hand, and with --fresh there are none",
            "leave --fresh out, or set OPENAI_API_KEY or OPENAI_BASE_URL for a model that writes some",
        )
    if plan.budget.usd is not None and not offline and not plan.run_options.replay:
        from evolve.proposers.llm.models import check_priced, check_spends

        check_priced(plan.run_options.models, name)
        if plan.budget == Budget(usd=plan.budget.usd, until_light=plan.budget.until_light):
            check_spends(plan.run_options.models)


def _places(device: str, archive: Path | None) -> list[str]:
    given = {"--device": device, "--archive": str(archive or "")}
    return [word for option, value in given.items() if value for word in (option, value)]


def _kept(plan: Plan, given: Budget) -> list[str]:
    """What was typed for a run that has no id yet, but for the device, which is named already."""
    if plan.runs:
        return ["--resume", plan.runs[0].campaign or plan.runs[0].id, *options.options(given)]
    run_options = replace(plan.run_options, device="")
    strategy = ["--strategy", run_options.strategy] if run_options.strategy else []
    seed = ["--seed", str(run_options.seed)] if run_options.seed else []
    return [*run_options.options(), *strategy, *seed, *options.options(given)]
