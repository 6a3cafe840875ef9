"""Patterns: several calls of PyTorch that one op of the package computes, as models write them.

A pattern starts from the call whose result is used and walks back through the arguments. A lowering turns a match into
the op's call, or says why the op would compute something else.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from evolve.export.template.forms import FLOAT32, LOW, NOTHING, Call, Lowered, as_sizes, elementwise
from evolve.export.template.functions_images import causal_conv1d
from evolve.export.template.functions_matrix import rope, rotary_embedding
from evolve.export.template.functions_normalization import batch_norm_relu, group_norm_silu, rms_norm

OWN = "own"  # the dtype of the input itself
HALVES = (torch.float16, torch.bfloat16)
METHODS_OF_DTYPE = {"float": torch.float32, "half": torch.float16, "bfloat16": torch.bfloat16, "double": torch.float64}
ADD = (operator.add, torch.add, "add")
MULTIPLY = (operator.mul, torch.mul, torch.multiply, "mul", "multiply")
DIVIDE = (operator.truediv, torch.div, "div")
SQUARE, POWER = (torch.square, "square"), (operator.pow, torch.pow, "pow")
RECIPROCAL_ROOT, ROOT = (torch.rsqrt, "rsqrt"), (torch.sqrt, "sqrt")
MEAN = (torch.mean, "mean")
NEGATE = (operator.neg, torch.neg, "neg")
SPLIT = (torch.split, "split")
RELU = (functional.relu, torch.relu, torch.relu_, functional.relu_, "relu", "relu_")
# Names of the arguments after the first one, in order, for functions that models also call with names.
OF_NORM = ("input", "normalized_shape", "weight", "eps")
OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
OF_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps")
OF_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")


class Match(NamedTuple):
    """A match: the calls that one op computes, those whose results are used, and the replacement's arguments."""

    op: str
    inside: tuple[Node, ...]
    results: tuple[Node, ...]
    given: tuple[Any, ...]
    lower: Callable[..., Lowered]
    autocast: str = ""


Pattern = Callable[[Any], Match | None]


class Cast(NamedTuple):
    """A tensor whose dtype is changed: the dtypes, last one first, and the calls that change it."""

    of: Any
    dtypes: tuple[Any, ...]
    calls: tuple[Node, ...]


class Norm(NamedTuple):
    """A root mean square norm, written out: the nodes that it reads, and its calls."""

    x: Any
    weight: Any
    eps: float
    dtypes: tuple[tuple[Any, ...], ...]  # of the input, of the factor of the weight, of the result, and of the weight
    inside: tuple[Node, ...]


def calls(node: Any, targets: Sequence[Any]) -> bool:
    """Return whether a node calls one of these functions, or of these methods by name."""
    return isinstance(node, Node) and (
        (node.op == "call_function" and any(node.target is one for one in targets if callable(one)))
        or (node.op == "call_method" and node.target in [one for one in targets if isinstance(one, str)])
    )


