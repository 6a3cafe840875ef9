"""The `evolve` application: its commands in the order of the help text, and --version."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

EPILOG = "Start with `evolve doctor`, then `evolve run softmax`."
COMMANDS = {  # modules and their commands, in the order of the help text
    "run": "run.run",
    "runs": "runs.runs",
    "compare": "runs.compare",
    "ops": "ops.ops",
    "kernelbench": "kernelbench.kernelbench",
    "top": "browse.top",
    "show": "browse.show",
    "diff": "browse.diff",
    "tree": "browse.tree",
    "serve": "browse.serve",
    "report": "browse.report",
    "ask": "ask.ask",
    "tell": "exchange.tell",
    "evaluate": "evaluate.evaluate",
    "work": "evaluate.work",
    "confirm": "confirm.confirm",
    "verify": "confirm.verify",
    "profile": "profile.profile",
    "merge": "exchange.merge",
    "recover": "exchange.recover",
    "export": "export.export",
    "doctor": "doctor.doctor",
    "ship": "ship.ship_champions",
    "figures": "ship.figures",
}


EVALUATING = ("run", "evaluate", "confirm", "verify")  # these use a device as soon as they begin


def application(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command that the arguments begin with, or with all of them.

    Importing all commands would take twice as long as listing the archive.
    """
    app = typer.Typer(
        name="evolve",
        help="Evolve CUDA kernels for PyTorch ops: propose, check and time kernels, keep the fittest.",
        epilog=EPILOG,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help texts are shorter, and square brackets in them are printed literally
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_evolve)
    named = arguments[0] if arguments else ""
    if named in EVALUATING:
        from evolve.devices import choose

        choose.look_ahead()  # while the command's modules are imported
    for name in [named] if named in COMMANDS else COMMANDS:
        module, _, function = COMMANDS[name].partition(".")
        app.command(name)(getattr(import_module(f"evolve.cli.{module}"), function))
    return app


def _print_version(requested: bool) -> None:
    if requested:
        # imported only here, because it imports the parser of e-mails
        from importlib.metadata import PackageNotFoundError, version

        try:
            typer.echo(f"evolve {version('evolve-kernels')}")
        except PackageNotFoundError:
            typer.echo("evolve (not installed)")
        raise typer.Exit


def _evolve(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
