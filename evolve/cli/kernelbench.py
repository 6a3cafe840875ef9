"""`evolve kernelbench`: a level of KernelBench under one budget, and its figure of merit, fast_p."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from archive.kernel import Kernel
from evolve import wiring
from evolve.cli import options, session
from evolve.cli.options import ArchiveOption, DeviceOption, JsonOption, ModelOption, RunOptions
from evolve.cli.run import MINUTES_HELP, SeedOption, carried_out
from evolve.errors import UserError
from evolve.report.kernelbench import THRESHOLDS, Published, TaskResult, fast, fast_table, published, tasks_table
from evolve.report.words import EMULATED_TIMES, console, counted, print_json

if TYPE_CHECKING:
    from archive.proposals import Budget
    from reference_ops.op import Op, Workload

BLIND = "blind"
FULL_SIZES = "sizes as on a GPU: the emulated device runs small ones"
SEEDS, SEEDS_OF_FULL_SIZE = 2, 1  # of the inputs that a task's check is tried on; of gigabytes each takes seconds
FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="A checkout of KernelBench.")
]


@dataclass(frozen=True)
class Problem:
    """One file of the level: its op, or why it is none, and what a user has to know."""

    path: Path
    op: "Op | None" = None
    said: str = ""
    blind: bool = False

    @property
    def taken(self) -> bool:
        return self.op is not None and not self.said


def kernelbench(  # noqa: PLR0913, PLR0917 - one per option
    folder: FolderArgument,
    level: Annotated[int, typer.Option(help="Which level, 1 to 3.")] = 1,
    only: Annotated[str, typer.Option(metavar="23,40", help="Only these problems, by their numbers.")] = "",
    listed: Annotated[bool, typer.Option("--list", help="Load and check the problems, and run nothing.")] = False,
    minutes: Annotated[float | None, typer.Option(help=MINUTES_HELP, show_default=False)] = None,
    evals: Annotated[int | None, typer.Option(help="Evaluations to spend.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens to spend on models.")] = None,
    usd: Annotated[float | None, typer.Option(help="Dollars to spend on models.")] = None,
    device: DeviceOption = "",
    proposer: Annotated[
        str, typer.Option(metavar="offline|llm", help="Who proposes.", show_default="llm if a model is configured")
    ] = "",
    model: ModelOption = None,
    seed: SeedOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evolve kernels for a whole level of KernelBench. Its problem files are code, and are run to be read."""
    given = options.typed(minutes, evals, tokens, usd, None)
    shown, kind = console(stderr=as_json), wiring.device_kind(device)
    run_options = RunOptions(device, proposer, tuple(model or ()), seed=seed)
    files = _files(folder, level, _numbers(only))
    tried = _every if listed else _tried(run_options, archive)
    problems = _loaded(files, kind, tried, shown)
    taken = [problem for problem in problems if problem.taken]
    if listed or not taken:
        _say_list(problems, kind, shown)
        if as_json:
            print_json([_facts(problem, kind) for problem in problems])
        if not taken:
            raise typer.Exit(1)
        return
    standings = _run(taken, run_options, given, archive, shown)
    tasks = [_task(problem, standings, kind) for problem in problems]
    theirs = published(_checkout(folder), level, _device_name(standings), lambda path: json.loads(path.read_text()))
    _say(tasks, theirs, level, kind, shown)
    if as_json:
        print_json(_result(tasks, theirs))
    if not any(task.measured for task in tasks):
        raise typer.Exit(1)


def _files(folder: Path, level: int, numbers: frozenset[int]) -> list[Path]:
    """The level's problems in the order of their numbers, in a checkout, or in a folder of levels, or of problems."""
    places = [folder / "KernelBench" / f"level{level}", folder / f"level{level}", folder]
    place = next((place for place in places if place.is_dir() and _problems(place)), None)
    if place is None:
        raise UserError(f"{folder} holds no problems of level {level}", "give a checkout of KernelBench, and --level")
    found = _problems(place)
    if missing := numbers - found.keys():
        raise UserError(f"level {level} has no problem {min(missing)}", f"it has {min(found)} to {max(found)}")
    return [path for number in sorted(found) if not numbers or number in numbers for path in found[number]]


