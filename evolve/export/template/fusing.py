"""Fusion: replaces calls in a graph that match the pattern of one op, if no other node needs their results."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from torch import fx
from torch.fx import Node

from evolve.export.template.forms import Form
from evolve.export.template.matching import Match, Pattern

CHANGING = (operator.setitem, operator.iadd, operator.imul, operator.isub, operator.itruediv, operator.ipow)


class Found(NamedTuple):
    """A match of a pattern in a graph, with the matched calls as a separate graph."""

    match: Match
    written: fx.Graph
    place: int


def found_in(graph: fx.Graph, ops: Collection[str], patterns: Sequence[Pattern]) -> list[Found]:
    """Return the matches of these ops' patterns, from the end of the graph on."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    taken: set[Node] = set()
    found = []
    for node in reversed(order):
        for place, pattern in enumerate(patterns):
            match = pattern(node)
            if match and match.op in ops and taken.isdisjoint(match.inside) and _can_be_one(match, order):
                inside = tuple(sorted({*match.inside}, key=order.__getitem__))
                match = match._replace(inside=inside)
                taken.update(inside)
                found.append(Found(match, _written(match), place))
                break
    return found


def _written(match: Match) -> fx.Graph:
    graph = fx.Graph()
    places: dict[Node, Node] = {}
    for at, one in enumerate(match.given):
        place = graph.placeholder(f"given{at}")
        if isinstance(one, Node):
            places[one] = place
    for node in match.inside:
        places[node] = graph.node_copy(node, places.__getitem__)
    results = tuple(places[node] for node in match.results)
    graph.output(results if len(results) > 1 else results[0])
    return graph


def replace(graph: fx.Graph, match: Match, target: Callable[..., Any], replaced: dict[Node, Node]) -> Node:
    """Replace the matching calls by one, which is returned, and record which nodes have its results."""
    several = len(match.results) > 1
    with graph.inserting_before(next(node for node in match.inside if node in match.results)):
        made = graph.call_function(target, tuple(replaced.get(one, one) for one in match.given))
        places = range(len(match.results))
        outs = [graph.call_function(operator.getitem, (made, at)) for at in places] if several else [made]
    for node, out in zip(match.results, outs, strict=True):
        out.meta = dict(node.meta)
        node.replace_all_uses_with(out)
        replaced[node] = out
    for node in reversed(match.inside):
        graph.erase_node(node)
    return made


def form_of(match: Match, written: fx.Graph) -> Form:
    """Return the form of a match; where no kernel wins, the calls run as they were written."""
    return Form(match.op, (match.op,), match.lower, fx.GraphModule({}, written), match.autocast)


def _can_be_one(match: Match, order: Mapping[Node, int]) -> bool:
    """Return whether one call may replace these: no other node uses or changes their intermediate results."""
    inside, results = {*match.inside}, {*match.results}
    given = {one for one in match.given if isinstance(one, Node)}
    if not given.isdisjoint(inside) or any(order[one] > min(order[out] for out in results) for one in given):
        return False
    if any(not {*node.users} <= inside for node in inside - results):
        return False
    if any(not {*node.all_input_nodes} <= inside | given for node in inside):
        return False
    places = [order[node] for node in inside]
    between = [node for node, at in order.items() if min(places) <= at <= max(places) and node not in inside]
    return not any(map(_changes, between))


def _changes(node: Node) -> bool:
    """Return whether a node may change tensors in place, or change a mode of PyTorch."""
    if node.op in {"placeholder", "get_attr", "output"}:
        return False
    if node.op == "call_method":
        return str(node.target).endswith("_") and not str(node.target).endswith("__")
    name = getattr(node.target, "__name__", "")
    in_place = node.kwargs.get("inplace") or "out" in node.kwargs or any(one is True for one in node.args[1:])
    return (
        node.op != "call_function" or node.target in CHANGING or name[:1] == "_" or name[-1:] == "_" or bool(in_place)
    )
