"""Elementwise activations with PyTorch's signatures."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import FLOAT32, NOTHING, Form, Lowered, elementwise

IN_PLACE = "only PyTorch computes results in place"


def relu(input: Tensor, inplace: bool = False) -> Lowered:
    """The larger of each element and 0."""
    return IN_PLACE if inplace else elementwise("relu", input)


def silu(input: Tensor, inplace: bool = False) -> Lowered:
    """Each element times its sigmoid."""
    return IN_PLACE if inplace else elementwise("silu", input)


def mish(input: Tensor, inplace: bool = False) -> Lowered:
    """Each element times tanh(softplus(element))."""
    return IN_PLACE if inplace else elementwise("mish", input)


def hardswish(input: Tensor, inplace: bool = False) -> Lowered:
    """Each element times relu6(element + 3) / 6."""
    return IN_PLACE if inplace else elementwise("hardswish", input)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Lowered:
    """Positive elements unchanged, and others as alpha * (exp(element) - 1)."""
    return IN_PLACE if inplace else elementwise("elu", input, alpha=alpha)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Lowered:
    """Positive elements unchanged, and others times `negative_slope`."""
    return IN_PLACE if inplace else elementwise("leaky_relu", input, negative_slope=negative_slope)


def gelu(input: Tensor, approximate: str = "none") -> Lowered:
    """The Gaussian error linear unit, exact or by a tanh (`approximate="tanh"`)."""
    if approximate not in {"none", "tanh"}:
        return f"approximate={approximate!r} is neither `none` nor `tanh`"
    return elementwise("gelu" if approximate == "none" else "gelu_tanh", input)


def sigmoid(input: Tensor) -> Lowered:
    """The logistic function of each element."""
    return elementwise("sigmoid", input)


def tanh(input: Tensor) -> Lowered:
    """The hyperbolic tangent of each element."""
    return elementwise("tanh", input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Lowered:
    """log(1 + exp(element)), and the element itself where it is large."""
    if beta != 1 or threshold != 20:
        return "the kernels support only beta=1 and threshold=20"
    return elementwise("softplus", input)


def _form(lower: Callable[..., Lowered], pytorch: Callable[..., Any], *same: Callable[..., Any]) -> Form:
    name = lower.__name__
    ops = ("gelu", "gelu_tanh") if name == "gelu" else (name,)
    return Form(name, ops, lower, pytorch, FLOAT32 if name == "softplus" else NOTHING, same)


def _gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return functional.gelu(input, approximate=approximate)


FORMS = (
    _form(relu, functional.relu, torch.relu, Tensor.relu),
    _form(silu, functional.silu),
    _form(mish, functional.mish),
    _form(hardswish, functional.hardswish),
    _form(elu, functional.elu),
    _form(leaky_relu, functional.leaky_relu),
    _form(gelu, _gelu, functional.gelu),
    _form(sigmoid, torch.sigmoid, functional.sigmoid, Tensor.sigmoid),
    _form(tanh, torch.tanh, functional.tanh, Tensor.tanh),
    _form(softplus, functional.softplus),
)
