"""Patterns of attention: the softmax of masked scores, and rotary embeddings of queries and keys."""

import operator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.nn import functional

from evolve.export.template.forms import FLOAT32, NOTHING
from evolve.export.template.functions_matrix import rope, rotary_embedding
from evolve.export.template.functions_rows import masked_softmax
from evolve.export.template.matching import ADD, DIVIDE, MULTIPLY, Match, arguments, calls, either, pair, uncast

HIDE = (torch.masked_fill, "masked_fill")
SOFTMAX = (functional.softmax, torch.softmax, "softmax")
NUMBERS = (int, float)
NEGATE = (operator.neg, torch.neg, "neg")
SPLIT = (torch.split, "split")


def _hiding(node: Any) -> tuple[Any, Any, Any, bool] | None:
    """Return scores, a mask, the number that replaces hidden scores, and whether the mask marks the visible ones."""
    if calls(node, (*HIDE, "masked_fill_")):
        given = arguments(node, ("input", "mask", "value"))
        return given["input"], given["mask"], given["value"], False
    if calls(node, (torch.where,)) and len(node.args) == 3:
        mask, one, other = node.args
        return (one, mask, other, True) if isinstance(one, Node) else (other, mask, one, False)
    return None


def masked_scores(node: Any) -> Match | None:
    """Return the softmax of masked scores, which may be scaled."""
    outer = uncast(node)
    given = arguments(outer.of, ("input", "dim")) if calls(outer.of, SOFTMAX) and len(outer.of.args) < 3 else {}
    inner = uncast(given.get("input"))
    hidden = _hiding(inner.of)
    dtypes = (*inner.dtypes, *(one for one in (given.get("dtype"),) if one))
    if not hidden or "dim" not in given or not {*dtypes} <= {torch.float32} or len(outer.dtypes) > 1:
        return None
    scores, mask, value, stays = hidden
    x, scale = _scaled(scores)
    in_place = calls(inner.of, ("masked_fill_",))
    if type(value) not in NUMBERS or (in_place and x is scores) or not isinstance(x, Node):
        return None
    to = outer.dtypes[0] if outer.dtypes else None
    inside = [*outer.calls, outer.of, *inner.calls, inner.of, *([] if x is scores else [scores])]
    lower = partial(
        masked_softmax,
        dim=given["dim"],
        scale=scale,
        value=value,
        stays=stays,
        within=torch.float32 if dtypes else None,
        to=to if isinstance(to, torch.dtype) else None,
    )
    read = (x, mask, to) if isinstance(to, Node) else (x, mask)
    return Match("masked_softmax", tuple(inside), (node,), read, lower, "" if outer.dtypes else FLOAT32)


def _scaled(scores: Any) -> tuple[Any, float]:
    """Return scores without a factor, and the factor."""
    for x, factor in either(pair(scores, MULTIPLY)):
        if type(factor) in NUMBERS and isinstance(x, Node):
            return x, float(factor)
    divided = pair(scores, DIVIDE)
    if divided and isinstance(divided[0], Node) and type(divided[1]) in NUMBERS and divided[1]:
        return divided[0], 1 / divided[1]
    return scores, 1.0


def rotated(node: Any) -> Match | None:
    """Return a rotation of the halves of a tensor, as in rotary embeddings."""
    ends = _joined(node)
    if not ends or not (minus := pair(ends[0], (operator.sub, torch.sub))):
        return None
    plus = pair(ends[1], ADD)
    for one, cos in either(pair(minus[0], MULTIPLY)):
        for two, sin in either(pair(minus[1], MULTIPLY)):
            halves = _halved(one, two)
            if halves is None or not plus or not _are_products(plus, ((two, cos), (one, sin))):
                continue
            inside = (*halves.calls, *minus, *plus, *ends, node)
            lower = partial(rope, half=halves.size)
            return Match("rope", tuple(dict.fromkeys(inside)), (node,), (cos, sin, halves.of), lower, NOTHING)
    return None


def turned(node: Any) -> Match | None:
    """Return `x * cos + rotate_half(x) * sin`."""
    for straight, turned in either(pair(node, ADD)):
        for joined, sin in either(pair(turned, MULTIPLY)):
            ends = _joined(joined)
            if not ends or not calls(ends[0], NEGATE) or not (halves := _halved(ends[1], ends[0].args[0])):
                continue
            for x, cos in either(pair(straight, MULTIPLY)):
                if x is halves.of:
                    inside = (*halves.calls, ends[0], joined, straight, turned, node)
                    lower = partial(rotary_embedding, half=halves.size)
                    return Match("rotary_embedding", inside, (node,), (cos, sin, x), lower, NOTHING)
    return None


def _joined(node: Any) -> tuple[Any, Any] | None:
    """Return the two nodes that one call joins along the last dim."""
    given = arguments(node, ("tensors", "dim")) if calls(node, (torch.cat,)) else {}
    tensors = given.get("tensors", ())
    return (tensors[0], tensors[1]) if given.get("dim") == -1 and len(tensors) == 2 else None


class Halves(NamedTuple):
    """The tensor that two nodes split into halves, the size that the first must have, and the calls."""

    of: Any
    size: int | None  # None if the halves have equal sizes of any value
    calls: tuple[Node, ...]


def _halved(one: Any, other: Any) -> Halves | None:
    if not (calls(one, (operator.getitem,)) and calls(other, (operator.getitem,))):
        return None
    whole, at = one.args[0], (one.args[1], other.args[1])
    if other.args[0] is not whole:
        return None
    if at == (0, 1):
        given = arguments(whole, ("input", "size", "dim")) if calls(whole, (torch.chunk, "chunk", *SPLIT)) else {}
        is_half = given.get("size") == 2 if calls(whole, (torch.chunk, "chunk")) else isinstance(given.get("size"), int)
        size = given["size"] if calls(whole, SPLIT) else None
        return Halves(given["input"], size, (one, other, whole)) if is_half and given.get("dim") == -1 else None
    cuts = [cut[1] for cut in at if isinstance(cut, tuple) and len(cut) == 2 and cut[0] is Ellipsis]
    low, high = cuts if len(cuts) == 2 else (None, None)
    if not isinstance(low, slice) or not isinstance(high, slice) or not isinstance(low.stop, int):
        return None
    is_cut = (low.start in {None, 0}, low.step, high.start, high.stop, high.step) == (True, None, low.stop, None, None)
    return Halves(whole, low.stop, (one, other)) if is_cut else None


def _are_products(terms: tuple[Any, Any], factors: tuple[tuple[Any, Any], ...]) -> bool:
    """Return whether two terms are the products of these pairs, in any order."""
    found = [{*(pair(term, MULTIPLY) or ())} for term in terms]
    wanted = [{*one} for one in factors]
    return found in (wanted, wanted[::-1])
