"""`evolve ops`: list the catalog, measure PyTorch's times, or check that wrong results would be detected."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from archive.records import DeviceInfo, Evaluation, Standard
from archive.store import Store, evaluations_of
from archive.summaries import EvaluationSummary
from evolve import wiring
from evolve.cli import signals
from evolve.cli.options import ArchiveOption, JsonOption, SeedOption, op_names
from evolve.cli.session import engine_on
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines import trial
from evolve.engines.engine import TimesPyTorch
from evolve.errors import UserError
from evolve.evaluation.requests import TimingRequest, TimingResult
from evolve.report import ops as report
from evolve.report.ops import OpSummary, mean_share
from evolve.report.progress import Phases
from evolve.report.standing import decisive_evaluations, devices
from evolve.report.words import clock, complain, console, counted, one_line, percent, print_json
from reference_ops import catalog
from reference_ops.listing import Listed, listed
from reference_ops.op import Op, Workload

if TYPE_CHECKING:
    from evolve.evaluation.op_check import BlindSpot

SPOTS_SHOWN = 12  # largest number of blind spots printed per op; --json lists all of them
NAME, HEADROOM = "name", "headroom"
OpsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="Names of ops, or paths of Python files [default: the whole catalog].",
                   autocompletion=op_names, show_default=False),
]  # fmt: skip
CheckOption = Annotated[
    bool, typer.Option("--check", help="Check that wrong results would be detected, by altering PyTorch's results.")
]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time PyTorch on this GPU at workloads without archived times.")
]
AgainOption = Annotated[
    bool, typer.Option("--again", help="With --measure, also time workloads that already have times.")
]
FamilyOption = Annotated[str, typer.Option("--family", metavar="NAME", help="Show only ops of this family.")]
ByOption = Annotated[
    str,
    typer.Option(
        "--by", metavar=f"{NAME}|{HEADROOM}", help="Sort by family and name, or by the speedup still possible."
    ),
]
DEVICE_HELP = (
    f"With --check or --measure, the device to use: {'|'.join(choose.kinds())}. Otherwise, part of the name of the "
    "device whose figures to show."
)
OpsDeviceOption = Annotated[
    str, typer.Option("--device", metavar="TEXT", help=DEVICE_HELP, show_default="a GPU if there is one")
]


@dataclass(frozen=True)
class Loaded:
    """A loaded op with its family and the locator by which worker processes find it."""

    family: str
    op: "Op"
    locator: str


def ops(  # noqa: PLR0913, PLR0917 - one per option
    requested: OpsArgument = None,
    family: FamilyOption = "",
    by: ByOption = NAME,
    measure: MeasureOption = False,
    again: AgainOption = False,
    check: CheckOption = False,
    device: OpsDeviceOption = "",
    archive: ArchiveOption = None,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """List the ops, time PyTorch on them, or check them. The list shows shares of the speed of light."""
    _check_options(by, measure=measure, again=again, check=check)
    names = requested or []
    if not (check or measure or any(map(catalog.is_path, names))):
        _list(_chosen(names, family), names, by, device, archive, as_json=as_json)
        return
    with console(stderr=True).status("loading the ops"):
        loaded, missing = _loaded(names, family)
    if check:
        blind = _check(loaded, choose.device_kind(device), seed, as_json=as_json)
        if blind or missing:
            raise typer.Exit(1)
        return
    faults: dict[str, dict[str, str]] | None = None
    if measure:
        faults, device = _measure(loaded, choose.device_kind(device), archive, again=again)
    ops = [listed(one.op, one.family) for one in loaded]
    _list(ops, names, by, device, archive, faults, as_json=as_json)


def _list(
    ops: Sequence[Listed], names: Sequence[str], by: str, device: str, archive: Path | None,
    faults: Mapping[str, Mapping[str, str]] | None = None, *, as_json: bool,
) -> None:  # fmt: skip
    """Print the ops with the times in the archive; `faults` says why workloads could not be measured this time."""
    known = _known(wiring.archive_path(archive), [op.name for op in ops] if names else [], device)
    info = known.device
    if device and info is None and faults is None:
        raise _unknown(device, known.devices)
    found = report.summaries(ops, info, known.standards, known.evaluations)
    found = [replace(one, faults=(faults or {}).get(one.op.name, {})) for one in found]
    if as_json:
        print_json([report.facts(one, info) for one in (report.by_headroom(found) if by == HEADROOM else found)])
    else:
        _print_table(found, info, by)


def _chosen(names: Sequence[str], family: str) -> list[Listed]:
    """Return the named ops of the catalog, or all, restricted to this family if it is given."""
    every = {op.name: op for op in catalog.listing()}
    for name in names:
        if name not in every:
            catalog.locate(name)  # raises an error that suggests similar names
    ops = [every[name] for name in dict.fromkeys(names)] or list(every.values())
    _check_family(family, {op.family for op in ops})
    return [op for op in ops if family in ("", op.family)]


def _check_family(family: str, families: Iterable[str]) -> None:
    if family and family not in families:
        known = ", ".join(sorted(families))
        raise UserError(f"none of these ops is in a family `{family}`", f"choose one of: {known}")


def _check_options(by: str, *, measure: bool, again: bool, check: bool) -> None:
    if by not in (NAME, HEADROOM):
        raise UserError(f"--by must be {NAME} or {HEADROOM}, got {by}", f"choose {NAME} or {HEADROOM}")
    if measure and check:
        raise UserError("--measure and --check cannot be combined", "run one after the other")
    if again and not measure:
        raise UserError("--again needs --measure", "add --measure, or leave out --again")


def _loaded(requested: Sequence[str], family: str) -> tuple[list[Loaded], bool]:
    """Return the requested ops of a family, or all in the catalog, and whether some could not be loaded."""
    loaded, missing = [], False
    for name in requested or catalog.names():
        try:
            loaded.append(Loaded(catalog.family(name), trial.load(name), catalog.lasting(name)))
        except catalog.CatalogError as error:
            if requested:
                raise
            missing = True
            complain(str(error))
    _check_family(family, {one.family for one in loaded})
    return [one for one in loaded if family in ("", one.family)], missing


def _measure(
    loaded: Sequence[Loaded], kind: str, archive: Path | None, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """Measure the ops; return failures by op and workload, and the device's key."""
    check_device(kind)  # raises an error before an archive is created
    with closing(wiring.archive(archive)) as store:
        return measure([(one.locator, one.op) for one in loaded], kind, store, console(stderr=True), again=again)


