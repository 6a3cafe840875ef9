"""Patterns: sequences of PyTorch calls in models that one op of the package computes.

A pattern starts from the call whose result is used and follows the arguments backwards. A lowering turns a match into
the op's call, or gives the reason why the op would compute something else.
"""

import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

from evolve.export.template.attention_patterns import masked_scores, rotated, turned
from evolve.export.template.epilogues import (
    activated_convolution,
    activated_linear,
    batch_norm_and_relu,
    group_norm_and_silu,
)
from evolve.export.template.forms import (
    LOW,
    NOTHING,
    Call,
    Lowered,
    as_input,
    as_sizes,
    copied_bytes,
    elementwise,
    first,
)
from evolve.export.template.functions_images import causal_conv1d
from evolve.export.template.functions_normalization import rms_norm
from evolve.export.template.matching import (
    ADD,
    DIVIDE,
    MULTIPLY,
    OF_CONV,
    Match,
    Pattern,
    arguments,
    calls,
    either,
    is_plain,
    pair,
    uncast,
)

OWN = "own"  # the dtype of the input itself
HALVES = (torch.float16, torch.bfloat16)
SQUARE, POWER = (torch.square, "square"), (operator.pow, torch.pow, "pow")
RECIPROCAL_ROOT, ROOT = (torch.rsqrt, "rsqrt"), (torch.sqrt, "sqrt")
MEAN = (torch.mean, "mean")
SIGMOID = (torch.sigmoid, functional.sigmoid, "sigmoid")
TANH = (torch.tanh, functional.tanh, "tanh")
OF_LAYER_NORM = ("input", "normalized_shape", "weight", "bias", "eps")
OF_NORM = ("input", "normalized_shape", "weight", "eps")


class Norm(NamedTuple):
    """A root mean square norm that is written out: the nodes that it reads, and its calls."""

    x: Any
    weight: Any
    eps: float
    dtypes: tuple[tuple[Any, ...], ...]  # dtypes of the input, the factor of the weight, the result and the weight
    inside: tuple[Node, ...]


def norm(node: Any) -> Norm | None:
    """Return the root mean square norm that ends with this call: PyTorch's function, or a norm that is written out."""
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
    return _laid_out_like(x, rms_norm(x, weight.shape, weight, eps))


def _laid_out_like(x: Tensor, call: Lowered) -> Call | list[Call] | str:
    """Return the call whose results have the input's order of elements in memory, as those of single calls have.

    A model may view them in that order.
    """
    if not isinstance(call, Call) or x.is_contiguous():
        return call

    def finish(outputs: tuple[Tensor, ...]) -> Any:
        found = call.finish(outputs)
        return as_input(found, x) if isinstance(found, Tensor) else tuple(as_input(one, x) for one in found)

    return call._replace(finish=finish, after_bytes=copied_bytes(x))


def _misfit_of_dtypes(x: Tensor, weight: Tensor, dtypes: Sequence[tuple[Any, ...]]) -> str:
    """Return the reason why a norm that is written out differs from an op in the input's dtype, or an empty string."""
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
    """A sum followed by its root mean square norm."""
    if x.shape != residual.shape or weight.shape != x.shape[-1:]:
        return "the shapes differ"
    if x.dtype != residual.dtype:
        return "the dtypes differ"
    call = Call("add_rms_norm", (x, residual, weight), {"eps": eps}, tuple)
    return _misfit_of_dtypes(x, weight, dtypes) or _laid_out_like(x, call)


def swiglu(gate: Tensor, up: Tensor) -> Lowered:
    """SiLU of one tensor, times another tensor."""
    return elementwise("swiglu", gate, up)


def geglu(gate: Tensor, up: Tensor) -> Lowered:
    """GELU of one tensor, times another tensor."""
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


def _norm_of_gated(node: Any) -> Match | None:
    """Return the norm of a tensor times SiLU of another tensor, as in Mamba 2."""
    found = norm(node)
    dtypes = _all_resolved(found) if found else None
    if not found or dtypes is None:
        return None
    for one, silu in either(pair(found.x, MULTIPLY)):
        if not calls(silu, (functional.silu,)) or len(silu.args) != 1 or not is_plain(silu.kwargs):
            continue
        x, gate = uncast(one), uncast(silu.args[0])
        of_product = _resolved(x.dtypes, x.of), _resolved(gate.dtypes, gate.of)
        if None in of_product or not isinstance(x.of, Node) or not isinstance(gate.of, Node):
            return None
        inside = (found.x, silu, *x.calls, *gate.calls, *found.inside)
        lower = partial(rms_norm_silu, eps=found.eps, dtypes=dtypes, of_product=of_product)
        return Match("rms_norm_silu", inside, (node,), (x.of, gate.of, found.weight), lower)
    return None