def arguments(node: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a call's arguments by these names."""
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def pair(node: Any, targets: Sequence[Any]) -> tuple[Any, Any] | None:
    """Return the operands of a sum or product; None if the node is another operation."""
    found = calls(node, targets) and len(node.args) == 2 and not node.kwargs
    return (node.args[0], node.args[1]) if found else None


def either(operands: tuple[Any, Any] | None) -> Iterator[tuple[Any, Any]]:
    if operands:
        yield operands
        yield operands[::-1]


def uncast(node: Any) -> Cast:
    """Return a node before changes of its dtype."""
    dtypes: list[Any] = []
    found: list[Node] = []
    while (dtype := _dtype_of(node)) is not None:
        dtypes.append(dtype)
        found += [node, *[one for one in node.args[1:] if calls(one, (getattr,))]]
        node = node.args[0]
    return Cast(node, tuple(dtypes), tuple(found))


def _dtype_of(node: Any) -> Any:
    """Return the dtype to which a call changes a tensor, or the tensor that has this dtype; None for any other call."""
    if getattr(node, "op", "") != "call_method":
        return None
    if node.target in METHODS_OF_DTYPE and len(node.args) == 1 and not node.kwargs:
        return METHODS_OF_DTYPE[node.target]
    if node.target == "type_as" and len(node.args) == 2:
        return node.args[1]
    if node.target in {"to", "type"} and (given := (*node.args[1:], *node.kwargs.values())) and len(given) == 1:
        if isinstance(given[0], torch.dtype):
            return given[0]
        if calls(given[0], (getattr,)) and given[0].args[1] == "dtype":  # as fx traces `x.dtype`
            return given[0].args[0]
    return None


def norm(node: Any) -> Norm | None:
    """Return the root mean square norm that ends with this call: PyTorch's function or one that is written out."""
    if calls(node, (functional.rms_norm, torch.rms_norm)):
        given = arguments(node, OF_NORM)
        plain = isinstance(given.get("eps"), float) and given.get("weight") is not None
        if not plain or len(given["normalized_shape"]) != 1:
            return None
        return Norm(given["input"], given["weight"], given["eps"], ((), (), (), ()), (node,))
    outer = uncast(node)
    for scale, normed in either(pair(outer.of, MULTIPLY)):
        middle = uncast(normed)
        if found := _divided(middle.of):
            x, eps, inside = found
            inner, weight = uncast(x), uncast(scale)
            every = (*outer.calls, outer.of, *middle.calls, *inside, *inner.calls, *weight.calls)
            return Norm(inner.of, weight.of, eps, (inner.dtypes, middle.dtypes, outer.dtypes, weight.dtypes), every)
    return None


def _divided(node: Any) -> tuple[Any, float, tuple[Node, ...]] | None:
    """Return the tensor that a node divides by the root of its mean square, the eps, and the calls."""
    found = [*((x, by, RECIPROCAL_ROOT) for x, by in either(pair(node, MULTIPLY)))]
    if divided := pair(node, DIVIDE):
        found.append((*divided, ROOT))
    for x, by, root in found:
        if not calls(by, root) or len(by.args) != 1:
            continue
        for mean, eps in either(pair(by.args[0], ADD)):
            if not calls(mean, MEAN) or not isinstance(eps, float) or not _is_over_rows(mean):
                continue
            squared = _squared(mean.args[0])
            if squared is not None and uncast(squared)[:2] == uncast(x)[:2]:
                return x, eps, (node, by, by.args[0], mean, mean.args[0], *uncast(squared).calls)
    return None


def _is_over_rows(mean: Any) -> bool:
    given = arguments(mean, ("input", "dim", "keepdim"))
    dim = given.get("dim")
    return dim in (-1, [-1], (-1,)) and given.get("keepdim") is True and "dtype" not in given


def _squared(node: Any) -> Any:
    """Return the tensor that a node squares; None if it does not square one."""
    if calls(node, POWER):
        return node.args[0] if node.args[1:] == (2,) and not node.kwargs else None
    if calls(node, SQUARE):
        return node.args[0]
    factors = pair(node, MULTIPLY)
    return factors[0] if factors and factors[0] is factors[1] else None


def _resolved(dtypes: Sequence[Any], x: Any) -> tuple[Any, ...] | None:
    """Return dtypes, with OWN for the dtype of `x`; None if one of them is the dtype of another tensor."""
    found = [OWN if dtype is x else dtype for dtype in dtypes]
    return tuple(found) if all(dtype == OWN or isinstance(dtype, torch.dtype) for dtype in found) else None


def rms_norm_written_out(
    x: Tensor, weight: Tensor, *, eps: float, dtypes: Sequence[tuple[Any, ...]]
) -> Call | list[Call] | str:
    """A root mean square norm with changes of dtype between its steps."""
    if fault := _misfit_of_dtypes(x, weight, dtypes):
        return fault
    return rms_norm(x, weight.shape, weight, eps)


def _misfit_of_dtypes(x: Tensor, weight: Tensor, dtypes: Sequence[tuple[Any, ...]]) -> str:
    """Return why a norm that is written out gives other results than an op in the input's dtype."""
    inner, middle, outer, of_weight = ([x.dtype if one == OWN else one for one in reversed(some)] for some in dtypes)
    within = inner[-1] if inner else x.dtype
    exact = {x.dtype, torch.float32, torch.float64}
    if not exact >= {*inner, *middle, *of_weight} or (x.dtype not in HALVES and within != x.dtype):
        return "the norm is computed in a narrower dtype"
    if within is not torch.float32 and torch.is_autocast_enabled(x.device.type):
        return "autocast is on, and may choose another dtype within the norm"
    before = middle[-1] if middle else within
    result = outer[-1] if outer else torch.promote_types(before, of_weight[-1] if of_weight else weight.dtype)
    return "" if result == x.dtype else "the result has another dtype than the input"


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, dtypes: Any) -> Lowered:
    """A sum, and its root mean square norm."""
    if x.shape != residual.shape or weight.shape != x.shape[-1:]:
        return "the shapes differ"
    if x.dtype != residual.dtype:
        return "the dtypes differ"
    return _misfit_of_dtypes(x, weight, dtypes) or Call("add_rms_norm", (x, residual, weight), {"eps": eps}, tuple)


def swiglu(gate: Tensor, up: Tensor) -> Lowered:
    """silu of one tensor, times another one."""
    return elementwise("swiglu", gate, up)