@dataclass(frozen=True)
class KnownTimes:
    """Archived times of PyTorch and of evaluations on one device, and all devices that have times."""

    device: DeviceInfo | None = None
    standards: Sequence[Standard] = ()
    evaluations: Sequence[Evaluation] = ()
    devices: Sequence[DeviceInfo] = ()


def _known(archive: Path, names: Sequence[str], part: str) -> KnownTimes:
    """Return the archived times of these ops, or of all, on the device with `part` in its key."""
    with closing(wiring.readable_archive(archive)) as store:
        standards = [one for name in names or [""] for one in store.find(Standard, name)]
        ops = names or sorted(store.count(Evaluation, "op"))
        newest = [one for op in ops for one in _newest(store, op)]
        device = report.device_of(standards, newest, part)
        evaluations = [one for op in ops if device for one in decisive_evaluations(store, op, device)]
        return KnownTimes(
            device, standards, evaluations, [*(one.device for one in standards), *(one.device for one in newest)]
        )


def _newest(store: Store, op: str) -> list[Evaluation]:
    """Return the newest evaluation of an op on each device."""
    found = [one for info in devices(store, op) for one in store.find(EvaluationSummary, op, device=info.key, newest=1)]
    return list(evaluations_of(store, found).values())


def _unknown(device: str, devices: Sequence[DeviceInfo]) -> UserError:
    names = sorted({info.name for info in devices})
    hint = (
        f"choose one of: {', '.join(names)}" if names else "`evolve ops --measure` and `evolve evaluate` measure times"
    )
    return UserError(f"the archive has no times of a device with `{device}` in its name", hint)


