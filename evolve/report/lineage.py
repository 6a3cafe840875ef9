"""Lineage of an op's kernels: their ancestors and descendants, and the tree that shows them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rich.text import Text
from rich.tree import Tree

from archive.kernel import Kernel
from archive.records import DeviceInfo, kind_in
from archive.store import Store, unasked, uncollected
from archive.summaries import EvaluationSummary, KernelId, Origin, ProposalSummary, RankedTimes
from evolve.devices.choose import policy_of
from evolve.report.basis import PYTORCH, Basis
from evolve.report.standing import basis_of, first_proposals
from evolve.report.words import (
    change,
    counted,
    idea,
    one_line,
    short,
    times,
)
from evolve.selection.population import fittest

MOST_SHOWN = 60  # number of kernels above which a tree shows only the ancestors of the population
COLUMNS_PER_LEVEL, COLUMNS_FOR_TEXT = 4, 44


@dataclass(frozen=True)
class Lineage:
    """The kernels of one op on one device as trees; a kernel is a child of its first parent."""

    store: Store
    op: str
    device: DeviceInfo | None  # None if no device has evaluated any of them
    parents: Mapping[str, str]  # the first parent of each kernel; empty for roots
    children: Mapping[str, Sequence[str]]
    roots: Sequence[str]
    alive: Sequence[str]
    failures: Mapping[str, Sequence[ProposalSummary]]  # replies without a kernel; key: parent
    basis: Basis
    unasked: frozenset[str] = frozenset()  # shipped kernels that need no verdict


def lineages(store: Store, op: str, found: Sequence[DeviceInfo | None]) -> list[Lineage]:
    """Arrange the kernels of an op by their first parents, and read for each device which of them are alive."""
    with uncollected():
        parents = _first_parents(store, op)
    children: dict[str, list[str]] = defaultdict(list)
    for kernel_id, parent in parents.items():
        if parent:
            children[parent].append(kernel_id)
    failures: dict[str, list[ProposalSummary]] = defaultdict(list)
    for proposal in store.find(ProposalSummary, op, kernels=[""]):
        failures[proposal.parents[0] if proposal.parents else ""].append(proposal)
    roots = [kernel_id for kernel_id, parent in parents.items() if not parent]
    whole = Lineage(store, op, None, parents, children, roots, [], failures, PYTORCH, frozenset(parents))
    with uncollected():
        return [_on_device(whole, device) if device else whole for device in found]


def _first_parents(store: Store, op: str) -> dict[str, str]:
    """Return the first parent of each kernel, or an empty string, in the order in which kernels were added."""
    places = {kernel_id: place for place, (kernel_id,) in enumerate(store.find(KernelId, op))}
    above: dict[str, str] = {}
    for origin in store.find(Origin, op):
        if origin.kernel_id in places and origin.kernel_id not in above:
            above[origin.kernel_id] = next((parent for parent in origin.parents if parent in places), "")
    found = dict.fromkeys(places, "")
    for kernel_id, parent in above.items():
        # Merged archives may contain cycles, and every cycle has a parent that is younger than its child.
        if parent and not (places[parent] >= places[kernel_id] and _descends(parent, kernel_id, above)):
            found[kernel_id] = parent
    return found


def _on_device(whole: Lineage, device: DeviceInfo) -> Lineage:
    ranked = whole.store.find(RankedTimes, whole.op, device=device.key)
    _, alive = fittest(ranked)
    return replace(
        whole,
        device=device,
        alive=[one.kernel_id for one in alive],
        basis=basis_of(whole.store, whole.op, device, ranked),
        unasked=unasked(whole.store, whole.op, device),
    )


def roots_shown(lines: Lineage, *, everything: bool) -> list[str]:
    """Return the roots of all trees, or only those of the trees with a kernel of the population."""
    visible = None if everything else _ancestors_of_population(lines)
    return [root for root in lines.roots if visible is None or root in visible]


def left_out_words(lines: Lineage, root: str = "") -> str:
    """Return a line on the kernels that a tree of the population's ancestors leaves out, and how to show them."""
    others = 0 if root else len(lines.roots) - len(roots_shown(lines, everything=False))
    whole = f"{counted(others, 'whole tree')} and " if others else ""
    return f"left out: {whole}branches without kernels that are alive; --all shows every kernel"


