"""`evolve top`, `show`, `diff`, `tree`, `serve` and `report`: show the archive's content, without importing torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from archive.kernel import Kernel, Proposal
from archive.records import DeviceInfo, Evaluation, Outcome
from archive.sqlite import SqliteStore
from archive.store import Store, uncollected
from archive.summaries import EvaluationSummary, KernelSummary, ProposalSummary
from evolve import wiring
from evolve.cli import lookup, options
from evolve.cli.options import (
    ArchiveOption,
    CsvOption,
    DevicePart,
    DtypePart,
    FamilyPart,
    JsonOption,
    KernelArgument,
    OpFilter,
    OutcomePart,
    ProposerPart,
    RunPart,
    SincePart,
    op_names,
)
from evolve.errors import UserError
from evolve.report import facts, gains
from evolve.report.failures import MOST_LISTED, failed_requests, failures_table, reasons, tally
from evolve.report.kernel import beside, difference, kernel_details, reply_details
from evolve.report.kernels import PENDING, SORTS, KernelFilter, KernelLine, kernel_lines, kernels_table
from evolve.report.lineage import MOST_SHOWN, Lineage, left_out_words, lineage_tree, lineages, roots_shown
from evolve.report.output import EVERYTHING, csv_of, paged
from evolve.report.runs import has_unicode
from evolve.report.standing import Standing, basis_of, devices, first_proposals, standings
from evolve.report.standing_tables import (
    ELSEWHERE_MEANS,
    best_so_far_line,
    champions_table,
    of_dtype,
    print_standing,
    unmeasured_table,
)
from evolve.report.tables import WIDE
from evolve.report.words import console, counted, listed, print_json, print_text
from reference_ops.catalog import is_path

KERNELS_LISTED = 50


def top(  # noqa: PLR0913, PLR0917 - one per option
    op: OpFilter = "",
    family: FamilyPart = "",
    device: DevicePart = "",
    dtype: DtypePart = "",
    outcome: OutcomePart = "",
    proposer: ProposerPart = "",
    run: RunPart = "",
    since: SincePart = "",
    sort: Annotated[
        str, typer.Option("--sort", metavar="|".join(SORTS), help="List kernels, sorted by this column.")
    ] = "",
    failures: Annotated[
        bool, typer.Option("--failures", help="List the requests to models that gave no kernel, and why.")
    ] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
) -> None:
    """Show the champions and the population of each op, or list kernels by outcome, proposer, run or time."""
    options.check_sort(sort, SORTS)
    options.check_family(family)
    store = wiring.archive(archive, read_only=True)
    name = lookup.op_name(op)
    if failures:
        _list_failures(store, name, as_json=as_json)
        return
    choice = KernelFilter(device, options.known_dtype(dtype), _known_outcome(outcome), proposer,
                    lookup.one(store, run).id if run else "", options.moment_of(since))  # fmt: skip
    if choice.of_kernels or sort:
        ops = [one for one in store.count(KernelSummary, "op", name) if options.of_family(one, family)]
        _list_kernels(store, kernel_lines(store, ops, choice, sort or "best"), choice, as_json=as_json, as_csv=as_csv)
        return
    if not op:
        _print_overview(store, choice, family, as_json=as_json, as_csv=as_csv)
        return
    found = [of_dtype(one, choice.dtype) for one in standings(store, name, device) if options.of_family(one.op, family)]
    filtered = family or choice.dtype or device
    if not (found or filtered) and _print_unmeasured(store, name, as_json=as_json):
        return
    if as_json:
        print_json([facts.of_standing(standing) for standing in found])
    if not found:
        lookup.absent(*_nothing(op, device, proposed=bool(store.count(Kernel, "op", name))))
    if as_csv:
        print_text("\n".join(csv_of(champions_table(one, EVERYTHING)) for one in found), end="")
    elif not as_json:
        _print_standings(found)


def _print_overview(store: SqliteStore, choice: KernelFilter, family: str, *, as_json: bool, as_csv: bool) -> None:
    """Print a line per op and device, largest possible gain first."""
    held = {op for op in store.ops(KernelSummary) if options.of_family(op, family)}
    found = [one for one in gains.reached_everywhere(store, choice.device, choice.dtype) if one.op in held]
    if as_json:
        print_json([gains.facts(one) for one in found])
    if not found and (choice.device or not held):
        lookup.absent(*_nothing("", choice.device, proposed=False))
    if as_csv:
        print_text(csv_of(gains.reached_table(found, EVERYTHING)), end="")
    if as_json or as_csv:
        return
    output = console()
    with paged(output):
        if found:
            output.print(table := gains.reached_table(found, output.width))
            output.print(f"\n{gains.footnote(table)}", style="dim")
            if any(one.elsewhere for one in found):
                output.print(ELSEWHERE_MEANS, style="dim")
        if (waiting := len(held.difference(one.op for one in found))) and not choice.device:
            others = "other " if found else ""
            output.print(f"{counted(waiting, f'{others}op')} with kernels that no device has evaluated yet")
            output.print(
                "evolve run softmax evaluates the kernels of an op; their speed can be measured only on a GPU",
                style="dim",
            )
        output.print("evolve top OP shows the champions and the population of an op", style="dim")


def _print_standings(found: Sequence[Standing]) -> None:
    output = console()
    with uncollected(), paged(output):
        for standing in found:
            print_standing(output, standing)
            if curve := best_so_far_line(standing, unicode=has_unicode(output)):
                output.print(curve)
            output.print()


def _list_kernels(
    store: Store, lines: Sequence[KernelLine], choice: KernelFilter, *, as_json: bool, as_csv: bool
) -> None:
    if as_json:
        print_json([facts.of_kernel_line(line) for line in lines])
    if not lines and not choice.outcome:
        lookup.absent(
            "no kernel with a verdict matches these filters", "--outcome pending lists the kernels without a verdict"
        )
    if not lines:
        lookup.absent(
            "no kernel in the archive matches these filters", "leave out a filter; `evolve top` shows the ops"
        )
    if as_csv:
        print_text(csv_of(kernels_table(store, lines, EVERYTHING)), end="")
    elif not as_json:
        output = console()
        output.print(kernels_table(store, lines[:KERNELS_LISTED], output.width))
        if len(lines) > KERNELS_LISTED:
            output.print(f"and {len(lines) - KERNELS_LISTED} more; --csv and --json list all", style="dim")


def _known_outcome(given: str) -> str:
    known = [*map(str, Outcome), PENDING]
    if given and not any(one.startswith(given.lower()) for one in known):
        raise UserError(f"there is no outcome `{given}`", f"choose one of: {', '.join(known)}")
    return given.lower()


def _print_unmeasured(store: Store, op: str, *, as_json: bool) -> bool:
    """Print the kernels of an op that no device has evaluated, and return whether there are any."""
    kernels = store.find(Kernel, op)
    if kernels and as_json:
        print_json([facts.of_unmeasured(op, kernels)])
    elif kernels:
        output = console()
        output.print(f"{op}: {counted(len(kernels), 'kernel')}, none evaluated yet", style="bold")
        proposals = first_proposals(store, [kernel.id for kernel in kernels])
        output.print(unmeasured_table(kernels, proposals, output.width))
        output.print(f"\nevolve run {op} evaluates them; their speed can be measured only on a GPU", style="dim")
    return bool(kernels)


def _list_failures(store: Store, op: str, *, as_json: bool) -> None:
    failed = failed_requests(store, op)
    if as_json:
        print_json([facts.of_proposal(proposal) for proposal in failed])
    if not failed:
        lookup.absent(f"every request{f' for {op}' if op else ''} gave a kernel", "`evolve runs` lists the runs")
    if as_json:
        return
    output = console()
    output.print(failures_table(failed, output.width))
    if len(failed) > MOST_LISTED:
        output.print(f"and {len(failed) - MOST_LISTED} older ones", style="dim")
    output.print(f"\n{tally(reasons(one.failure for one in failed))}\nevolve show ID shows the reply", style="dim")


def show(kernel: KernelArgument, archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """Show a kernel with its evaluations, or a reply without one."""
    store = wiring.archive(archive, read_only=True)
    found = lookup.kernel_or_reply(store, kernel)
    output = console()
    if isinstance(found, Proposal):
        if as_json:
            print_json({**facts.of_proposal(found), "reply": found.reply})
        else:
            for line in reply_details(found):
                output.print(line, soft_wrap=not output.is_terminal)
        return
    proposals = store.find(Proposal, found.op, kernels=[found.id])
    children = store.find(Proposal, found.op, parents=[found.id])
    evaluations = store.find(Evaluation, found.op, kernels=[found.id])
    if as_json:
        print_json({
            **facts.of_kernel(found),
            "text": found.text,
            "proposals": [facts.of_proposal(proposal) for proposal in proposals],
            "children": list(dict.fromkeys(child.kernel_id for child in children if child.kernel)),
            "evaluations": [facts.of_evaluation(evaluation) for evaluation in evaluations],
        })  # fmt: skip
        return
    infos = {evaluation.device.key: evaluation.device for evaluation in evaluations}
    bases = {key: basis_of(store, found.op, info) for key, info in infos.items()}
    judged = [(one, bases[one.device.key]) for one in evaluations]
    with paged(output):
        for part in kernel_details(found, proposals, judged, children, output.width):
            text = isinstance(part, Text)  # on a terminal, a note is wrapped between words, unlike the kernel's code
            output.print(part, soft_wrap=not (text and output.is_terminal) and not hasattr(part, "columns"))


def diff(a: KernelArgument, b: KernelArgument, archive: ArchiveOption = None) -> None:
    """Compare the texts of two kernels."""
    store = wiring.archive(archive, read_only=True)
    first, second = lookup.kernel(store, a), lookup.kernel(store, b)
    if first.id == second.id:
        console().print(f"{first.id} is the same kernel")
        return
    output = console()
    with paged(output):
        # not on a terminal: the lines can be searched and applied as a patch
        if output.is_terminal and output.width >= WIDE:
            output.print(beside(first, second, output.width))
        else:
            output.print(difference(first, second), soft_wrap=True)


def tree(
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of an op.", autocompletion=op_names)],
    kernel: Annotated[str, typer.Argument(metavar="[ID]", help="Show only this kernel and its descendants.")] = "",
    device: DevicePart = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Also show kernels that have no living descendants.")
    ] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the kernels of an op as trees of parents and children."""
    store = wiring.archive(archive, read_only=True)
    name = lookup.op_name(op)
    if as_json:
        print_json([facts.of_proposal(proposal) for proposal in store.find(ProposalSummary, name)])
        return
    found: list[DeviceInfo | None] = [*devices(store, name, device)]
    if not found and not device and store.count(KernelSummary, "op", name):
        found = [None]
    if not found:
        lookup.absent(*_nothing(op, device, proposed=bool(store.count(Kernel, "op", name))))
    root = lookup.kernel(store, kernel) if kernel else None
    if root and root.op != name:
        raise UserError(f"{kernel} is a kernel of {root.op}, not of {name}", f"try `evolve tree {root.op} {kernel}`")
    output = console()
    with paged(output):
        for lines in lineages(store, name, found):
            _print_tree(output, lines, root.id if root else "", everything=everything)


