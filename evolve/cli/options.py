"""Options that commands share, budgets as they are typed, and the options that a run is recorded with."""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from archive import library
from archive.kernel import Kernel
from archive.proposals import Budget, Run
from archive.store import ArchiveError
from evolve import wiring
from evolve.errors import UserError


def op_names(incomplete: str = "") -> list[str]:
    """The catalog's ops that begin like this, without the seconds that importing the catalog takes.

    Every op has kernels that come with it, in a folder of its name.
    """
    return [name for name in library.op_names() if name.startswith(incomplete)]


def kernel_ids(context: typer.Context, incomplete: str = "") -> list[str]:
    """The ids in the archive that begin like this."""
    try:
        store = wiring.archive(context.params.get("archive"), read_only=True)
        return [kernel.id for kernel in store.find(Kernel) if kernel.id.startswith(incomplete)]
    except (UserError, ArchiveError, OSError):
        return []


def device_kinds(incomplete: str = "") -> Iterable[str]:
    return [kind for kind in wiring.DEVICE_KINDS if kind.startswith(incomplete)]


OpArgument = Annotated[
    str, typer.Argument(metavar="OP", help="An op's name, or the path of a Python file.", autocompletion=op_names)
]
OpFilter = Annotated[
    str, typer.Argument(metavar="[OP]", help="Only this op.", autocompletion=op_names, show_default=False)
]
KernelArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A kernel's id, or how it begins.", autocompletion=kernel_ids)
]
ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", envvar="EVOLVE_ARCHIVE", help=f"The archive file [default: {wiring.DEFAULT_ARCHIVE}]."),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="cuda|emulated", help="Where kernels run.", autocompletion=device_kinds,
                 show_default="cuda if a GPU is found"),
]  # fmt: skip
DevicePart = Annotated[str, typer.Option("--device", metavar="TEXT", help="Only devices whose name holds this.")]
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", show_default=False,
                 help="A language model: NAME, NAME@http://host:8000/v1, or a .toml file of models; repeatable."),
]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", help="Every random choice follows from it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def archive_option(path: Path) -> str:
    """What a command needs to be typed with to find this archive."""
    return "" if path == wiring.DEFAULT_ARCHIVE else f" --archive {shlex.quote(str(path))}"


OFFLINE_MINUTES, MODEL_MINUTES, MOST_MINUTES = 2.0, 10.0, 100_000.0
MOST, MOST_SHOWN = 1e15, 24  # of anything, and the digits of it that are repeated
OFFLINE = "offline"
MINUTES, EVALS, TOKENS, USD, UNTIL_SOL = "--minutes", "--evals", "--tokens", "--usd", "--until-sol"


def typed(
    minutes: float | None, evals: int | None, tokens: int | None, usd: float | None, until_sol: float | None
) -> Budget:
    """What was typed, as a budget, or a UserError that says what is wrong with it."""
    for option, value, such_as in (
        (MINUTES, minutes, "5 or 0.5"),
        (EVALS, evals, "200"),
        (TOKENS, tokens, "500000"),
        (USD, usd, "2.50"),
        (UNTIL_SOL, until_sol, "0.95"),
    ):
        if value is not None and not 0 < value < MOST:
            said = f"{value:g}" if isinstance(value, float) else str(value)[:MOST_SHOWN]
            raise UserError(f"{option} {said} is nothing that could be spent", f"give {option} such as {such_as}")
    if minutes and minutes > MOST_MINUTES:
        raise UserError(
            f"{MINUTES} {minutes:g} is more than {MOST_MINUTES:g}", "leave it out where another limit holds"
        )
    if until_sol and until_sol > 1:
        raise UserError(
            f"{UNTIL_SOL} {until_sol:g} is faster than the speed of light", f"give a share such as {UNTIL_SOL} 0.95"
        )
    return Budget(evals, tokens, usd, None if minutes is None else 60 * minutes, until_sol)


def raised(budget: Budget, given: Budget) -> Budget:
    """The budget of a run that goes on: what is given with it replaces what it had."""
    return replace(budget, **{name: value for name, value in asdict(given).items() if value is not None})


def completed(budget: Budget, proposer: str) -> Budget:
    """With the usual time, unless a limit is given that this proposer will reach; a run always has an end."""
    offline = proposer == OFFLINE
    bounded = budget.evals, budget.seconds, None if offline else budget.tokens, None if offline else budget.usd
    if any(limit is not None for limit in bounded):
        return budget
    return replace(budget, seconds=60 * (OFFLINE_MINUTES if offline else MODEL_MINUTES))


def options(budget: Budget) -> list[str]:
    """As they would be typed."""
    given = {
        MINUTES: None if budget.seconds is None else f"{budget.seconds / 60:g}",
        EVALS: budget.evals,
        TOKENS: budget.tokens,
        USD: None if budget.usd is None else f"{budget.usd:g}",
        UNTIL_SOL: None if budget.until_light is None else f"{budget.until_light:g}",
    }
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


NAMED = {"--device": "device", "--proposer": "proposer", "--model": "models", "--replay": "replay"}
FLAGS = {"--fresh": "fresh", "--no-tune": "no_tune", "--no-seeds": "no_seeds"}


@dataclass(frozen=True)
class RunOptions:
    """Everything but the ops and the budget. What is empty was not typed."""

    device: str = ""
    proposer: str = ""
    models: tuple[str, ...] = ()
    replay: str = ""
    fresh: bool = False
    no_tune: bool = False
    no_seeds: bool = False
    strategy: str = ""
    seed: int | None = None

    def options(self) -> list[str]:
        """As they would be typed; strategy and seed have their own places in a Run."""
        from evolve.proposers.llm.models import without_secrets

        words: list[str] = []
        for option, name in NAMED.items():
            value = getattr(self, name)
            given = [without_secrets(one) for one in value] if name == "models" else [value]
            words += [word for one in given if one for word in (option, one)]
        return words + [option for option, name in FLAGS.items() if getattr(self, name)]


def recorded(run: Run) -> RunOptions:
    """What the archive says a run was started with."""
    words = list(run.words[1:])
    values: dict[str, list[str]] = {name: [] for name in NAMED.values()}
    flags = {}
    while words:
        option = words.pop(0)
        if option in FLAGS:
            flags[FLAGS[option]] = True
        elif option in NAMED and words:
            values[NAMED[option]].append(words.pop(0))
    single = {name: (found[-1] if found else "") for name, found in values.items() if name != "models"}
    single["device"] = run.device.split()[0]
    return RunOptions(**single, **flags, models=tuple(values["models"]), strategy=run.strategy, seed=run.seed)  # type: ignore[arg-type]


def locator(run: Run) -> str:
    """How its op is found: the first word it was started with, or its name."""
    return run.words[0] if run.words else run.op


def check_same(run: Run, typed: RunOptions, kept: Sequence[str] = ()) -> None:
    """A run goes on as it began: what is typed again must not differ; the fields named in `kept` are not compared."""
    before = recorded(run)
    for field in fields(RunOptions):
        value = getattr(typed, field.name)
        if value not in ("", (), None, False) and value != getattr(before, field.name) and field.name not in kept:
            option = "--" + {"models": "model"}.get(field.name, field.name).replace("_", "-")
            raise UserError(
                f"run {run.id} was started with another {option}", f"leave {option} out, or start a new run"
            )
