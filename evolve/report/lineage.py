"""Who descends from whom, as a tree."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from rich.text import Text
from rich.tree import Tree

from archive.proposals import Proposal
from archive.records import Evaluation
from evolve.report.standing import Standing
from evolve.report.words import best_speedup, change, idea, one_line, short, times

MOST_SHOWN = 60  # kernels; of more than that only the lines of the living are drawn
COLUMNS_PER_LEVEL, COLUMNS_FOR_TEXT = 4, 44


@dataclass(frozen=True)
class Lineage:
    """The families of one op on one device. A kernel stands under its first parent."""

    standing: Standing
    children: Mapping[str, tuple[str, ...]]
    roots: tuple[str, ...]
    failures: Mapping[str, tuple[Proposal, ...]]  # by parent; replies without a kernel


def lineage(standing: Standing, failed: tuple[Proposal, ...] = ()) -> Lineage:
    children: dict[str, list[str]] = defaultdict(list)
    roots, seen = [], set[str]()
    for kernel_id in standing.kernels:
        proposal = standing.proposals.get(kernel_id)
        parent = next((p for p in proposal.parents if p in standing.kernels), "") if proposal else ""
        if parent and not _descends(parent, kernel_id, standing):
            children[parent].append(kernel_id)
        elif kernel_id not in seen:
            roots.append(kernel_id)
        seen.add(kernel_id)
    lost: dict[str, list[Proposal]] = defaultdict(list)
    for proposal in failed:
        lost[proposal.parents[0] if proposal.parents else ""].append(proposal)
    return Lineage(
        standing,
        {parent: tuple(ids) for parent, ids in children.items()},
        tuple(roots),
        {parent: tuple(proposals) for parent, proposals in lost.items()},
    )


def lineage_tree(lines: Lineage, root: str, width: int, *, everything: bool) -> Tree:
    """All of a family, or the lines of its living members. Cut off below the depth that fits the width."""
    shown = None if everything else _lines_of_the_living(lines)
    top = Tree(_label(lines.standing, root), guide_style="dim")
    waiting = [(root, top, 1)]
    while waiting:
        kernel_id, branch, depth = waiting.pop()
        born = lines.children.get(kernel_id, ())
        kept = [child for child in born if shown is None or child in shown]
        if kept and depth * COLUMNS_PER_LEVEL + COLUMNS_FOR_TEXT > width:
            below = f"… {len(kept)} below: evolve tree {lines.standing.op} {short(kernel_id)}"
            branch.add(Text(below, "dim", no_wrap=True))
            continue
        waiting += [(child, branch.add(_label(lines.standing, child)), depth + 1) for child in kept]
        _add_rest(lines, kernel_id, branch, left_out=len(born) - len(kept), everything=everything)
    return top


def _add_rest(lines: Lineage, kernel_id: str, branch: Tree, *, left_out: int, everything: bool) -> None:
    failed = lines.failures.get(kernel_id, ())
    if everything:
        for proposal in failed:
            said = f"{short(proposal.id)} {proposal.operator}: no kernel: {one_line(proposal.failure)}"
            branch.add(Text(said, "dim", no_wrap=True, overflow="ellipsis"))
        return
    if left_out:
        branch.add(Text(f"… {left_out} more without survivors", "dim", no_wrap=True, overflow="ellipsis"))


def _lines_of_the_living(lines: Lineage) -> set[str]:
    kept: set[str] = set()
    for evaluation in lines.standing.population:
        kernel_id = evaluation.kernel_id
        while kernel_id and kernel_id not in kept:
            kept.add(kernel_id)
            proposal = lines.standing.proposals.get(kernel_id)
            kernel_id = next((p for p in proposal.parents if p in lines.standing.kernels), "") if proposal else ""
    return kept


def _label(standing: Standing, kernel_id: str) -> Text:
    kernel, proposal = standing.kernels[kernel_id], standing.proposals.get(kernel_id)
    parent = standing.kernels.get(proposal.parents[0]) if proposal and proposal.parents else None
    verdict = standing.verdicts.get(kernel_id)
    alive = any(evaluation.kernel_id == kernel_id for evaluation in standing.population)
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(short(kernel_id), "bold" if alive else "")
    text.append("  ").append_text(_verdict(verdict))
    text.append(f"  {proposal.operator if proposal else 'kernel'}")
    if proposal and len(proposal.parents) > 1:
        text.append(f" with {', '.join(map(short, proposal.parents[1:]))}")
    text.append(f": {change(kernel, parent) if parent else idea(kernel)}", "" if parent else "italic")
    if verdict and not verdict.passed:
        text.stylize("dim")
    return text


def _verdict(verdict: Evaluation | None) -> Text:
    if verdict is None:
        return Text("pending", "cyan")
    if not verdict.passed:
        return Text(str(verdict.outcome), "red")
    return Text(times(best_speedup(verdict)), "green")


def _descends(kernel_id: str, ancestor: str, standing: Standing) -> bool:
    """Whether following first parents leads there: merged archives may hold circles."""
    seen: set[str] = set()
    while kernel_id and kernel_id not in seen:
        if kernel_id == ancestor:
            return True
        seen.add(kernel_id)
        proposal = standing.proposals.get(kernel_id)
        kernel_id = next((p for p in proposal.parents if p in standing.kernels), "") if proposal else ""
    return False