def geglu(gate: Tensor, up: Tensor) -> Lowered:
    """gelu of one tensor, times another one."""
    return elementwise("geglu", gate, up)


def written_out_norm(node: Any) -> Match | None:
    """Return a root mean square norm in several calls."""
    found = norm(node)
    if not found or len(found.inside) == 1 or not (dtypes := _all_resolved(found)):
        return None
    lower = partial(rms_norm_written_out, eps=found.eps, dtypes=dtypes)
    return Match("rms_norm", found.inside, (node,), (found.x, found.weight), lower, NOTHING)


def _all_resolved(found: Norm) -> tuple[tuple[Any, ...], ...] | None:
    dtypes = [_resolved(some, found.x) for some in found.dtypes]
    return None if None in dtypes else tuple(some for some in dtypes if some is not None)


def _norm_of_sum(node: Any) -> Match | None:
    found = norm(node)
    terms = pair(found.x, ADD) if found else None
    if not found or not terms or not all(isinstance(one, Node) for one in terms):
        return None
    if (dtypes := _all_resolved(found)) is None:
        return None
    lower = partial(add_rms_norm, eps=found.eps, dtypes=dtypes)
    return Match("add_rms_norm", (found.x, *found.inside), (node, found.x), (*terms, found.weight), lower)


def _gated(node: Any) -> Match | None:
    for gate, up in either(pair(node, MULTIPLY)):
        for op, function, lower in (("swiglu", functional.silu, swiglu), ("geglu", functional.gelu, geglu)):
            if calls(gate, (function,)) and len(gate.args) == 1 and _is_plain(gate.kwargs) and isinstance(up, Node):
                return Match(op, (gate, node), (node,), (gate.args[0], up), lower, NOTHING)
    return None


def _is_plain(named: Mapping[str, Any]) -> bool:
    return all((name, value) in (("inplace", False), ("approximate", "none")) for name, value in named.items())


def _causal(node: Any) -> Match | None:
    """Return a convolution of each channel that is padded at both ends, of which the first positions are kept."""
    if not calls(node, (operator.getitem,)) or not calls(node.args[0], (functional.conv1d,)):
        return None
    *others, kept = node.args[1] if isinstance(node.args[1], tuple) else (None,)
    if others not in ([Ellipsis], [slice(None)] * 2) or not isinstance(kept, slice):
        return None
    if kept.start not in {None, 0} or kept.step not in {None, 1} or kept.stop is None:
        return None
    conv = node.args[0]
    given = arguments(conv, OF_CONV)
    steps = [given.get(name, default) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))]
    if any(isinstance(one, str) for one in steps):
        return None
    stride, padding, dilation = (as_sizes(one, 1)[0] for one in steps)
    lower = partial(causal_conv1d, stride=stride, padding=padding, dilation=dilation, groups=given.get("groups", 1))
    read = (given["input"], given["weight"], given.get("bias"), kept.stop)
    return Match("causal_conv1d", (conv, node), (node,), read, lower, LOW)


def _batch_norm_relu(node: Any) -> Match | None:
    if not calls(node, RELU) or not calls(node.args[0], (functional.batch_norm,)):
        return None
    given = arguments(node.args[0], OF_BATCH_NORM)
    tensors = [given.get(name) for name in OF_BATCH_NORM[:5]]
    if given.get("training") is not True or None in tensors or not isinstance(given.get("momentum", 0.1), float):
        return None
    lower = partial(batch_norm_relu, momentum=given.get("momentum", 0.1), eps=given.get("eps", 1e-5))
    return Match("batch_norm_relu", (node.args[0], node), (node,), tuple(tensors), lower, NOTHING)


def _group_norm_silu(node: Any) -> Match | None:
    if not calls(node, (functional.silu,)) or not calls(node.args[0], (functional.group_norm, torch.group_norm)):
        return None
    given = arguments(node.args[0], OF_GROUP_NORM)
    tensors = [given.get(name) for name in ("input", "weight", "bias")]
    if None in tensors:
        return None
    lower = partial(group_norm_silu, num_groups=given["num_groups"], eps=given.get("eps", 1e-5))
    return Match("group_norm_silu", (node.args[0], node), (node,), tuple(tensors), lower, FLOAT32)


def _rotated(node: Any) -> Match | None:
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


def _turned(node: Any) -> Match | None:
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
    """A tensor of which two nodes are the first and the second half, if the first has this size, and their calls."""

    of: Any
    size: int | None  # None where the halves have equal sizes of any value
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


# Patterns of more calls come first, because the alternative of a match may match a later pattern.
PATTERNS: tuple[Pattern, ...] = (
    _norm_of_sum, written_out_norm, _gated, _causal, _batch_norm_relu, _group_norm_silu, _rotated, _turned,
)  # fmt: skip