def _problems(folder: Path) -> dict[int, list[Path]]:
    found: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*.py")):
        if (number := re.match(r"(\d+)_", path.name)) and not path.stem.endswith("_OLD"):
            found.setdefault(int(number.group(1)), []).append(path)
    return found


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(number) for number in text.split(",") if number.strip())
    except ValueError:
        raise UserError(f"--only {text} is no list of numbers", "give the numbers of problems, as in 23,40") from None


def _every(_: "Op") -> bool:
    return True


def _tried(run_options: RunOptions, archive: Path | None) -> "Callable[[Op], bool]":
    """Whether there will be kernels of a problem: a model's, or some that are known already."""
    if wiring.proposer(run_options.proposer, run_options.models).name != options.OFFLINE:
        return _every
    if not wiring.archive_path(archive).exists():
        return lambda _: False
    with closing(wiring.archive(archive, read_only=True)) as store:
        known = {kernel.op for kernel in store.find(Kernel)}
    return lambda op: op.name in known


def _loaded(files: Sequence[Path], kind: str, tried: "Callable[[Op], bool]", shown: Console) -> list[Problem]:
    """Each problem with what is wrong with it, if anything: no op, too large, nothing to emulate, or blind."""
    problems = []
    with shown.status("loading PyTorch") as status:
        from reference_ops import catalog

        for index, path in enumerate(files, start=1):
            status.update(f"loading {path.stem} ({index} of {len(files)})")
            try:
                op = catalog.load(str(path))
            except catalog.CatalogError as error:
                problems.append(Problem(path, said=str(error).removeprefix(f"{path} ")))
                continue
            said = _unfit(op, kind) or _blind(op, kind, tried)
            problems.append(Problem(path, op, said, blind=said.startswith(BLIND)))
    return problems


def _unfit(op: "Op", kind: str) -> str:
    if kind != "cuda":
        return "" if op.emulated else "nothing small enough to emulate: its sizes cannot be changed that far"
    import torch

    from evolve.evaluation.buffers import bytes_held

    held = torch.cuda.get_device_properties(0).total_memory
    for workload in op.gpu:
        if (needed := bytes_held(op, workload)) > held:
            return f"does not fit: a check needs about {needed / 1e9:.0f} GB, and this GPU has {held / 1e9:.0f}"
    return ""


def _blind(op: "Op", kind: str, tried: "Callable[[Op], bool]") -> str:
    """What would pass although it is wrong, at a small workload; on a GPU, where that matters, at the first of its own.

    There it has the last word, but takes seconds.
    """
    import torch

    small = _passes(op, op.emulated[0], kind, SEEDS) if op.emulated else ""
    if kind != "cuda" or (op.emulated and not small and not tried(op)):
        return small
    try:
        return _passes(op, op.gpu[0], kind, SEEDS_OF_FULL_SIZE)
    except torch.OutOfMemoryError:
        return "does not fit: its check needs more memory than this GPU has"
    finally:
        torch.cuda.empty_cache()  # workers need it


def _passes(op: "Op", workload: "Workload", kind: str, seeds: int) -> str:
    from evolve.evaluation.op_check import blind_spots

    torch_device = "cuda" if kind == "cuda" else "cpu"
    spots = (blind_spots(op, workload, seed, torch_device, quick=True) for seed in range(seeds))
    return next((f"{BLIND}: {found[0].words}" for found in spots if found), "")


def _run(
    taken: Sequence[Problem], run_options: RunOptions, given: "Budget", archive: Path | None, shown: Console
) -> list[dict[str, Any]]:
    """Where each op stands afterwards."""
    plan = session.new([str(problem.path) for problem in taken], run_options, given, every=False)
    facts = carried_out(plan, given, archive, shown).facts
    return [facts] if "op" in facts else facts["ops"]


