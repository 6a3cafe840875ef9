"""Commands that look something up in the archive. None of them needs torch."""

from typing import Annotated

import typer

from archive.kernel import Kernel
from archive.proposals import Proposal
from archive.records import Evaluation
from evolve import wiring
from evolve.cli import lookup
from evolve.cli.options import ArchiveOption, DevicePart, JsonOption, KernelArgument, OpFilter, op_names
from evolve.errors import UserError
from evolve.report import facts
from evolve.report.kernel import MOST_SHOWN, difference, kernel_details, lineage, lineage_tree, reply_details
from evolve.report.standing import Standing, standings
from evolve.report.tables import WON_MEANS, print_standing, standings_table
from evolve.report.words import console, print_json
from reference_ops.catalog import is_path


def top(op: OpFilter = "", device: DevicePart = "", archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """Show the champions and the population of each op on each device."""
    store = wiring.archive(archive, read_only=True)
    found = standings(store, lookup.op_name(op), device)
    if as_json:
        print_json([facts.of_standing(standing) for standing in found])
    if not found:
        lookup.absent(*_nothing(op, device, bool(store.find(Kernel, op))))
    if as_json:
        return
    shown = console()
    if op or len(found) == 1:
        for standing in found:
            print_standing(shown, standing)
            shown.print()
    else:
        shown.print(standings_table(found))
        shown.print(f"\n{WON_MEANS}\nevolve top OP shows the champions and the population of an op", style="dim")


def show(kernel: KernelArgument, archive: ArchiveOption = None, as_json: JsonOption = False) -> None:
    """Show everything about a kernel, or about a reply that held none."""
    store = wiring.archive(archive, read_only=True)
    found = lookup.kernel_or_reply(store, kernel)
    shown = console()
    if isinstance(found, Proposal):
        if as_json:
            print_json({**facts.of_proposal(found), "reply": found.reply})
        else:
            shown.print(*reply_details(found), sep="\n", soft_wrap=True)
        return
    every = store.find(Proposal, found.op)
    proposals = [proposal for proposal in every if proposal.kernel_id == found.id]
    children = [proposal for proposal in every if found.id in proposal.parents]
    evaluations = [e for e in store.find(Evaluation, found.op) if e.kernel_id == found.id]
    if as_json:
        print_json({
            **facts.of_kernel(found),
            "text": found.text,
            "proposals": [facts.of_proposal(proposal) for proposal in proposals],
            "children": list(dict.fromkeys(child.kernel_id for child in children if child.kernel)),
            "evaluations": [facts.of_evaluation(evaluation) for evaluation in evaluations],
        })  # fmt: skip
        return
    for part in kernel_details(found, proposals, evaluations, children, shown.width):
        shown.print(part, soft_wrap=not hasattr(part, "columns"))


def diff(a: KernelArgument, b: KernelArgument, archive: ArchiveOption = None) -> None:
    """Compare the texts of two kernels."""
    store = wiring.archive(archive, read_only=True)
    first, second = lookup.kernel(store, a), lookup.kernel(store, b)
    if first.id == second.id:
        console().print(f"{first.id} is the same kernel")
        return
    console().print(difference(first, second), soft_wrap=True)


def tree(
    op: Annotated[str, typer.Argument(metavar="OP", help="An op's name.", autocompletion=op_names)],
    kernel: Annotated[str, typer.Argument(metavar="[ID]", help="Only what descends from it.")] = "",
    device: DevicePart = "",
    everything: Annotated[bool, typer.Option("--all", help="Also those that left no survivors.")] = False,
    archive: ArchiveOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which kernel descends from which."""
    store = wiring.archive(archive, read_only=True)
    name = lookup.op_name(op)
    if as_json:
        print_json([facts.of_proposal(proposal) for proposal in store.find(Proposal, name)])
        return
    found = standings(store, name, device)
    if not found:
        lookup.absent(*_nothing(op, device, bool(store.find(Kernel, name))))
    root = lookup.kernel(store, kernel).id if kernel else ""
    if root and root not in found[0].kernels:
        raise UserError(f"{kernel} is no kernel of {name}", f"`evolve show {kernel}` says what it is")
    failed = tuple(proposal for proposal in store.find(Proposal, name) if proposal.kernel is None)
    for standing in found:
        _print_tree(standing, failed, root, everything=everything)


def _print_tree(standing: Standing, failed: tuple[Proposal, ...], root: str, *, everything: bool) -> None:
    shown, lines = console(), lineage(standing, failed)
    everything = everything or len(standing.kernels) <= MOST_SHOWN
    shown.print(f"{standing.op} on {standing.device.name}", style="bold")
    for kernel_id in [root] if root else lines.roots:
        shown.print(lineage_tree(lines, kernel_id, shown.width, everything=everything))
    if not everything:
        shown.print("only the lines of kernels that are alive; --all shows every one", style="dim")
    shown.print()


def _nothing(op: str, device: str, proposed: bool) -> tuple[str, str]:
    where = f" on a device named like `{device}`" if device else ""
    if op and proposed:
        return f"no kernel of {op} was evaluated{where} yet", f"`evolve evaluate {op}` evaluates what is pending"
    if op and op not in op_names() and not is_path(op):
        return f"neither the archive nor the catalog knows an op `{op}`", "`evolve ops` lists the catalog"
    what = f"of {op} " if op else ""
    return f"the archive holds no evaluations {what}yet{where}", f"`evolve run {op or 'softmax'}` makes some"
