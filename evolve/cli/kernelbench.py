"""`evolve kernelbench`: evolve kernels for a level of KernelBench under one budget, and report its score, fast_p."""

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
from evolve.cli import options, setups
from evolve.cli.options import (
    LOCAL,
    AddressOption,
    ArchiveOption,
    DeviceOption,
    EngineOption,
    EvalsOption,
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
)
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines import trial
from evolve.errors import UserError
from evolve.report.kernelbench import (
    THRESHOLDS,
    Published,
    TaskResult,
    fast,
    fast_table,
    published,
    tasks_table,
    verdicts_table,
)
from evolve.report.tables import fitted, plain_table
from evolve.report.words import console, counted, print_json, times_note

if TYPE_CHECKING:
    from archive.runs import Budget
    from reference_ops.op import Op, Workload

BLIND = "blind"
FULL_SIZES = "sizes are those for a GPU; the emulated device runs smaller ones"
SEEDS, SEEDS_OF_FULL_SIZE = 2, 1  # random inputs per check, each of which takes seconds at full size
FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Checkout of KernelBench.")
]


@dataclass(frozen=True)
class Problem:
    """A problem file of the level, with its op if it could be loaded, and a remark if it cannot be used."""

    path: Path
    op: "Op | None" = None
    remark: str = ""
    blind: bool = False  # a wrong kernel would pass the problem's check

    @property
    def usable(self) -> bool:
        return self.op is not None and not self.remark


