"""The `evolve` application: its commands in the order of the help text, and --version."""

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from evolve.cli import (
    ask,
    browse,
    confirm,
    doctor,
    evaluate,
    exchange,
    export,
    figures,
    kernelbench,
    ops,
    pages,
    profile,
    run,
    runs,
    ship,
    verify,
    work,
)

EPILOG = "Start with `evolve doctor`, then `evolve run softmax`."

app = typer.Typer(
    name="evolve",
    help="Evolve CUDA kernels for PyTorch ops: propose, check and time kernels, keep the fittest.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help is shorter and prints square brackets as they are
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    run.run, runs.runs, runs.compare, ops.ops, kernelbench.kernelbench,
    browse.top, browse.show, browse.diff, browse.tree, pages.serve, pages.report, ask.ask,
    exchange.tell, evaluate.evaluate, work.work, confirm.confirm, verify.verify, profile.profile, exchange.merge,
    exchange.recover,
    export.export, doctor.doctor,
):  # fmt: skip
    app.command()(command)
app.command("ship")(ship.ship_champions)
app.command()(figures.figures)


def _print_version(requested: bool) -> None:
    if requested:
        try:
            typer.echo(f"evolve {version('evolve-kernels')}")
        except PackageNotFoundError:
            typer.echo("evolve (not installed)")
        raise typer.Exit


@app.callback()
def _evolve(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
