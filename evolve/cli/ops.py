"""`evolve ops`: lists the catalog, measures PyTorch's times, and checks that wrong results would be noticed."""

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
from archive.store import Store
from evolve import wiring
from evolve.cli import signals
from evolve.cli.options import ArchiveOption, JsonOption, SeedOption, op_names
from evolve.cli.session import engine_on
from evolve.devices import choose
from evolve.devices.choose import policy_of
from evolve.engines.engine import TimesPyTorch
from evolve.errors import UserError
from evolve.evaluation.requests import TimingRequest, TimingResult
from evolve.report import ops as report
from evolve.report.ops import Prospect, shares
from evolve.report.progress import Phases
from evolve.report.words import clock, complain, console, counted, one_line, percent, print_json
from reference_ops import catalog
from reference_ops.listing import Listed, listed
from reference_ops.op import Op, Workload

if TYPE_CHECKING:
    from evolve.evaluation.op_check import BlindSpot

SPOTS_SHOWN = 12  # of one op; --json has them all
NAME, HEADROOM = "name", "headroom"
OpsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="OP", help="Only these ops: names, or paths of Python files.",
                   autocompletion=op_names, show_default=False),
]  # fmt: skip
CheckOption = Annotated[bool, typer.Option("--check", help="Would wrong results be noticed? Spoils PyTorch's own.")]
MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time PyTorch on this GPU, where that is not known yet.")
]
AgainOption = Annotated[bool, typer.Option("--again", help="With --measure: also what is known.")]
FamilyOption = Annotated[str, typer.Option("--family", metavar="NAME", help="Only the ops of this family.")]
ByOption = Annotated[
    str, typer.Option("--by", metavar=f"{NAME}|{HEADROOM}", help="Sort by name in families, or most to gain first.")
]
DEVICE_HELP = (
    "Where to check or measure: cuda|emulated. For the list: the device of the figures, by a part of its name."
)
OpsDeviceOption = Annotated[
    str, typer.Option("--device", metavar="TEXT", help=DEVICE_HELP, show_default="a GPU if one is found, or known")
]


@dataclass(frozen=True)
class Loaded:
    """An op with its family and the locator by which other processes find it."""

    family: str
    op: "Op"
    locator: str