def lineage_tree(lines: Lineage, root: str, width: int, *, everything: bool) -> Tree:
    """Return the tree below `root`, or only the population's ancestors in it, as deep as the width allows."""
    visible = None if everything else _ancestors_of_population(lines)
    top = Tree(_label(lines, root), guide_style="dim")
    waiting = [(root, top, 1)]
    while waiting:
        kernel_id, branch, depth = waiting.pop()
        children = lines.children.get(kernel_id, ())
        kept = [child for child in children if visible is None or child in visible]
        if kept and depth * COLUMNS_PER_LEVEL + COLUMNS_FOR_TEXT > width:
            below = f"… {len(kept)} below: evolve tree {lines.op} {short(kernel_id)}"
            branch.add(Text(below, "dim", no_wrap=True))
            continue
        waiting += [(child, branch.add(_label(lines, child)), depth + 1) for child in kept]
        _add_rest(lines, kernel_id, branch, left_out=len(children) - len(kept), everything=everything)
    return top


def _add_rest(lines: Lineage, kernel_id: str, branch: Tree, *, left_out: int, everything: bool) -> None:
    failed = lines.failures.get(kernel_id, ())
    if everything:
        for proposal in failed:
            what = f"no kernel: {one_line(proposal.failure)}" if proposal.failure else "a reply in words"
            failure = f"{short(proposal.id)} {proposal.operator}: {what}"
            branch.add(Text(failure, "dim", no_wrap=True, overflow="ellipsis"))
        return
    if left_out:
        branch.add(
            Text(f"… {left_out} more without descendants in the population", "dim", no_wrap=True, overflow="ellipsis")
        )


def _ancestors_of_population(lines: Lineage) -> set[str]:
    """Return the ids of the population's kernels and of their ancestors through first parents."""
    kept: set[str] = set()
    for one in lines.alive:
        kernel_id = one
        while kernel_id and kernel_id not in kept:
            kept.add(kernel_id)
            kernel_id = lines.parents.get(kernel_id, "")
    return kept


def _label(lines: Lineage, kernel_id: str) -> Text:
    proposal = first_proposals(lines.store, [kernel_id]).get(kernel_id)
    key = lines.device.key if lines.device else ""
    of_kernel = lines.store.find(EvaluationSummary, kernels=[kernel_id], in_force=True)
    verdict = next((one for one in of_kernel if one.device == key), None)
    # On a device without GPU times, kernels that a GPU has judged need no verdict.
    known = not _is_gpu(key) and any(_is_gpu(one.device) for one in of_kernel)
    first_parent = proposal.parents[0] if proposal and proposal.parents else ""
    kernels = {kernel.id: kernel for kernel in lines.store.find(Kernel, ids=[kernel_id, first_parent])}
    kernel, parent = kernels[kernel_id], kernels.get(first_parent)
    alive = kernel_id in lines.alive
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(short(kernel_id), "bold" if alive else "")
    text.append("  ").append_text(
        Text("not evaluated", "dim")
        if kernel_id in lines.unasked or (known and not verdict)
        else _verdict(verdict, lines.basis)
    )
    text.append(f"  {proposal.operator if proposal else 'kernel'}")
    if proposal and len(proposal.parents) > 1:
        text.append(f" with {', '.join(map(short, proposal.parents[1:]))}")
    text.append(f": {change(kernel, parent) if parent else idea(kernel)}", "" if parent else "italic")
    if verdict and not verdict.passed:
        text.stylize("dim")
    return text


def _is_gpu(key: str) -> bool:
    return bool(key) and policy_of(kind_in(key)).times_are_gpu_times


def _verdict(verdict: EvaluationSummary | None, basis: Basis) -> Text:
    if verdict is None:
        return Text("pending", "cyan")
    if not verdict.passed:
        return Text(str(verdict.outcome), "red")
    return Text(times(basis.best(verdict)), "green")


def _descends(kernel_id: str, ancestor: str, parents: Mapping[str, str]) -> bool:
    """Return whether a kernel descends from `ancestor` through first parents."""
    seen: set[str] = set()
    while kernel_id and kernel_id not in seen:
        if kernel_id == ancestor:
            return True
        seen.add(kernel_id)
        kernel_id = parents.get(kernel_id, "")
    return False
