"""Options shared by several commands, budgets given on the command line, and the options recorded with a run."""

import shlex
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from archive import ArchiveError, library
from archive.plan import DTYPES
from archive.runs import Budget, Run
from archive.summaries import KernelSummary
from evolve import wiring
from evolve.devices import choose
from evolve.errors import UserError
from evolve.report.words import SHORT_DTYPES, listed
from reference_ops.listing import families


def op_names(incomplete: str = "") -> list[str]:
    """Return the catalog's ops that begin with `incomplete`, without importing the catalog.

    The names are read from the folders of shipped kernels, of which every op has one.
    """
    return [name for name in library.op_names() if name.startswith(incomplete)]


def kernel_ids(context: typer.Context, incomplete: str = "") -> list[str]:
    """Return the archived kernel ids that begin with `incomplete`."""
    try:
        store = wiring.archive(context.params.get("archive"), read_only=True)
        return [kernel.id for kernel in store.find(KernelSummary, prefix=incomplete)]
    except (UserError, ArchiveError, OSError):
        return []


def device_kinds(incomplete: str = "") -> Iterable[str]:
    return [kind for kind in choose.kinds() if kind.startswith(incomplete)]


OpArgument = Annotated[
    str, typer.Argument(metavar="OP", help="Name of an op, or path of a Python file.", autocompletion=op_names)
]
OpFilter = Annotated[
    str, typer.Argument(metavar="[OP]", help="Show only this op.", autocompletion=op_names, show_default=False)
]
KernelArgument = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a kernel, or its first characters.", autocompletion=kernel_ids)
]
ArchiveOption = Annotated[
    Path | None,
    typer.Option("--archive", envvar="EVOLVE_ARCHIVE", help=f"Archive file [default: {wiring.DEFAULT_ARCHIVE}]."),
]
DeviceOption = Annotated[
    str,
    typer.Option("--device", metavar="|".join(choose.kinds()), help="Device that runs the kernels.",
                 autocompletion=device_kinds, show_default="cuda if a GPU is found"),
]  # fmt: skip
GpusOption = Annotated[
    str,
    typer.Option("--gpus", metavar="0,2|all|TYPE,...", show_default="the first",
                 help="GPUs of this machine, by number, all of one kind; with --engine ray types such as H100,H200, "
                      "each with its own population, under one budget."),
]  # fmt: skip
EngineOption = Annotated[
    str, typer.Option("--engine", metavar="local|ray", help="Evaluate on this machine, or on a Ray cluster.")
]
AddressOption = Annotated[
    str,
    typer.Option("--address", metavar="auto|HOST:PORT", show_default="auto",
                 help="Address of the Ray cluster, to which this machine must belong."),
]  # fmt: skip
DevicePart = Annotated[str, typer.Option("--device", metavar="TEXT", help="Show only devices with TEXT in their name.")]
ProposerOption = Annotated[
    str,
    typer.Option("--proposer", metavar="offline|llm", help="Source of new kernels.",
                 show_default="llm if a model is configured"),
]  # fmt: skip
ModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", metavar="NAME", show_default=False,
                 help="Language model: NAME, NAME@http://host:8000/v1, or a .toml file of models; repeatable."),
]  # fmt: skip
RunSeedOption = Annotated[
    int | None,
    typer.Option("--seed", min=-(2**63), max=2**63 - 1, help="Seed of all random choices [default: 0].",
                 show_default=False),
]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of all random choices.")]
ExampleOption = Annotated[
    Path | None,
    typer.Option("--example", exists=True, dir_okay=False, show_default=False,
                 help="A Python file whose list `examples` holds inputs, for an OP that names a function."),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


FamilyPart = Annotated[str, typer.Option("--family", metavar="NAME", help="Show only ops of this family.")]
DtypePart = Annotated[str, typer.Option("--dtype", metavar="NAME", help="Show only workloads of this dtype.")]
OutcomePart = Annotated[
    str, typer.Option("--outcome", metavar="TEXT", help="List kernels with this outcome, such as wrong or pending.")
]
ProposerPart = Annotated[
    str,
    typer.Option("--proposer", metavar="TEXT", help="Show only kernels or runs of proposers with TEXT in their name."),
]
RunPart = Annotated[str, typer.Option("--run", metavar="RUN", help="List the kernels of a run, or `last`.")]
SincePart = Annotated[
    str,
    typer.Option("--since", metavar="TIME", help="Show only kernels or runs since then, such as 2h, 3d or 2026-01-31."),
]
CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV instead of tables.")]
AGES = {"m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def moment_of(text: str) -> float:
    """Return the time that is given as `2h`, `3d`, `2026-01-31` or `2026-01-31 14:30`; 0 for an empty text."""
    if not text:
        return 0.0
    number, unit = text[:-1], text[-1]
    if unit in AGES and number.replace(".", "", 1).isdecimal():
        return time.time() - float(number) * AGES[unit]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UserError(
            f"--since must be an age or a day, got {text}",
            "such as 30m, 2h, 3d or 2026-01-31",
        ) from None


def known_dtype(given: str) -> str:
    """Return the full name of a dtype, which may be abbreviated, such as bf16."""
    names = {**{short: name for name, short in SHORT_DTYPES.items()}, **{name: name for name in DTYPES}}
    if given and given not in names:
        raise UserError(f"there is no dtype `{given}`", f"choose one of: {', '.join(DTYPES)}")
    return names.get(given, "")


def check_family(given: str) -> None:
    known = sorted(set(families().values()))
    if given and given not in known:
        raise UserError(f"there is no family `{given}`", f"choose one of: {', '.join(known)}")


def of_family(op: str, family: str) -> bool:
    """Return whether an op belongs to a family; every op does if none is given."""
    return family in ("", families().get(op))


def check_sort(given: str, known: Sequence[str]) -> None:
    if given and given not in known:
        raise UserError(f"--sort must be one of {', '.join(known)}, got {given}", f"choose one of: {', '.join(known)}")


def archive_option(path: Path) -> str:
    """Return the option that makes a command use this archive; empty for the default archive."""
    return "" if path == wiring.DEFAULT_ARCHIVE else f" --archive {shlex.quote(str(path))}"


def with_example(ops: tuple[str, ...], example: Path | None) -> tuple[str, ...]:
    """Add the file of example inputs to the locator of a function, so that worker processes find both."""
    if example is None:
        return ops
    if len(ops) != 1 or ":" not in ops[0]:
        raise UserError(
            f"--example needs exactly one function as OP, got {listed(ops) or 'none'}",
            "give the function as module:function or file.py:function",
        )
    return (f"{ops[0]}@{example.resolve()}",)


OFFLINE_MINUTES, MODEL_MINUTES, MOST_MINUTES = 2.0, 10.0, 100_000.0
MOST, DIGITS_SHOWN = 1e15, 24  # upper bound of every limit, and the number of digits that an error shows
OFFLINE, LLM = "offline", "llm"
MINUTES, EVALS, TOKENS, USD, UNTIL_SOL = "--minutes", "--evals", "--tokens", "--usd", "--until-sol"
EXAMPLES = {
    MINUTES: "give a number of minutes such as 5 or 0.5",
    EVALS: "give a number of evaluations such as 200",
    TOKENS: "give a number of tokens such as 500000",
    USD: "give an amount in US dollars such as 2.50",
    UNTIL_SOL: "give a share of the speed of light such as 0.95",
}
MINUTES_HELP = (
    "Minutes to run. Then questions in flight are cancelled, evaluations in progress are finished, and the champions "
    f"are confirmed, which takes extra time [default: {OFFLINE_MINUTES:g}, or {MODEL_MINUTES:g} "
    "with a model, unless --evals or, with a model, --tokens or --usd is given]."
)
MinutesOption = Annotated[float | None, typer.Option(MINUTES, help=MINUTES_HELP, show_default=False)]
EVALS_HELP = "Maximum number of evaluations; questions that give no kernel do not count."
EvalsOption = Annotated[int | None, typer.Option(EVALS, help=EVALS_HELP)]
KEPT = (
    "A question is sent only if the rest of the budget pays for a reply as long as the longest so far; for the last "
    "questions, max_tokens limits the reply"
)
TOKENS_HELP = (
    f"Maximum number of tokens to use on models. {KEPT}. The limit can be exceeded if a model's first prompt has more "
    "tokens than estimated, or by one reply per question in flight if the server ignores max_tokens."
)
USD_HELP = (
    f"Maximum amount to spend on models, in US dollars. {KEPT}, by the prices in the .toml file. If only the server "
    "knows the prices, the first reply may exceed the limit."
)
TokensOption = Annotated[int | None, typer.Option(TOKENS, help=TOKENS_HELP)]
UsdOption = Annotated[float | None, typer.Option(USD, help=USD_HELP)]


def parse_budget(
    minutes: float | None, evals: int | None, tokens: int | None, usd: float | None, until_sol: float | None
) -> Budget:
    """Return the options as a budget, or raise a UserError that names the option and its value."""
    given = {MINUTES: minutes, EVALS: evals, TOKENS: tokens, USD: usd, UNTIL_SOL: until_sol}
    for option, value in given.items():
        if value is not None:
            _check_limit(option, value)
    return Budget(evals, tokens, usd, None if minutes is None else 60 * minutes, until_sol)


def _check_limit(option: str, value: float) -> None:
    got = f"{value:g}" if isinstance(value, float) else str(value)[:DIGITS_SHOWN]
    if not value > 0:
        raise UserError(f"{option} must be greater than 0, got {got}", EXAMPLES[option])
    if option == UNTIL_SOL and value > 1:
        reason = "no kernel is faster than the speed of light"
        raise UserError(f"{option} must be at most 1, got {got}: {reason}", EXAMPLES[option])
    if not value < MOST:
        raise UserError(f"{option} must be less than {MOST:g}, got {got}", EXAMPLES[option])
    if option == MINUTES and value > MOST_MINUTES:
        raise UserError(
            f"{option} must be at most {MOST_MINUTES:g}, got {got}", f"leave out {MINUTES} if another limit is given"
        )


def with_limits(budget: Budget, given: Budget) -> Budget:
    """Return the budget with its limits replaced by those that are set in `given`."""
    return replace(budget, **{name: value for name, value in asdict(given).items() if value is not None})


def with_default_time(budget: Budget, proposer: str) -> Budget:
    """Return the budget with the default time, unless it already has a limit that this proposer can reach."""
    offline = proposer == OFFLINE
    bounded = budget.evals, budget.seconds, None if offline else budget.tokens, None if offline else budget.usd
    if any(limit is not None for limit in bounded):
        return budget
    return replace(budget, seconds=60 * (OFFLINE_MINUTES if offline else MODEL_MINUTES))


def budget_arguments(budget: Budget) -> list[str]:
    """Return the budget as command-line arguments."""
    given = {
        MINUTES: None if budget.seconds is None else f"{budget.seconds / 60:g}",
        EVALS: budget.evals,
        TOKENS: budget.tokens,
        USD: None if budget.usd is None else f"{budget.usd:g}",
        UNTIL_SOL: None if budget.until_light is None else f"{budget.until_light:g}",
    }
    return [word for option, value in given.items() if value is not None for word in (option, str(value))]


LOCAL, RAY = ENGINES = ("local", "ray")


@dataclass(frozen=True)
class Machines:
    """The place where kernels are evaluated: an engine, the address of its cluster, and the GPUs to use."""

    gpus: str = ""
    engine: str = LOCAL
    address: str = ""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UserError(f"there is no engine `{self.engine}`", f"choose one of: {', '.join(ENGINES)}")
        if self.address and self.engine == LOCAL:
            raise UserError(f"--address {self.address} names a Ray cluster", "add --engine ray, or leave out --address")

    def arguments(self) -> list[str]:
        """Return the options as command-line arguments."""
        given = {
            "--engine": self.engine if self.engine != LOCAL else "",
            "--address": self.address,
            "--gpus": self.gpus,
        }
        return [word for option, value in given.items() if value for word in (option, value)]


HERE = Machines()
VALUED = {"--device": "device", "--proposer": "proposer", "--model": "models", "--replay": "replay"}
FLAGS = {"--fresh": "fresh", "--no-tune": "no_tune", "--no-seeds": "no_seeds", "--no-champions": "no_champions"}


@dataclass(frozen=True)
class RunOptions:
    """The options of a run other than its ops and its budget. Empty fields are options that were not given."""

    device: str = ""
    proposer: str = ""
    models: tuple[str, ...] = ()
    replay: str = ""
    fresh: bool = False
    no_tune: bool = False
    no_seeds: bool = False
    strategy: str = ""
    seed: int | None = None
    no_champions: bool = False
    machines: Machines = HERE  # not recorded, because it may change when a run is resumed

    def arguments(self) -> list[str]:
        """Return the options that are recorded as arguments, except strategy and seed, for which a Run has fields."""
        from evolve.proposers.llm.models import without_secrets

        words: list[str] = []
        for option, name in VALUED.items():
            value = getattr(self, name)
            given = [without_secrets(one) for one in value] if name == "models" else [value]
            words += [word for one in given if one for word in (option, one)]
        return words + [option for option, name in FLAGS.items() if getattr(self, name)]


def recorded(run: Run) -> RunOptions:
    """Return the options with which a run was started, as recorded in the archive."""
    words = list(run.words[1:])
    values: dict[str, list[str]] = {name: [] for name in VALUED.values()}
    flags = {}
    while words:
        option = words.pop(0)
        if option in FLAGS:
            flags[FLAGS[option]] = True
        elif option in VALUED and words:
            values[VALUED[option]].append(words.pop(0))
    single = {name: (found[-1] if found else "") for name, found in values.items() if name != "models"}
    single["device"] = run.device.split()[0]
    return RunOptions(**single, **flags, models=tuple(values["models"]), strategy=run.strategy, seed=run.seed)  # type: ignore[arg-type]


def locator(run: Run) -> str:
    """Return the locator of a run's op: the first word of the recorded command, or the op's name."""
    return run.words[0] if run.words else run.op


def check_unchanged(run: Run, given: RunOptions) -> None:
    """Raise a UserError if an option given to resume a run differs from the one recorded with it."""
    from evolve.proposers.llm.models import without_secrets

    before = recorded(run)
    for field in fields(RunOptions):
        value, old = getattr(given, field.name), getattr(before, field.name)
        if value in ("", (), None, False) or value == old or field.name == "machines":
            continue
        option = "--" + {"models": "model"}.get(field.name, field.name).replace("_", "-")
        if field.name == "models":
            old, value = (", ".join(map(without_secrets, names)) for names in (old, value))
        started = f"without {option}" if old is False or old in ("", None) else f"with {option} {old}"
        got = "" if value is True else f", got {value}"
        raise UserError(
            f"run {run.id} was started {started}{got}",
            f"leave out {option} to continue the run, or start a new run without --resume",
        )