def _task(problem: Problem, standings: Sequence[dict[str, Any]], kind: str) -> TaskResult:
    name = problem.path.stem
    if problem.op is None or problem.said:
        return TaskResult(name, problem.path.name, problem.said, blind=problem.blind)
    wanted = [workload.key for workload in problem.op.workloads(kind)]
    stands = next(one for one in standings if one["op"] == problem.op.name)
    measured = tuple(one for one in stands["champions"] if one["workload"] in wanted)
    return TaskResult(name, problem.path.name, measured=measured, wanted=len(wanted))


def _checkout(folder: Path) -> Path:
    return next((place for place in (folder, *folder.resolve().parents) if (place / "results").is_dir()), folder)


def _device_name(standings: Sequence[dict[str, Any]]) -> str:
    return str(standings[0]["device"]) if standings else ""


def _say(tasks: Sequence[TaskResult], theirs: Published, level: int, kind: str, shown: Console) -> None:
    shown.print(f"\nKernelBench, level {level}", style="bold")
    shown.print(tasks_table(tasks, theirs))
    if theirs.hardware:
        shown.print(f"their times: as KernelBench publishes them for {theirs.hardware}", style="dim")
    shown.print()
    shown.print(fast_table(tasks))
    shown.print(f"of {counted(len(tasks), 'task')}; fast_0: right; fast_p: more than p times as fast", style="dim")
    if kind != "cuda":
        shown.print(EMULATED_TIMES, style="yellow")


def _say_list(problems: Sequence[Problem], kind: str, shown: Console) -> None:
    from evolve.report.tables import fitted, plain_table

    table = plain_table("problem", "op", "GB", "first workload", "", numbers=["GB"])
    for problem in problems:
        if problem.op is None:
            table.add_row(fitted(problem.path.stem), "-", "-", "-", problem.said)
            continue
        first = problem.op.gpu[0]
        size = problem.op.nbytes(first) / 1e9
        table.add_row(
            fitted(problem.path.stem), fitted(problem.op.name), f"{size:.2f}", fitted(first.key), problem.said
        )
    shown.print(table)
    if kind != "cuda":
        shown.print(FULL_SIZES, style="yellow")
    loaded = sum(problem.op is not None for problem in problems)
    blind = sum(problem.blind for problem in problems)
    shown.print(f"\n{loaded} of {counted(len(problems), 'problem')} load, {blind} of them blind", soft_wrap=True)


def _facts(problem: Problem, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"problem": problem.path.stem, "said": problem.said, "blind": problem.blind}
    if problem.op is None:
        return {**facts, "op": None}
    op = problem.op
    return {
        **facts,
        "op": op.name,
        "inputs": {spec.name: op.shape(spec, op.gpu[0]) for spec in op.inputs},
        "outputs": {spec.name: op.shape(spec, op.gpu[0]) for spec in op.outputs},
        "workloads": [workload.key for workload in op.workloads(kind)],
        "bytes": op.nbytes(op.gpu[0]),
        "note": op.note,
    }


def _result(tasks: Sequence[TaskResult], theirs: Published) -> dict[str, Any]:
    return {
        **{
            f"fast_{p}": {
                name: fast(tasks, over, p) for name, over in (("eager", "eager_us"), ("compile", "compile_us"))
            }
            for p in THRESHOLDS
        },
        "published": theirs.hardware,
        "tasks": [
            {
                "task": task.name,
                "correct": task.correct,
                "said": task.said,
                "blind": task.blind,
                "over_eager": task.speedup("eager_us"),
                "over_compile": task.speedup("compile_us"),
                "published_eager_us": theirs.eager_us.get(task.file),
                "published_compile_us": theirs.compile_us.get(task.file),
                "champions": list(task.measured),
            }
            for task in tasks
        ],
    }
