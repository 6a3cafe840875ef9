"""Fusion that an opaque op prevents: the tensors that the compiler would not write to memory, or not read again.

The compiler writes one kernel for calls that follow each other, such as a norm between an addition and a product, and
keeps the tensors between them on chip. An opaque op reads its inputs from memory and writes its outputs to memory. The
cost of that is the number of bytes that are moved in addition, in the forward and, in training, in the backward.
"""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, Node

from evolve.export.template.forms import Lost
from evolve.export.template.registering import hint

VIEWS = frozenset(
    ("T", "chunk", "contiguous", "detach", "expand", "expand_as", "flatten", "getattr", "getitem", "mT", "movedim",
     "narrow", "permute", "reshape", "select", "split", "squeeze", "swapaxes", "swapdims", "t", "transpose", "unbind",
     "unflatten", "unsqueeze", "view", "view_as")
)  # fmt: skip
# Calls that the compiler leaves to a library or to a kernel of PyTorch, which it fuses with nothing.
LIBRARIES = frozenset(
    ("addbmm", "addmm", "argsort", "baddbmm", "bilinear", "bmm", "causal_conv1d", "cdist", "conv1d", "conv2d", "conv3d",
     "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "ctc_loss", "einsum", "embedding_bag", "gru",
     "gru_cell", "inner", "linear", "lstm", "lstm_cell", "matmul", "mm", "multi_head_attention_forward", "mv",
     "rnn_relu", "rnn_tanh", "rnn_tanh_cell", "scaled_dot_product_attention", "sort", "tensordot", "topk")
)  # fmt: skip
_ops = torch._ops  # noqa: SLF001 - there are no public names
OF_TORCH = (_ops.HigherOrderOperator, _ops.OpOverload, _ops.OpOverloadPacket)
LOOKUPS = frozenset(("embedding", "gather", "index_select"))
WINDOWS = ("max_pool", "avg_pool", "adaptive_", "interpolate", "grid_sample")
# The statistics of all images are needed before the first one is normalized, so the input is read twice in any case.
READ_TWICE = ("batch_norm", "batch_norm_relu")


class Fuses(NamedTuple):
    """Whether the compiler fuses a call with the calls that make its inputs, and with those that read its outputs."""

    inputs: bool
    outputs: bool
    grads_of_inputs: bool
    grads_of_outputs: bool


BOTH, NEITHER = Fuses(True, True, True, True), Fuses(False, False, False, False)
OUTPUTS = Fuses(False, True, False, True)  # a product and its activation, or a lookup
POOLED = Fuses(False, True, True, False)  # windows overlap, so what they read is in memory


class Edge(NamedTuple):
    """A tensor between an opaque op and a neighbour: the neighbour that makes it, and the bytes moved in addition."""

    maker: Any
    lost: Lost


def fused(node: Node) -> Fuses:
    """Return what the compiler fuses a call with."""
    if node.op not in {"call_function", "call_method"}:
        return NEITHER
    target = node.target
    if isinstance(target, OF_TORCH) and not str(target).startswith(("aten.", "prims.")):
        return NEITHER
    name = _name(node)
    if name in LIBRARIES:
        return NEITHER
    if name in LOOKUPS or name.startswith(("conv2d_bias", "gemm_bias")):
        return OUTPUTS
    return POOLED if name.startswith(WINDOWS) else BOTH


def _name(node: Node) -> str:
    if isinstance(node.target, str):
        return node.target.rstrip("_")
    known = getattr(node.target, "name", "")
    return known if isinstance(known, str) and known else getattr(node.target, "__name__", "").rstrip("_")


def edges(node: Node, within: Mapping[Graph, Node]) -> list[Edge]:
    """Return the tensors between a call and its neighbours that cost time if the call becomes opaque.

    `within` gives the call that a graph's calls compute together, which has the neighbours of the whole graph.
    """
    found = [*_of_inputs(node, within), *_of_outputs(node, within)]
    return [edge for edge in found if any(edge.lost)]