def _print_tree(output: Console, lines: Lineage, root: str, *, everything: bool) -> None:
    everything = everything or len(lines.parents) <= MOST_SHOWN
    where = f"on {lines.device.name}" if lines.device else "evaluated on no device yet"
    output.print(f"{lines.op} {where}", style="bold")
    for kernel_id in [root] if root else roots_shown(lines, everything=everything):
        output.print(lineage_tree(lines, kernel_id, output.width, everything=everything))
    if not everything:
        output.print(left_out_words(lines, root), style="dim", soft_wrap=True)
    output.print()


def _nothing(op: str, device: str, *, proposed: bool) -> tuple[str, str]:
    where = f" on a device with `{device}` in its name" if device else ""
    if op and proposed:
        return f"no kernel of {op} was evaluated{where} yet", f"`evolve evaluate {op}` evaluates the pending kernels"
    if op and op not in op_names() and not is_path(op):
        return f"there is no op `{op}` in the archive or the catalog", "`evolve ops` lists the catalog"
    what = f"of {op} " if op else ""
    return f"the archive holds no evaluations {what}yet{where}", f"`evolve run {op or 'softmax'}` makes some"


REPORT = Path("report.html")
WEB = ("starlette", "uvicorn")  # installed by the extra `web`
OpsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[OP...]", help="Show only these ops.", autocompletion=op_names, show_default=False),
]