def kernelbench(  # noqa: PLR0913, PLR0917 - one per option
    folder: FolderArgument,
    level: Annotated[int, typer.Option(help="Level of KernelBench, 1 to 3.")] = 1,
    only: Annotated[str, typer.Option(metavar="23,40", help="Numbers of the problems to run [default: all].")] = "",
    listed: Annotated[bool, typer.Option("--list", help="Load and check the problems, but do not run them.")] = False,
    minutes: MinutesOption = None,
    evals: EvalsOption = None,
    tokens: TokensOption = None,
    usd: UsdOption = None,
    device: DeviceOption = "",
    gpus: GpusOption = "",
    engine: EngineOption = LOCAL,
    address: AddressOption = "",
    proposer: ProposerOption = "",
    model: ModelOption = None,
    seed: RunSeedOption = None,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evolve kernels for a whole level of KernelBench. Loading its problem files executes them."""
    limits = options.parse_budget(minutes, evals, tokens, usd, None)
    if engine == options.RAY and "," in gpus:
        raise UserError(f"--gpus {gpus}: KernelBench's scores are those of one type of GPU", "name one type")
    output, kind = console(stderr=as_json), choose.device_kind(device)
    run_options = RunOptions(device, proposer, tuple(model or ()), seed=seed, machines=Machines(gpus, engine, address))
    files = _files(folder, level, _numbers(only))
    gets_kernels = _always if listed else _gets_kernels(run_options, archive)
    problems = _loaded(files, kind, gets_kernels, output)
    usable = [problem for problem in problems if problem.usable]
    if listed or not usable:
        _print_list(problems, kind, output)
        if as_json:
            print_json([_facts(problem, kind) for problem in problems])
        if not usable:
            raise typer.Exit(1)
        return
    standings = _run(usable, run_options, limits, archive, output)
    tasks = [_task(problem, standings, kind) for problem in problems]
    theirs = published(_checkout(folder), level, _device_name(standings), lambda path: json.loads(path.read_text()))
    _print_result(tasks, theirs, level, kind, output)
    if as_json:
        print_json(_result_facts(tasks, theirs))
    if not any(task.measured for task in tasks):
        raise typer.Exit(1)


def _files(folder: Path, level: int, numbers: frozenset[int]) -> list[Path]:
    """Return the level's problem files in order, from a checkout, a folder of levels or a folder of problems."""
    candidates = [folder / "KernelBench" / f"level{level}", folder / f"level{level}", folder]
    found = next((problems for path in candidates if path.is_dir() and (problems := _problems(path))), None)
    if found is None:
        raise UserError(
            f"{folder} has no problems of level {level}",
            f"give a checkout of KernelBench, with a folder KernelBench/level{level}, or another --level",
        )
    if missing := numbers - found.keys():
        raise UserError(
            f"level {level} has no problem {min(missing)}", f"choose numbers from {min(found)} to {max(found)}"
        )
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
        raise UserError(
            f"--only must be a list of numbers, got {text}", "separate problem numbers by commas, such as 23,40"
        ) from None


def _always(_: "Op") -> bool:
    return True


def _gets_kernels(run_options: RunOptions, archive: Path | None) -> "Callable[[Op], bool]":
    """Return a predicate for ops whose kernels the run will evaluate: a model's, archived or adapted kernels."""
    if wiring.proposer(run_options.proposer, run_options.models).name != options.OFFLINE:
        return _always
    from evolve.proposers import adapted

    known = set[str]()
    if wiring.archive_path(archive).exists():
        with closing(wiring.archive(archive, read_only=True)) as store:
            known = set(store.count(Kernel, "op"))
    seeded = not (run_options.no_seeds or run_options.fresh)
    return lambda op: op.name in known or (seeded and any(True for _ in adapted.kernels_for(op)))


def _loaded(files: Sequence[Path], kind: str, gets_kernels: "Callable[[Op], bool]", output: Console) -> list[Problem]:
    """Load the problems, with a remark on each that has no op, does not fit the device, or has a blind spot."""
    problems = []
    with output.status("loading PyTorch") as status:
        from reference_ops import catalog

        for index, path in enumerate(files, start=1):
            status.update(f"loading {path.stem} ({index} of {len(files)})")
            try:
                op = trial.load(str(path))
            except (catalog.CatalogError, UserError) as error:
                problems.append(Problem(path, remark=str(error).removeprefix(f"{path} ")))
                continue
            remark = _misfit(op, kind) or _blind_spot(op, kind, gets_kernels)
            problems.append(Problem(path, op, remark, blind=remark.startswith(BLIND)))
    return problems


def _misfit(op: "Op", kind: str) -> str:
    """Return the reason why the op cannot run on the device, or an empty string."""
    if not policy_of(kind).times_are_gpu_times:
        return "" if op.workloads(kind) else f"its sizes cannot be made small enough for the {kind} device"
    import torch

    from evolve.evaluation.buffers import bytes_held

    held = torch.cuda.get_device_properties(0).total_memory
    for workload in op.gpu:
        if (needed := bytes_held(op, workload)) > held:
            return f"does not fit: a check needs about {needed / 1e9:.0f} GB, this GPU has {held / 1e9:.0f} GB"
    return ""


def _blind_spot(op: "Op", kind: str, gets_kernels: "Callable[[Op], bool]") -> str:
    """Describe a wrong result that passes the check at a small workload or, on a GPU, at the first full-size one.

    The check at full size is decisive, but takes seconds. It is skipped if the run has no kernels to judge.
    """
    import torch

    small = _passing_fault(op, op.emulated[0], kind, SEEDS) if op.emulated else ""
    on_gpu = policy_of(kind).times_are_gpu_times
    if not on_gpu or (op.emulated and not small and not gets_kernels(op)):
        return small
    try:
        return _passing_fault(op, op.gpu[0], kind, SEEDS_OF_FULL_SIZE)
    except torch.OutOfMemoryError:
        return "does not fit: its check needs more memory than this GPU has"
    finally:
        torch.cuda.empty_cache()  # free the memory for the worker processes


def _passing_fault(op: "Op", workload: "Workload", kind: str, seeds: int) -> str:
    from evolve.evaluation.op_check import blind_spots

    torch_device = policy_of(kind).torch_device
    spots = (blind_spots(op, workload, seed, torch_device, quick=True) for seed in range(seeds))
    return next((f"{BLIND}: {found[0].words}" for found in spots if found), "")


def _run(
    usable: Sequence[Problem], run_options: RunOptions, limits: "Budget", archive: Path | None, output: Console
) -> list[dict[str, Any]]:
    """Run the problems and return the standing of each op as plain values."""
    from evolve.cli.run import run_setup

    setup = setups.new([str(problem.path) for problem in usable], run_options, limits, every=False)
    facts = run_setup(setup, limits, archive, output).facts
    return [facts] if "op" in facts else facts["ops"]


def _task(problem: Problem, standings: Sequence[dict[str, Any]], kind: str) -> TaskResult:
    name = problem.path.stem
    if problem.op is None or problem.remark:
        return TaskResult(name, problem.path.name, problem.remark, blind=problem.blind)
    keys = [workload.key for workload in problem.op.workloads(kind)]
    standing = next(one for one in standings if one["op"] == problem.op.name)
    measured = tuple(one for one in standing["champions"] if one["workload"] in keys)
    return TaskResult(name, problem.path.name, measured=measured, workloads=len(keys))


def _checkout(folder: Path) -> Path:
    return next((path for path in (folder, *folder.resolve().parents) if (path / "results").is_dir()), folder)


def _device_name(standings: Sequence[dict[str, Any]]) -> str:
    return str(standings[0]["device"]) if standings else ""


def _print_result(tasks: Sequence[TaskResult], theirs: Published, level: int, kind: str, output: Console) -> None:
    output.print(f"\nKernelBench, level {level}", style="bold")
    if note := times_note(kind):
        output.print(verdicts_table(tasks))
        correct = sum(task.correct for task in tasks)
        output.print(f"\nfast_0: {correct} of {counted(len(tasks), 'task')} correct; fast_1 and fast_2 need GPU times")
        output.print(note, style="yellow")
        return
    output.print(tasks_table(tasks, theirs))
    if theirs.hardware:
        output.print(f"published: times published by KernelBench for {theirs.hardware}", style="dim")
    output.print()
    output.print(fast_table(tasks))
    output.print(
        f"of {counted(len(tasks), 'task')}; fast_0: correct; fast_p: correct and more than p times as fast", style="dim"
    )


def _print_list(problems: Sequence[Problem], kind: str, output: Console) -> None:
    table = plain_table("problem", "op", "GB", "first workload", "", numbers=["GB"])
    for problem in problems:
        if problem.op is None:
            table.add_row(fitted(problem.path.stem), "-", "-", "-", problem.remark)
            continue
        first = problem.op.gpu[0]
        size = problem.op.nbytes(first) / 1e9
        table.add_row(
            fitted(problem.path.stem), fitted(problem.op.name), f"{size:.2f}", fitted(first.key), problem.remark
        )
    output.print(table)
    if not policy_of(kind).times_are_gpu_times:
        output.print(FULL_SIZES, style="yellow")
    loaded = sum(problem.op is not None for problem in problems)
    blind = sum(problem.blind for problem in problems)
    output.print(f"\n{loaded} of {counted(len(problems), 'problem')} load, {blind} of them blind", soft_wrap=True)


def _facts(problem: Problem, kind: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"problem": problem.path.stem, "said": problem.remark, "blind": problem.blind}
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


def _result_facts(tasks: Sequence[TaskResult], theirs: Published) -> dict[str, Any]:
    baselines = (("eager", "eager_us"), ("compile", "compile_us"))
    return {
        **{f"fast_{p}": {name: fast(tasks, over, p) for name, over in baselines} for p in THRESHOLDS},
        "published": theirs.hardware,
        "tasks": [
            {
                "task": task.name,
                "correct": task.correct,
                "said": task.remark,
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
