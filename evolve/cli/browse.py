"""`evolve top`, `show`, `diff` and `tree`: show what the archive holds, without importing torch."""

from typing import Annotated

import typer
from rich.text import Text

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import Evaluation
from archive.store import Store
from archive.summaries import ProposalSummary
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, DevicePart, JsonOption, KernelArgument, OpFilter, op_names
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.basis import basis_of
from evolve.report.failures import MOST_LISTED, failed_requests, failures_table, reasons, tally
from evolve.report.kernel import (
    MOST_SHOWN,
    Lineage,
    difference,
    kernel_details,
    left_out_words,
    lineage,
    lineage_tree,
    reply_details,
    roots_shown,
)
from evolve.report.standing import WON_MEANS, devices, print_standing, standings, standings_table
from evolve.report.words import console, print_json
from reference_ops.catalog import is_path


def top(
    op: OpFilter = "",
    device: DevicePart = "",
    failures: Annotated[
        bool, typer.Option("--failures", help="List the requests to models that gave no kernel, and why.")
    ] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the champions and the population of each op."""
    store = wiring.archive(archive, read_only=True)
    if failures:
        _list_failures(store, lookup.op_name(op), as_json=as_json)
        return
    found = standings(store, lookup.op_name(op), device)
    if as_json:
        print_json([facts.of_standing(standing) for standing in found])
    if not found:
        lookup.absent(*_nothing(op, device, proposed=bool(store.count(Kernel, "op", lookup.op_name(op)))))
    if as_json:
        return
    output = console()
    if op or len(found) == 1:
        for standing in found:
            print_standing(output, standing)
            output.print()
    else:
        output.print(standings_table(found, output.width))
        output.print(f"\n{WON_MEANS}\nevolve top OP shows the champions and the population of an op", style="dim")


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
    for part in kernel_details(
        found, proposals, [(one, bases[one.device.key]) for one in evaluations], children, output.width
    ):
        text = isinstance(part, Text)  # on a terminal it breaks between words, unlike the kernel's code
        output.print(part, soft_wrap=not (text and output.is_terminal) and not hasattr(part, "columns"))


def diff(a: KernelArgument, b: KernelArgument, archive: ArchiveOption = None) -> None:
    """Compare the texts of two kernels."""
    store = wiring.archive(archive, read_only=True)
    first, second = lookup.kernel(store, a), lookup.kernel(store, b)
    if first.id == second.id:
        console().print(f"{first.id} is the same kernel")
        return
    console().print(difference(first, second), soft_wrap=True)


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
    found = devices(store, name, device)
    if not found:
        lookup.absent(*_nothing(op, device, proposed=bool(store.count(Kernel, "op", name))))
    root = lookup.kernel(store, kernel) if kernel else None
    if root and root.op != name:
        raise UserError(f"{kernel} is a kernel of {root.op}, not of {name}", f"try `evolve tree {root.op} {kernel}`")
    for info in found:
        _print_tree(lineage(store, name, info), root.id if root else "", everything=everything)


def _print_tree(lines: Lineage, root: str, *, everything: bool) -> None:
    output = console()
    everything = everything or len(lines.parents) + len(lines.roots) <= MOST_SHOWN
    output.print(f"{lines.op} on {lines.device.name}", style="bold")
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