def _print_table(found: Sequence[OpSummary], info: DeviceInfo | None, by: str) -> None:
    output = console()
    table = report.headroom_table if by == HEADROOM and report.known(found) else report.family_table
    output.print(table(found, output.width))
    if by == HEADROOM and not report.known(found):
        output.print("\nnothing has been measured yet, so the ops are sorted by family", style="yellow")
    output.print()
    for words, style in report.footnotes(found, info):
        output.print(words, style=style)


def _check(loaded: Sequence[Loaded], kind: str, seed: int, *, as_json: bool) -> bool:
    """Check the ops, print each result as it arrives, and return whether any op has a blind spot."""
    from evolve.evaluation.op_check import distributions

    width = max((len(one.op.name) for one in loaded), default=0)
    facts, blind = [], False
    for op in (one.op for one in loaded):
        with console(stderr=True).status(f"checking {op.name}"):
            workloads = (*op.workloads(kind), *op.awkward)
            spots = [spot for workload in workloads for spot in _spots(op, workload, seed, kind)]
        blind |= bool(spots)
        drawn = distributions(op)
        facts.append({
            "op": op.name,
            "device": kind,
            "workloads": [workload.key for workload in workloads],
            "distributions": drawn,
            "blind": [asdict(spot) for spot in spots],
        })  # fmt: skip
        if not as_json:
            checked = f"{counted(len(workloads), 'workload')} × {counted(len(drawn), 'distribution')}"
            _print_verdict(op.name.ljust(width), checked, spots)
    if as_json:
        print_json(facts)
    return blind


def _spots(op: "Op", workload: "Workload", seed: int, kind: str) -> Iterator["BlindSpot"]:
    import torch

    from evolve.evaluation.op_check import BlindSpot, blind_spots

    try:
        yield from blind_spots(op, workload, seed, policy_of(kind).torch_device)
    except torch.OutOfMemoryError:
        yield BlindSpot(workload.key, "all", "", "", "not checked: it does not fit in the GPU's memory")


def _print_verdict(name: str, checked: str, spots: Sequence["BlindSpot"]) -> None:
    output = console()
    if not spots:
        output.print(f"{name}  {checked}: every altered result was detected", soft_wrap=True)
        return
    output.print(f"{name}  {checked}: {counted(len(spots), 'blind spot')}", style="red", soft_wrap=True)
    for spot in spots[:SPOTS_SHOWN]:
        output.print(f"    {spot.workload}, {spot.values} values: {spot.words}", soft_wrap=True)
    if len(spots) > SPOTS_SHOWN:
        output.print(f"    and {len(spots) - SPOTS_SHOWN} more; --json lists them all", style="dim")


# if torch.compile kills this many workers in a row, the op's other workloads use eager PyTorch only
MOST_LOST_WORKERS = 2
ON_A_GPU = "run `evolve ops --measure --archive FILE` on a machine with a GPU, then `evolve merge FILE` here"


@dataclass
class OpToMeasure:
    """An op, its workloads to time, and the results."""

    locator: str
    op: "Op"
    missing: tuple[str, ...]  # workloads without times
    found: list[Standard] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # reasons why nothing was timed; key: workload
    without_compile: dict[str, str] = field(default_factory=dict)  # reasons why only eager PyTorch was timed


def check_device(kind: str) -> None:
    if not policy_of(kind).times_are_gpu_times:
        raise UserError(f"the {kind} device has no speed of light to compare PyTorch with", ON_A_GPU)