def _of_inputs(node: Node, within: Mapping[Graph, Node]) -> Iterator[Edge]:
    fuses, most = fused(node), 1 if _name(node) in READ_TWICE else 2
    for given in node.all_input_nodes:
        value = _value(given, within)
        if value is None:
            continue
        maker = _maker(given, within)
        readers = list(_readers(maker, within))
        near = fused(maker).outputs and not _apart(maker, node, within)
        alone = all(_joins(maker, reader, within) for reader in readers)
        forward = nbytes(value) * (most if alone else 1) if near and fuses.inputs else 0
        # The gradients of a tensor that several calls read are added, which the compiler does in the last of them.
        summed = value.requires_grad and fuses.grads_of_inputs and (near or len(readers) > 1)
        yield Edge(maker.target, Lost(forward, 2 * nbytes(value) if summed else 0))


def _of_outputs(node: Node, within: Mapping[Graph, Node]) -> Iterator[Edge]:
    fuses = fused(node)
    for result in _results(node):
        value = _value(result, within)
        readers = list(_readers(result, within))
        if value is None or not readers:
            continue
        near = [reader for reader in readers if _joins(node, reader, within)]
        forward = nbytes(value) * (2 if len(near) == len(readers) else 1) if near and fuses.outputs else 0
        summed = value.requires_grad and fuses.grads_of_outputs and (near or len(readers) > 1)
        yield Edge(None, Lost(forward, 2 * nbytes(value) if summed else 0))


def nbytes(value: Tensor) -> int:
    """Return the size of a tensor in bytes, for the sizes for which a graph is traced."""
    sizes = [hint(size) for size in value.shape]
    return 0 if None in sizes else math.prod(size or 0 for size in sizes) * value.dtype.itemsize


def _value(node: Node, within: Mapping[Graph, Node]) -> Tensor | None:
    """Return a tensor like a node's result; None if it has no tensor or only numbers that are not floating-point."""
    value = node.meta.get("example_value")
    if value is None and (outer := _given(node, within)):
        return _value(outer, within)
    return value if isinstance(value, Tensor) else None


def _given(node: Node, within: Mapping[Graph, Node]) -> Node | None:
    """Return the node whose result a placeholder of a written-out graph stands for."""
    if node.op != "placeholder" or node.graph not in within:
        return None
    places = [one for one in node.graph.nodes if one.op == "placeholder"]
    given = within[node.graph].args[places.index(node)]
    return given if isinstance(given, Node) else None


def _maker(node: Node, within: Mapping[Graph, Node]) -> Node:
    """Return the call that computes a tensor, given the call itself or a node that is a view of the tensor."""
    while True:
        if outer := _given(node, within):
            node = outer
        elif _is_view(node) and node.all_input_nodes:
            node = node.all_input_nodes[0]
        else:
            return node


def _results(node: Node) -> Sequence[Node]:
    """Return the nodes that hold the results of a call."""
    parts = [user for user in node.users if user.target is operator.getitem]
    several = not isinstance(node.meta.get("example_value"), Tensor) and len(parts) == len(node.users)
    return parts if several else [node]


def _readers(node: Node, within: Mapping[Graph, Node]) -> Iterator[Node]:
    """Yield the calls that read a node's result or a view of it; a graph's own output counts as a call."""
    for user in node.users:
        if _is_view(user):
            yield from _readers(user, within)
        elif user.op == "output" and user.graph in within:
            outer, results = within[user.graph], user.args[0]
            if not isinstance(results, tuple):
                yield from _readers(outer, within)
                continue
            for place in [at for at, one in enumerate(results) if one is node]:
                for part in outer.users:
                    if part.args[1] == place:
                        yield from _readers(part, within)
        else:
            yield user


def _is_view(node: Node) -> bool:
    return node.op in {"call_function", "call_method"} and _name(node) in VIEWS


def _joins(node: Node, reader: Node, within: Mapping[Graph, Node]) -> bool:
    """Return whether the compiler fuses a reader with the call whose result it reads."""
    return fused(reader).inputs and not _apart(node, reader, within)


def _apart(first: Node, last: Node, within: Mapping[Graph, Node]) -> bool:
    """Return whether a call that is never fused runs between two calls, whose kernels are then separate, too."""
    while first.graph is not last.graph:
        inner, other = (first, last) if first.graph in within else (last, first)
        if inner.graph not in within:
            return True
        first, last = (within[inner.graph], other) if inner is first else (other, within[inner.graph])
    after, behind = {first}, set[Node]()
    node = first
    while node is not last and node.next.op != "root":
        node = node.next
        given = node.all_input_nodes
        if not behind.isdisjoint(given):
            behind.add(node)
        elif not after.isdisjoint(given):
            (after if fused(node).inputs or _is_view(node) or node is last else behind).add(node)
    return last in behind
