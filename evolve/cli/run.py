"""`evolve run`: propose, evaluate, keep the fittest, and show it while it happens."""

import math
import secrets
import shlex
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, ModelOption, OpArgument, SeedOption
from evolve.cli.starting import engine_on, say_proposer
from evolve.cli.stopping import Stopped
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.console import console, print_json
from evolve.report.progress import Phases

OFFLINE_MINUTES, MODEL_MINUTES, MOST_MINUTES, EVALUATIONS = 2.0, 10.0, 100_000.0, 10_000
MINUTES_HELP = f"Time to spend [default: {OFFLINE_MINUTES:g}, with a model {MODEL_MINUTES:g}]."


def run(  # noqa: PLR0913, PLR0917 - one per option
    op: OpArgument,
    minutes: Annotated[float | None, typer.Option(min=0.01, max=MOST_MINUTES, help=MINUTES_HELP)] = None,
    evals: Annotated[int, typer.Option(min=1, help="Evaluations to spend.")] = EVALUATIONS,
    device: DeviceOption = "",
    proposer: Annotated[
        str, typer.Option(metavar="offline|llm", help="Who proposes.", show_default="llm if a model is configured")
    ] = "",
    model: ModelOption = "",
    seed: SeedOption = 0,
    no_seeds: Annotated[bool, typer.Option("--no-seeds", help="Leave out the shipped kernels.")] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evolve kernels for an op. Everything found is archived at once; the same command goes on from there."""
    if minutes is not None and math.isnan(minutes):
        raise UserError("--minutes is no number", "give minutes such as 5 or 0.5")
    again = shlex.join(["evolve", "run", op, *_typed(device, proposer, model, archive)])
    shown = console(stderr=as_json)
    phases = Phases()
    try:
        with shown.status(f"loading {op}"):
            from evolve.cli import running
            from evolve.loop import Quest
            from reference_ops import catalog

            loaded, locator = catalog.load(op), lookup.locator(op)
        who = wiring.proposer(proposer, model)
        with closing(wiring.archive(archive)) as store, engine_on(device, phases, shown) as engine:
            say_proposer(who.name, shown)
            seconds = 60 * (minutes or (OFFLINE_MINUTES if who.name == "offline" else MODEL_MINUTES))
            quest = Quest(secrets.token_hex(4), loaded, locator, seed, evals, time.monotonic() + seconds)
            bench = running.Running(quest, who, engine, store, phases)
            found = running.run(bench, shown, seeded=not no_seeds)
    except Stopped:
        shown.print(f"stopped. To go on from here: {again}")
        raise
    if as_json:
        print_json(facts.of_standing(found))
    if not found.champions:
        raise typer.Exit(1)


def _typed(device: str, proposer: str, model: str, archive: Path | None) -> list[str]:
    """The options that also hold when the run goes on."""
    given = {"--device": device, "--proposer": proposer, "--model": model, "--archive": str(archive or "")}
    return [word for option, value in given.items() if value for word in (option, value)]