def report(
    ops: OpsArgument = None,
    output: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write.")] = REPORT,
    kernels: Annotated[
        int,
        typer.Option(
            "--kernels",
            min=0,
            help="Number of kernels with a page, per op and device, besides the champions and their ancestors, which "
            "always have one. With many ops it is reduced, so that the file has at most 1000. The pages say how "
            "many are left out.",
        ),
    ] = 30,
    archive: ArchiveOption = None,
) -> None:
    """Write the archive's pages into one HTML file that needs no network."""
    from evolve.pages import one_file

    store = wiring.archive(archive, read_only=True)
    names = list(dict.fromkeys(lookup.op_name(op) for op in ops or ()))
    held = store.count(EvaluationSummary, "op")
    if missing := [name for name in names if name not in held]:
        lookup.absent(f"the archive holds no evaluations of {listed(missing)}", "`evolve top` lists the ops in it")
    if not held:
        lookup.absent("the archive holds no evaluations yet", "`evolve run softmax` makes some")
    text = one_file.report(store, names, kernels)
    try:
        output.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}", "name another file with --out") from error
    size = f"{len(text.encode(errors='replace')) / 1e6:.1f} MB"
    console().print(f"{output}: {counted(len(names) or len(held), 'op')}, {size}; open it in a browser", soft_wrap=True)


def serve(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 for any free port.")] = 8642,
    show: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
    archive: ArchiveOption = None,
) -> None:
    """Serve the archive's pages to a browser on this machine, live while a run writes."""
    try:
        from evolve.pages import server, site
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in WEB:
            raise
        raise UserError(
            f"`evolve serve` needs the package {error.name}",
            "pip install 'evolve-kernels[web]'; `evolve report` works without it",
        ) from error
    wiring.archive(archive, read_only=True).close()
    bound = server.listening(port)
    address = f"http://localhost:{bound.getsockname()[1]}/"
    output = console()
    output.print(f"{address}  (Ctrl-C ends it)", soft_wrap=True)
    number = bound.getsockname()[1]
    tunnel = f"only this machine can connect; from another one: ssh -L {number}:127.0.0.1:{number} HOST"
    output.print(tunnel, style="dim", soft_wrap=True)
    if show:
        typer.launch(address)
    server.serve(wiring.archive_path(archive), site.Site(), bound)