def rms_norm_silu(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, dtypes: Sequence[tuple[Any, ...]], of_product: Any
) -> Lowered:
    """The root mean square norm of `x` times SiLU of a gate, with changes of dtype between the steps."""
    if x.shape != gate.shape or weight.shape != x.shape[-1:]:
        return "the shapes differ"
    if x.dtype != gate.dtype:
        return "the dtypes differ"
    if any(to not in {OWN, x.dtype, torch.float32} for some in of_product for to in some):
        return "the product is computed in a narrower dtype"
    wide = torch.float32 if torch.float32 in [to for some in of_product for to in some] else x.dtype
    within = [(*dtypes[0], wide), *dtypes[1:]]
    call = Call("rms_norm_silu", (x, gate, weight), {"eps": eps}, first)
    return _misfit_of_dtypes(x, weight, within) or _laid_out_like(x, call)


def _layer_norm_of_sum(node: Any) -> Match | None:
    given = arguments(node, OF_LAYER_NORM) if calls(node, (functional.layer_norm,)) else {}
    terms = pair(given.get("input"), ADD)
    rest = [given.get(name) for name in ("weight", "bias")]
    if not terms or None in rest or not all(isinstance(one, Node) for one in terms):
        return None
    lower = partial(add_layer_norm, shape=tuple(given["normalized_shape"]), eps=given.get("eps", 1e-5))
    return Match("add_layer_norm", (given["input"], node), (node, given["input"]), (*terms, *rest), lower)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, *, shape: tuple[int, ...], eps: float
) -> Lowered:
    """A sum followed by its layer norm."""
    if x.shape != residual.shape or shape != x.shape[-1:] or not weight.shape == bias.shape == shape:
        return "the shapes differ"
    if len({one.dtype for one in (x, residual, weight, bias)}) > 1:
        return "the dtypes differ"
    call = Call("add_layer_norm", (x, residual, weight, bias), {"eps": eps}, lambda outputs: outputs[:2])
    return (
        call
        if x.is_contiguous()
        else call._replace(finish=lambda outputs: (outputs[0], as_input(outputs[1], x)), after_bytes=copied_bytes(x))
    )


def _gated(node: Any) -> Match | None:
    for gate, up in either(pair(node, MULTIPLY)):
        for op, function, lower in (("swiglu", functional.silu, swiglu), ("geglu", functional.gelu, geglu)):
            if calls(gate, (function,)) and len(gate.args) == 1 and is_plain(gate.kwargs) and isinstance(up, Node):
                return Match(op, (gate, node), (node,), (gate.args[0], up), lower, NOTHING)
    return None


def _smooth_gate(node: Any) -> Match | None:
    """Return a tensor times its sigmoid (silu), or times tanh of its softplus (mish), in several calls."""
    for x, gate in either(pair(node, MULTIPLY)):
        if calls(gate, SIGMOID) and gate.args == (x,) and not gate.kwargs:
            return Match("silu", (gate, node), (node,), (x,), partial(elementwise, "silu"), NOTHING)
        soft: Any = gate.args[0] if calls(gate, TANH) and len(gate.args) == 1 and not gate.kwargs else None
        if calls(soft, (functional.softplus,)) and soft.args == (x,) and not soft.kwargs:
            return Match("mish", (soft, gate, node), (node,), (x,), partial(elementwise, "mish"), "")
    return None


def _causal(node: Any) -> Match | None:
    """Return a causal convolution of each channel, written as one that is padded at both ends and then cut."""
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


# The ops that patterns find and that no single call of PyTorch computes.
OF_SEVERAL_CALLS = (
    "add_layer_norm", "add_rms_norm", "batch_norm_relu", "causal_conv1d", "conv2d_bias_gelu", "conv2d_bias_relu",
    "conv2d_bias_silu", "geglu", "gemm_bias_gelu", "gemm_bias_relu", "group_norm_silu", "masked_softmax",
    "rms_norm_silu", "rope", "rotary_embedding", "swiglu",
)  # fmt: skip
# Patterns of more calls come first: the calls that a match leaves unchanged may match a later pattern.
PATTERNS: tuple[Pattern, ...] = (
    _norm_of_gated, _norm_of_sum, _layer_norm_of_sum, written_out_norm, _gated, _smooth_gate, masked_scores,
    _causal, activated_convolution, activated_linear, batch_norm_and_relu, group_norm_and_silu, rotated, turned,
)  # fmt: skip
