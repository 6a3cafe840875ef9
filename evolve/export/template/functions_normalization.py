"""Normalisation with PyTorch's signatures."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import (
    CHANNELS_LAST,
    FLOAT32,
    NOTHING,
    Call,
    Form,
    Lowered,
    as_input,
    copied_bytes,
    first,
    has_channels_last,
)
from evolve.export.template.plans import record

NOT_AFFINE = "there is no weight or bias, which the kernels require"
IMAGE = 4  # dims of a batch of images


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Lowered:
    """The last dims minus their mean, divided by their standard deviation, times `weight` plus `bias`."""
    if weight is None or bias is None:
        return NOT_AFFINE
    if fault := _misfit(input, normalized_shape, weight, bias):
        return fault
    count = len(normalized_shape)
    if count == 1:
        return Call("layer_norm", (input, weight, bias), {"eps": eps}, first)
    views = (input.flatten(-count), weight.flatten(), bias.flatten())
    return Call("layer_norm", views, {"eps": eps}, lambda outputs: outputs[0].view(input.shape))


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Lowered:
    """The last dims divided by their root mean square, times `weight`."""
    if weight is None:
        return "there is no weight, which the kernels require"
    if eps is None:
        return "no eps is given, and PyTorch's depends on the dtype"
    if fault := _misfit(input, normalized_shape, weight):
        return fault
    count = len(normalized_shape)
    if count == 1:
        return Call("rms_norm", (input, weight), {"eps": eps}, first)
    views = (input.flatten(-count), weight.flatten())
    return Call("rms_norm", views, {"eps": eps}, lambda outputs: outputs[0].view(input.shape))


def _misfit(input: Tensor, normalized_shape: Sequence[int], *affine: Tensor) -> str:
    expected = tuple(normalized_shape)
    shapes = (tuple(input.shape[input.dim() - len(expected) :]), *(tuple(tensor.shape) for tensor in affine))
    return "" if expected and all(shape == expected for shape in shapes) else "the shapes do not fit"


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Lowered:
    """Groups of channels minus their mean, divided by their standard deviation, times `weight` plus `bias`."""
    if weight is None or bias is None:
        return NOT_AFFINE
    if input.dim() < 2 or input.shape[1] % num_groups:
        return "the channels cannot be divided into these groups"
    if has_channels_last(input):
        return CHANNELS_LAST
    x = _as_image(input)
    return Call("group_norm", (x, weight, bias), {"groups": num_groups, "eps": eps}, lambda o: o[0].view(input.shape))


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Lowered:
    """Each channel of each sample minus its mean, divided by its standard deviation."""
    if weight is None or bias is None:
        return NOT_AFFINE
    if running_mean is not None or running_var is not None or not use_input_stats:
        return "the kernels do not update running statistics"
    if input.dim() < 3 or math.prod(input.shape[2:]) < 2:
        return "a channel has a single element"
    return Call("instance_norm", (_as_image(input), weight, bias), {"eps": eps}, lambda o: o[0].view(input.shape))


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Lowered:
    """Each channel minus its mean, divided by its standard deviation, of the batch or as recorded."""
    if weight is None or bias is None or running_mean is None or running_var is None:
        return "there is no weight, bias or running statistics, which the kernels require"
    if input.dim() < 2:
        return "there are no channels"
    if has_channels_last(input):
        return CHANNELS_LAST
    views = (_as_image(input), weight, bias, running_mean, running_var)
    if momentum is None:
        return "without a momentum, PyTorch keeps the mean of all batches"
    if not training:
        return Call("batch_norm_inference", views, {"eps": eps}, lambda outputs: outputs[0].view(input.shape))
    return _of_this_batch("batch_norm", input, (weight, bias, running_mean, running_var), momentum, eps)


def _of_this_batch(op: str, x: Tensor, others: tuple[Tensor, ...], momentum: float, eps: float) -> Call | str:
    """Return the call of an op that normalises with a batch's own statistics, and records them."""
    running_mean, running_var = others[2:]
    if 0 in (*running_mean.stride(), *running_var.stride()):
        return "the running statistics share memory"

    def finish(outputs: tuple[Tensor, ...]) -> Tensor:
        record((running_mean, running_var), outputs[1:3])
        return outputs[0].view(x.shape)

    return Call(op, (_as_image(x), *others), {"momentum": momentum, "eps": eps}, finish, records=((1, 3), (2, 4)))


def batch_norm_relu(
    input: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    momentum: float,
    eps: float,
) -> Lowered:
    """Batch norm with the batch's own statistics, followed by ReLU."""
    if input.dim() < 2 or has_channels_last(input):
        return CHANNELS_LAST if input.dim() > 2 else "there are no channels"
    return _of_this_batch("batch_norm_relu", input, (weight, bias, running_mean, running_var), momentum, eps)


def group_norm_silu(input: Tensor, weight: Tensor, bias: Tensor, *, num_groups: int, eps: float) -> Lowered:
    """Group norm, followed by SiLU."""
    found = group_norm(input, num_groups, weight, bias, eps)
    return found._replace(op="group_norm_silu") if isinstance(found, Call) else found


def _as_image(x: Tensor) -> Tensor:
    """Return samples of any rank as a batch of images with the same channels."""
    if x.dim() == IMAGE:
        return x
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]), 1)


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Lowered:
    """Each element divided by a power of the mean square of `size` neighbouring channels."""
    if input.dim() < 3:
        return "there are no channels"
    parameters = {"size": size, "alpha": alpha, "beta": beta, "k": k}
    return Call(
        "local_response_norm",
        (_as_image(input),),
        parameters,
        lambda outputs: as_input(outputs[0].view(input.shape), input),
        copied_bytes(input),
    )


def _local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    return functional.local_response_norm(input, size, alpha, beta, k)


FORMS = (
    Form("layer_norm", ("layer_norm",), layer_norm, functional.layer_norm, FLOAT32),
    Form("rms_norm", ("rms_norm",), rms_norm, functional.rms_norm, "", (torch.rms_norm,)),
    Form("group_norm", ("group_norm",), group_norm, functional.group_norm, FLOAT32),
    Form("instance_norm", ("instance_norm",), instance_norm, functional.instance_norm, NOTHING),
    Form("batch_norm", ("batch_norm", "batch_norm_inference"), batch_norm, functional.batch_norm, NOTHING),
    Form(
        "local_response_norm",
        ("local_response_norm",),
        local_response_norm,
        _local_response_norm,
        "",
        (functional.local_response_norm,),
    ),
)