def ops(  # noqa: PLR0913, PLR0917 - one per option
    wanted: OpsArgument = None,
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
    """List the ops and where PyTorch stands against the speed of light; measure that; or check the ops."""
    _check_options(by, measure=measure, again=again, check=check)
    names = wanted or []
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
    """Print the ops with what the archive holds of them. `faults` says why workloads could not be measured just now."""
    standards, evaluations = _known(wiring.archive_path(archive), [op.name for op in ops] if names else [])
    info = report.device_of(standards, evaluations, device)
    if device and info is None and faults is None:
        raise _unknown(device, [*standards, *evaluations])
    found = report.prospects(ops, info, standards, evaluations)
    found = [replace(one, faults=(faults or {}).get(one.op.name, {})) for one in found]
    if as_json:
        print_json([report.facts(one, info) for one in (report.by_headroom(found) if by == HEADROOM else found)])
    else:
        _print_table(found, info, by)


def _chosen(names: Sequence[str], family: str) -> list[Listed]:
    """The named ops of the catalog, or all, of this family."""
    every = {op.name: op for op in catalog.listing()}
    for name in names:
        if name not in every:
            catalog.locate(name)  # raises an error with similar names
    ops = [every[name] for name in dict.fromkeys(names)] or list(every.values())
    _check_family(family, {op.family for op in ops})
    return [op for op in ops if family in ("", op.family)]


def _check_family(family: str, families: Iterable[str]) -> None:
    if family and family not in families:
        known = ", ".join(sorted(families))
        raise UserError(f"none of these ops is of a family `{family}`", f"they are of: {known}")


def _check_options(by: str, *, measure: bool, again: bool, check: bool) -> None:
    if by not in (NAME, HEADROOM):
        raise UserError(f"the ops cannot be sorted by `{by}`", f"choose {NAME} or {HEADROOM}")
    if measure and check:
        raise UserError("--measure and --check cannot be combined", "run one after the other")
    if again and not measure:
        raise UserError("--again is for --measure", "add --measure, or leave out --again")


def _loaded(wanted: Sequence[str], family: str) -> tuple[list[Loaded], bool]:
    """The requested ops, or all that can be loaded, of this family, and whether some cannot be."""
    loaded, missing = [], False
    for name in wanted or catalog.names():
        try:
            loaded.append(Loaded(catalog.family(name), catalog.load(name), catalog.lasting(name)))
        except catalog.CatalogError as error:
            if wanted:
                raise
            missing = True
            complain(str(error))
    _check_family(family, {one.family for one in loaded})
    return [one for one in loaded if family in ("", one.family)], missing


def _measure(
    loaded: Sequence[Loaded], kind: str, archive: Path | None, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """What could not be measured, by op and workload, and the device's key."""
    check_device(kind)  # before there is an archive
    with closing(wiring.archive(archive)) as store:
        return measure([(one.locator, one.op) for one in loaded], kind, store, console(stderr=True), again=again)


def _known(archive: Path, names: Sequence[str]) -> tuple[list[Standard], list[Evaluation]]:
    """Of these ops, or of all; nothing where there is no archive yet."""
    if not archive.exists():
        return [], []
    with closing(wiring.archive(archive, read_only=True)) as store:
        every = names or [""]
        standards = [one for name in every for one in store.find(Standard, name)]
        return standards, [one for name in every for one in store.find(Evaluation, name)]


def _unknown(device: str, records: Sequence[Standard | Evaluation]) -> UserError:
    names = sorted({record.device.name for record in records})
    hint = f"it knows {', '.join(names)}" if names else "`evolve ops --measure`, or `evolve evaluate`, makes some"
    return UserError(f"the archive knows nothing that was measured on a device named like `{device}`", hint)


def _print_table(found: Sequence[Prospect], info: DeviceInfo | None, by: str) -> None:
    shown = console()
    table = report.headroom_table if by == HEADROOM and report.known(found) else report.family_table
    shown.print(table(found, shown.width))
    if by == HEADROOM and not report.known(found):
        shown.print(
            "\nnothing is measured yet, so nobody knows where most is to gain: sorted by family", style="yellow"
        )
    shown.print()
    for words, style in report.footnotes(found, info):
        shown.print(words, style=style)


def _check(loaded: Sequence[Loaded], kind: str, seed: int, *, as_json: bool) -> bool:
    """Check every op and say what was found, as it is found; whether any is blind."""
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
        yield BlindSpot(workload.key, "all", "", "", "not checked: it does not fit into the GPU's memory")


def _print_verdict(name: str, checked: str, spots: Sequence["BlindSpot"]) -> None:
    shown = console()
    if not spots:
        shown.print(f"{name}  {checked}: all that was spoiled was found out", soft_wrap=True)
        return
    shown.print(f"{name}  {checked}: {counted(len(spots), 'blind spot')}", style="red", soft_wrap=True)
    for spot in spots[:SPOTS_SHOWN]:
        shown.print(f"    {spot.workload}, {spot.values} values: {spot.words}", soft_wrap=True)
    if len(spots) > SPOTS_SHOWN:
        shown.print(f"    and {len(spots) - SPOTS_SHOWN} more; --json lists them all", style="dim")


IN_VAIN = 2  # workloads in a row at which torch.compile cost a worker: it would at the op's others
NO_LIGHT = "the {kind} device has no speed of light that PyTorch could be held against"
ELSEWHERE = "on a machine with a GPU: `evolve ops --measure --archive FILE`; then here: `evolve merge FILE`"


@dataclass
class OpToMeasure:
    """An op, what is to be measured of it, and what came of that."""

    locator: str
    op: "Op"
    missing: tuple[str, ...]  # workloads
    found: list[Standard] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)  # by workload
    without_compile: dict[str, str] = field(default_factory=dict)


def check_device(kind: str) -> None:
    if not policy_of(kind).times_are_gpu_times:
        raise UserError(NO_LIGHT.format(kind=kind), ELSEWHERE)


def measure(
    listed: Sequence[tuple[str, "Op"]], kind: str, store: Store, shown: Console, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """Every op, given with its locator. Why some workloads could not be measured, by both; and the device's key."""
    with engine_on(kind, Phases(), shown) as engine:
        if not isinstance(engine, TimesPyTorch):
            raise UserError("this engine times kernels alone", "measure on the machine that has the GPU")
        key = engine.info.key
        works = [OpToMeasure(locator, op, _missing(op, store, engine.info, again=again)) for locator, op in listed]
        todo = [work for work in works if work.missing]
        _say_what_is_to_do(works, todo, shown)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as progress:
            bar = progress.add_task("", total=sum(len(work.missing) for work in todo))
            for work in todo:
                began = time.monotonic()
                progress.update(bar, description=work.op.name)
                for _ in _measured(work, engine, store, again=again):
                    progress.update(bar, advance=1)
                    signals.check()
                _say(work, time.monotonic() - began, shown)
    return {work.op.name: work.faults for work in todo}, key


def _missing(op: "Op", store: Store, info: DeviceInfo, *, again: bool) -> tuple[str, ...]:
    """Times by another PyTorch or another driver are missing too."""
    known = {
        one.workload
        for one in store.find(Standard, op.name)
        if (one.device.key, one.device.torch, one.device.driver) == (info.key, info.torch, info.driver)
    }
    return tuple(workload.key for workload in op.workloads(info.kind) if again or workload.key not in known)


def _measured(work: OpToMeasure, engine: TimesPyTorch, store: Store, *, again: bool) -> Iterator[str]:
    """Each workload, once it is done with."""
    lost = 0  # workers, one after the other
    for workload in work.missing:
        wanted = TimingRequest(work.locator, workload, again, eager_alone=lost >= IN_VAIN)
        answer = engine.time_pytorch(wanted)
        if answer.standard is None and answer.tainted and not wanted.eager_alone:
            lost += 1
            answer = _eager_alone(work, wanted, answer, engine)
        elif wanted.eager_alone:
            work.without_compile[workload] = "not tried again"
        else:
            lost = 0
        if answer.standard:
            store.append(answer.standard)
            work.found.append(answer.standard)
        else:
            work.faults[workload] = answer.fault
        yield workload


def _eager_alone(work: OpToMeasure, wanted: TimingRequest, failed: TimingResult, engine: TimesPyTorch) -> TimingResult:
    answer = engine.time_pytorch(TimingRequest(wanted.op, wanted.workload, wanted.again, eager_alone=True))
    if answer.standard:
        work.without_compile[wanted.workload] = failed.fault
    return answer


def _say_what_is_to_do(works: Sequence[OpToMeasure], todo: Sequence[OpToMeasure], shown: Console) -> None:
    number = sum(len(work.missing) for work in todo)
    known = len(works) - len(todo)
    if known:
        shown.print(f"{counted(known, 'op')} known from earlier; --again measures everything anew", style="dim")
    if number:
        shown.print(
            f"timing PyTorch at {counted(number, 'workload')} of {counted(len(todo), 'op')}; Ctrl-C loses nothing"
        )


def _say(work: OpToMeasure, seconds: float, shown: Console) -> None:
    found = shares([one.floor_us / one.best_us if one.floor_us else None for one in work.found])
    light = f"PyTorch at {percent(found.mean)} of light, worst {percent(found.worst)}" if found else "light unknown"
    figures = light if work.found else "nothing measured"
    shown.print(
        f"{work.op.name}: {figures} ({counted(len(work.missing), 'workload')}, {clock(seconds)})", soft_wrap=True
    )
    for workload, why in work.without_compile.items():
        shown.print(f"    {workload}: eager alone; torch.compile: {one_line(why)}", style="yellow", soft_wrap=True)
    for workload, why in work.faults.items():
        shown.print(f"    {workload}: {one_line(why)}", style="red", soft_wrap=True)
