"""`evolve ops`: what the catalog holds, where a search would pay, and whether wrong results would be noticed."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from archive.records import DeviceInfo, Evaluation, Standard
from evolve import wiring
from evolve.cli.options import ArchiveOption, JsonOption, SeedOption, op_names
from evolve.errors import UserError
from evolve.report import catalog as report
from evolve.report import prospects
from evolve.report.console import complain, console, print_json
from evolve.report.prospects import Prospect
from evolve.report.words import counted

if TYPE_CHECKING:
    from evolve.evaluation.op_check import BlindSpot
    from reference_ops.op import Op, Workload

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
class Listed:
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
    with console(stderr=True).status("loading the ops"):
        loaded, missing = _loaded(wanted or [], family)
    if check:
        blind = _check(loaded, wiring.device_kind(device), seed, as_json=as_json)
        if blind or missing:
            raise typer.Exit(1)
        return
    faults: dict[str, dict[str, str]] = {}
    if measure:
        faults, device = _measure(loaded, wiring.device_kind(device), archive, again=again)
    named = [one.op.name for one in loaded] if wanted else []
    standards, evaluations = _known(wiring.archive_path(archive), named)
    info = prospects.device_of(standards, evaluations, device)
    if device and info is None and not measure:
        raise _unknown(device, [*standards, *evaluations])
    found = [
        replace(one, faults=faults.get(one.op.name, {}))
        for one in prospects.prospects([(one.family, one.op) for one in loaded], info, standards, evaluations)
    ]
    if as_json:
        print_json([prospects.facts(one, info) for one in (prospects.by_headroom(found) if by == HEADROOM else found)])
    else:
        _print_table(found, info, by)


def _check_options(by: str, *, measure: bool, again: bool, check: bool) -> None:
    if by not in (NAME, HEADROOM):
        raise UserError(f"the ops cannot be sorted by `{by}`", f"choose {NAME} or {HEADROOM}")
    if measure and check:
        raise UserError("--measure and --check are two errands", "run one after the other")
    if again and not measure:
        raise UserError("--again is for --measure", "add --measure, or leave out --again")


def _loaded(wanted: Sequence[str], family: str) -> tuple[list[Listed], bool]:
    """The wanted ops, or all that can be loaded, of this family, and whether some cannot be."""
    from reference_ops import catalog

    loaded, missing = [], False
    for name in wanted or catalog.names():
        try:
            loaded.append(Listed(catalog.family(name), catalog.load(name), catalog.lasting(name)))
        except catalog.CatalogError as error:
            if wanted:
                raise
            missing = True
            complain(str(error))
    families = sorted({one.family for one in loaded})
    if family and family not in families:
        raise UserError(f"none of these ops is of a family `{family}`", f"they are of: {', '.join(families)}")
    return [one for one in loaded if family in ("", one.family)], missing


def _measure(
    loaded: Sequence[Listed], kind: str, archive: Path | None, *, again: bool
) -> tuple[dict[str, dict[str, str]], str]:
    """What could not be measured, by op and workload, and the device's key."""
    from evolve.cli import measuring

    measuring.check_device(kind)  # before there is an archive
    with closing(wiring.archive(archive)) as store:
        return measuring.measure(
            [(one.locator, one.op) for one in loaded], kind, store, console(stderr=True), again=again
        )


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


def _check(loaded: Sequence[Listed], kind: str, seed: int, *, as_json: bool) -> bool:
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
        yield from blind_spots(op, workload, seed, "cuda" if kind == "cuda" else "cpu")
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