def measure(
    listed: Sequence[tuple[str, "Op"]], kind: str, store: Store, output: Console, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """Time PyTorch for ops given with their locators; return failures by op and workload, and the device's key."""
    with engine_on(kind, Phases(), output) as engine:
        if not isinstance(engine, TimesPyTorch):
            raise UserError("this engine cannot time PyTorch", "run this command on the machine that has the GPU")
        key = engine.info.key
        works = [OpToMeasure(locator, op, _missing(op, store, engine.info, again=again)) for locator, op in listed]
        todo = [work for work in works if work.missing]
        _print_work(works, todo, output)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=output, transient=True, disable=not output.is_terminal) as progress:
            bar = progress.add_task("", total=sum(len(work.missing) for work in todo))
            for work in todo:
                began = time.monotonic()
                progress.update(bar, description=work.op.name)
                for _ in _measured(work, engine, store, again=again):
                    progress.update(bar, advance=1)
                    signals.check()
                _print_times(work, time.monotonic() - began, output)
    return {work.op.name: work.faults for work in todo}, key


def _missing(op: "Op", store: Store, info: DeviceInfo, *, again: bool) -> tuple[str, ...]:
    """Return the workloads that have no times with this version of PyTorch and of the driver."""
    known = {
        one.workload
        for one in store.find(Standard, op.name)
        if (one.device.key, one.device.torch, one.device.driver) == (info.key, info.torch, info.driver)
    }
    return tuple(workload.key for workload in op.workloads(info.kind) if again or workload.key not in known)


def _measured(work: OpToMeasure, engine: TimesPyTorch, store: Store, *, again: bool) -> Iterator[str]:
    """Time an op's missing workloads, record the results in `work`, and yield each workload when it is finished."""
    lost = 0  # number of workers lost in a row
    for workload in work.missing:
        request = TimingRequest(work.locator, workload, again, eager_alone=lost >= MOST_LOST_WORKERS)
        answer = engine.time_pytorch(request)
        if answer.standard is None and answer.tainted and not request.eager_alone:
            lost += 1
            answer = _eager_alone(work, request, answer, engine)
        elif request.eager_alone:
            work.without_compile[workload] = "not tried again"
        else:
            lost = 0
        if answer.standard:
            store.append(answer.standard)
            work.found.append(answer.standard)
        else:
            work.faults[workload] = answer.fault
        yield workload


def _eager_alone(work: OpToMeasure, request: TimingRequest, failed: TimingResult, engine: TimesPyTorch) -> TimingResult:
    """Time only eager PyTorch after torch.compile has killed a worker."""
    answer = engine.time_pytorch(replace(request, eager_alone=True))
    if answer.standard:
        work.without_compile[request.workload] = failed.fault
    return answer


def _print_work(works: Sequence[OpToMeasure], todo: Sequence[OpToMeasure], output: Console) -> None:
    number = sum(len(work.missing) for work in todo)
    known = len(works) - len(todo)
    if known:
        output.print(f"{counted(known, 'op')} measured earlier; --again measures all of them again", style="dim")
    if number:
        workloads = f"{counted(number, 'workload')} of {counted(len(todo), 'op')}"
        output.print(f"timing PyTorch at {workloads}; each result is archived at once")


def _print_times(work: OpToMeasure, seconds: float, output: Console) -> None:
    found = mean_share([one.floor_us / one.best_us if one.floor_us else None for one in work.found])
    figures = "speed of light unknown" if work.found else "nothing measured"
    if found:
        figures = f"PyTorch at {percent(found.mean)} of the speed of light, worst {percent(found.worst)}"
    output.print(
        f"{work.op.name}: {figures} ({counted(len(work.missing), 'workload')}, {clock(seconds)})", soft_wrap=True
    )
    for workload, why in work.without_compile.items():
        output.print(f"    {workload}: eager alone; torch.compile: {one_line(why)}", style="yellow", soft_wrap=True)
    for workload, why in work.faults.items():
        output.print(f"    {workload}: {one_line(why)}", style="red", soft_wrap=True)
