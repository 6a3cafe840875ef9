"""Epilogues: activations that one op computes together with the preceding convolution, linear layer or norm.

Between a convolution and its activation, batch norm with running statistics is a factor and an addend of each channel,
so it becomes part of the weight and the bias.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import FLOAT32, LOW, NOTHING, Call, Lowered, first
from evolve.export.template.functions_images import conv2d
from evolve.export.template.functions_normalization import batch_norm_relu, group_norm_silu
from evolve.export.template.matching import OF_CONV, RELU, Match, arguments, calls, is_plain

# Names of the arguments, in order.
OF_BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
OF_GROUP_NORM = ("input", "num_groups", "weight", "bias", "eps")
OF_LINEAR = ("input", "weight", "bias")
NOT_TANH = "the kernels compute the exact GELU"
CONV2D = (functional.conv2d, torch.conv2d)
STEPS = OF_CONV[3:]  # arguments of a convolution that are not tensors
FOLDED = (torch.float32, torch.bfloat16)  # dtypes that can represent a weight times the factors of a norm


def _activated(node: Any) -> tuple[str, Any] | None:
    """Return the name of an activation and the node of its input; None for any other call."""
    if calls(node, RELU):
        return "relu", node.args[0] if node.args else None
    if calls(node, (functional.silu,)) and node.args:
        return "silu", node.args[0]
    if calls(node, (functional.gelu,)) and node.args:
        return "gelu" if is_plain(node.kwargs) else "gelu_tanh", node.args[0]
    return None


def activated_convolution(node: Any) -> Match | None:
    """Return a convolution of images followed by batch norm with running statistics, an activation, or both."""
    name, last = _activated(node) or ("", node)
    of_norm = arguments(last, OF_BATCH_NORM) if calls(last, (functional.batch_norm,)) else {}
    conv = of_norm["input"] if of_norm else last
    if conv is node or not calls(conv, CONV2D):
        return None
    norm = [of_norm[name] for name in OF_BATCH_NORM[1:5]] if of_norm else []
    if of_norm and (of_norm.get("training", False) is not False or None in norm):
        return None
    given = arguments(conv, OF_CONV)
    steps = {name: given[name] for name in STEPS if name in given}
    lower = partial(conv2d_activated, activation=name, **steps)
    inside = tuple(dict.fromkeys((conv, last, node)))
    # The eps of a layer is a node if a graph leaves numbers open.
    read = (given["input"], given["weight"], given.get("bias"), of_norm.get("eps", 1e-5), *norm)
    op = f"conv2d_bias_{name}".removesuffix("_tanh").rstrip("_")
    return Match(op, inside, (node,), read, lower, NOTHING if norm else LOW)


def conv2d_activated(
    x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, *norm: Tensor, activation: str, **steps: Any
) -> Lowered:
    """A convolution of images, batch norm with a running mean and variance, a weight and a bias, and an activation."""
    if activation == "gelu_tanh":
        return NOT_TANH
    if norm:
        if isinstance(folded := _folded(x, weight, bias, norm, eps), str):
            return folded
        x, weight, bias = folded
    elif bias is None:
        bias = weight.new_zeros(weight.shape[:1])
    found = conv2d(x, weight, bias, **steps)
    if isinstance(found, str):
        return found
    if not isinstance(found, Call) or found.op != "conv2d_bias":
        return "the kernels accept images with channels first, no groups and no dilation"
    made_bytes = weight.numel() * weight.element_size() if norm else 0
    return found._replace(op=f"conv2d_bias_{activation}" if activation else found.op, after_bytes=made_bytes)


def _folded(
    x: Tensor, weight: Tensor, bias: Tensor | None, norm: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor] | str:
    """Return the input, weight and bias of a convolution that includes the norm, or the reason why there is none."""
    is_cast = torch.is_autocast_enabled(x.device.type)
    dtype = torch.get_autocast_dtype(x.device.type) if is_cast and x.dtype is not torch.float64 else x.dtype
    if dtype not in FOLDED:
        return f"the weight times the factors of batch norm may leave the range of {dtype}"
    given = {one.dtype for one in (x, weight, bias) if one is not None}
    kinds = {one.dtype for one in norm}
    if len(kinds) > 1 or not kinds <= {dtype, torch.float32} or not (is_cast or given == {dtype}):
        return "the dtypes differ"
    if any(one.shape != weight.shape[:1] for one in (*norm, *(() if bias is None else (bias,)))):
        return "the channels of batch norm are not the convolution's filters"
    mean, variance, factor, shift = (one.float() for one in norm)
    factor = factor * torch.rsqrt(variance + eps)
    shift = shift - (mean if bias is None else mean - bias.float()) * factor
    return x.to(dtype), (weight.float() * factor.view(-1, 1, 1, 1)).to(dtype), shift.to(dtype)


def activated_linear(node: Any) -> Match | None:
    """Return a linear layer followed by ReLU or GELU."""
    found = _activated(node)
    if not found or found[0] == "silu" or not calls(found[1], (functional.linear,)):
        return None
    name, linear = found
    given = arguments(linear, OF_LINEAR)
    read = (given["input"], given["weight"], given.get("bias"))
    op = f"gemm_bias_{name.removesuffix('_tanh')}"
    return Match(op, (linear, node), (node,), read, partial(linear_activated, activation=name), LOW)


def linear_activated(x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str) -> Lowered:
    """The product of the input and the transposed weight plus a bias, and an activation."""
    if activation == "gelu_tanh":
        return NOT_TANH
    if weight.dim() != 2 or x.dim() < 2:
        return "the input or the weight is not a matrix"
    bias = weight.new_zeros(weight.shape[:1]) if bias is None else bias
    return Call(f"gemm_bias_{activation}", (x, weight, bias), {}, first)


def batch_norm_and_relu(node: Any) -> Match | None:
    """Return batch norm with the batch's own statistics, followed by ReLU."""
    if not calls(node, RELU) or not calls(node.args[0], (functional.batch_norm,)):
        return None
    given = arguments(node.args[0], OF_BATCH_NORM)
    tensors = [given.get(name) for name in OF_BATCH_NORM[:5]]
    if given.get("training") is not True or None in tensors or not isinstance(given.get("momentum", 0.1), float):
        return None
    lower = partial(batch_norm_relu, momentum=given.get("momentum", 0.1), eps=given.get("eps", 1e-5))
    return Match("batch_norm_relu", (node.args[0], node), (node,), tuple(tensors), lower, NOTHING)


def group_norm_and_silu(node: Any) -> Match | None:
    """Return group norm followed by SiLU."""
    if not calls(node, (functional.silu,)) or not calls(node.args[0], (functional.group_norm, torch.group_norm)):
        return None
    given = arguments(node.args[0], OF_GROUP_NORM)
    tensors = [given.get(name) for name in ("input", "weight", "bias")]
    if None in tensors:
        return None
    lower = partial(group_norm_silu, num_groups=given["num_groups"], eps=given.get("eps", 1e-5))
    return Match("group_norm_silu", (node.args[0], node), (node,), tuple(tensors), lower, FLOAT32)
