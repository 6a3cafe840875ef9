"""The lineage of an op's population: its kernels and their ancestors as trees, with the change of each."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from archive.kernel import Kernel
from archive.store import Store
from archive.summaries import EvaluationSummary, KernelSummary, ProposalSummary
from evolve.pages import addresses
from evolve.report.standing import Standing, first_proposals
from evolve.report.words import change

MOST = 300  # number of kernels; of a larger family, those nearest to the population are read


@dataclass(frozen=True)
class Node:
    """One kernel of a tree."""

    kernel_id: str
    operator: str
    proposer: str
    change: str  # the change from its first parent, or the kernel's idea
    outcome: str  # empty while it is pending
    ratio: float | None  # best ratio to the basis, if it passed
    alive: bool
    others: tuple[str, ...]  # its parents other than the first
    depth: int = 0  # generations below the root


@dataclass(frozen=True)
class Family:
    """The trees that hold the population and its ancestors through first parents."""

    nodes: tuple[Node, ...]  # each kernel is followed by its descendants
    cut: bool = False  # whether earlier ancestors are left out

    @property
    def ids(self) -> list[str]:
        return [node.kernel_id for node in self.nodes]

    def above(self, kernels: Collection[str]) -> list[str]:
        """Return the ancestors of these kernels in the trees."""
        path: list[str] = []
        found: dict[str, None] = {}
        for node in self.nodes:
            del path[node.depth :]
            if node.kernel_id in kernels:
                found |= dict.fromkeys(path)
            path.append(node.kernel_id)
        return list(found)


def family_of(store: Store, now: Standing) -> Family:
    """Read the trees of a standing's population and champions."""
    ids = [one.kernel_id for one in now.population] + [one.kernel_id for one in now.champions]
    proposals, cut = _with_ancestors(store, dict.fromkeys(ids), MOST)
    return replace(_family(store, now, proposals), cut=cut)


def ancestry(store: Store, kernel_id: str, most: int) -> tuple[list[str], bool]:
    """Return the chain of a kernel's first parents, and whether it was cut off."""
    found, cut = _with_ancestors(store, [kernel_id], most + 1)
    return [one for one in found if one != kernel_id], cut


def absent(store: Store, kernels: Iterable[str]) -> frozenset[str]:
    """Return the addresses of kernels that the archive lacks, such as parents of merged kernels."""
    named = set(kernels)
    held = {one.id for one in store.find(KernelSummary, ids=list(named))} if named else set()
    return frozenset(map(addresses.kernel_page, named - held))


def _with_ancestors(store: Store, ids: Iterable[str], most: int) -> tuple[dict[str, ProposalSummary | None], bool]:
    """Return the first proposal of each kernel and of its ancestors through first parents, nearest first.

    At most about `most` are returned. Also return whether there are more.
    """
    found: dict[str, ProposalSummary | None] = {}
    waiting = list(ids)
    while waiting and len(found) < most:
        proposals = first_proposals(store, waiting)
        found |= {kernel_id: proposals.get(kernel_id) for kernel_id in waiting}
        parents = (one.parents[0] for one in proposals.values() if one.parents)
        waiting = [parent for parent in dict.fromkeys(parents) if parent not in found]
    return found, bool(waiting)


def _family(store: Store, now: Standing, proposals: Mapping[str, ProposalSummary | None]) -> Family:
    kernels = {kernel.id: kernel for kernel in store.find(Kernel, ids=list(proposals))}
    verdicts = {
        one.kernel_id: one
        for one in store.find(EvaluationSummary, kernels=list(kernels), device=now.device.key, in_force=True)
    }
    alive = {one.kernel_id for one in now.population}
    children, roots = _arranged({one: proposals[one] for one in proposals if one in kernels})

    def node(kernel_id: str, parent: str, depth: int) -> Node:
        proposal, verdict = proposals[kernel_id], verdicts.get(kernel_id)
        return Node(
            kernel_id=kernel_id,
            operator=proposal.operator if proposal else "",
            proposer=proposal.proposer if proposal else "",
            change=change(kernels[kernel_id], kernels.get(parent)),
            outcome=str(verdict.outcome) if verdict else "",
            ratio=now.basis.best(verdict) if verdict and verdict.passed else None,
            alive=kernel_id in alive,
            others=proposal.parents[1:] if proposal else (),
            depth=depth,
        )

    nodes, waiting = [], [(root, "", 0) for root in reversed(roots)]
    while waiting:
        kernel_id, parent, depth = waiting.pop()
        nodes.append(node(kernel_id, parent, depth))
        waiting += [(child, kernel_id, depth + 1) for child in reversed(children.get(kernel_id, ()))]
    return Family(tuple(nodes))


def _arranged(
    proposals: Mapping[str, ProposalSummary | None],
) -> tuple[Mapping[str, Sequence[str]], Sequence[str]]:
    """Return the children of each kernel and the kernels without a parent, oldest first. Merged cycles are cut."""
    above: dict[str, str] = {}
    for kernel_id, proposal in proposals.items():
        parent = proposal.parents[0] if proposal and proposal.parents else ""
        seen, at = {kernel_id}, parent
        while at in above and at not in seen:
            seen.add(at)
            at = above[at]
        if parent in proposals and at not in seen:
            above[kernel_id] = parent
    children = defaultdict[str, list[str]](list)
    by_age = sorted(proposals, key=lambda one: found.created if (found := proposals[one]) else 0.0)
    for kernel_id in by_age:
        if kernel_id in above:
            children[above[kernel_id]].append(kernel_id)
    return children, [one for one in by_age if one not in above]
