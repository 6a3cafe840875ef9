"""Convolutions, pooling and resizing with PyTorch's signatures."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evolve.export.template.forms import (
    CHANNELS_LAST,
    LOW,
    NOTHING,
    Call,
    Form,
    Lowered,
    as_sizes,
    first,
    has_channels_last,
    single,
)

Sizes = int | Sequence[int]
UNEQUAL = "the window, stride, padding or dilation differs between the dims"
NOT_A_BATCH = "the input is not a batch"
TOO_FEW_SIZES = "the sizes are fewer than the dims of an image"
INDICES = "tuple[Tensor, Tensor]"
AXES = {1: ("l",), 2: ("h", "w"), 3: ("d", "h", "w")}


def _steps(*given: Sizes | str, rank: int) -> tuple[int, ...] | None:
    """Return, for each argument, the number that all dims share; None if a number is missing."""
    found = [0 if one == "valid" else None if isinstance(one, str) else single(one, rank) for one in given]
    return None if None in found else tuple(value for value in found if value is not None)


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Lowered:
    """The convolution of sequences."""
    steps = _steps(stride, padding, dilation, rank=1)
    if steps is None:
        return UNEQUAL
    if input.dim() == 3 and groups == input.shape[1] != 1:
        return _of_each_channel(input, weight, bias, *steps)
    if input.dim() != 3 or bias is not None or groups != 1:
        return "the kernels accept a batch, no bias and no groups"
    return Call("conv1d", (input, weight), dict(zip(("stride", "padding", "dilation"), steps, strict=True)), first)


def _of_each_channel(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, dilation: int
) -> Call | str:
    """Return the call of the causal convolution for a convolution of each channel, as in Mamba."""
    if stride != 1 or weight.shape[:2] != (x.shape[1], 1) or x.shape[0] * x.shape[2] == 0:
        return "the kernels of each channel have stride 1 and a filter for each channel"
    before, length = (weight.shape[2] - 1) * dilation, x.shape[2]
    if padding not in {0, before} or length <= before:
        return "the kernels of each channel need a padding of (length of the filter - 1) * dilation, or none"
    call = _causal(x, weight, bias, dilation)
    kept = length + before if padding else length - before
    moved = x.shape[0] * x.shape[1] * kept * x.element_size()
    if not padding:
        return call._replace(finish=lambda outputs: outputs[0][..., before:].contiguous(), after_bytes=moved)

    def finish(outputs: tuple[Tensor, ...]) -> Tensor:
        # The windows of the last positions extend beyond the end, where values are zero.
        beyond = functional.pad(x[..., length - before :], (0, before))
        last = functional.conv1d(beyond, weight, bias, dilation=dilation, groups=x.shape[1])
        return torch.cat((outputs[0], last), 2)

    return call._replace(finish=finish, after_bytes=moved) if before else call


def _causal(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int) -> Call:
    bias = weight.new_zeros(weight.shape[0]) if bias is None else bias
    return Call("causal_conv1d", (x, weight.squeeze(1), bias), {"dilation": dilation}, first)


def causal_conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kept: int,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Lowered:
    """The causal convolution of each channel, written as one that is padded at both ends and then cut."""
    before = (weight.shape[-1] - 1) * dilation
    if input.dim() != 3 or stride != 1 or weight.shape[:2] != (input.shape[1], 1) or groups != input.shape[1]:
        return "the kernels of each channel have stride 1 and a filter for each channel"
    length = input.shape[2]
    if padding != before or (kept if kept >= 0 else length + before + kept) != length:
        return "the positions that are kept depend on later positions"
    return _causal(input, weight, bias, dilation)


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Lowered:
    """The convolution of images."""
    steps = _steps(stride, padding, dilation, rank=2)
    if steps is None:
        return UNEQUAL
    if input.dim() != 4 or weight.dim() != 4:
        return NOT_A_BATCH
    stride, padding, dilation = steps
    at = {"stride": stride, "padding": padding}
    if has_channels_last(input, weight):
        if groups != 1 or dilation != 1:
            return CHANNELS_LAST
        return _conv2d_channels_last(input, weight, bias, at)
    channels, filters = input.shape[1], weight.shape[0]
    if groups == 1 and bias is None and dilation == 1:
        calls = [Call("conv2d", (input, weight), at, first)]
        plain = weight.shape[2:] == (1, 1) and steps == (1, 0, 1)
        return [Call("conv2d_pointwise", (input, weight), {}, first), *calls] if plain else calls
    if groups == 1 and dilation == 1 and bias is not None:
        return Call("conv2d_bias", (input, weight, bias), at, first)
    if groups == 1 and bias is None and stride == 1:
        return Call("dilated_conv2d", (input, weight), {"padding": padding, "dilation": dilation}, first)
    if groups == channels == filters and bias is not None and dilation == 1:
        return Call("depthwise_conv2d", (input, weight, bias), at, first)
    if bias is None and dilation == 1:
        return Call("grouped_conv2d", (input, weight), {**at, "groups": groups}, first)
    return "no kernel accepts this bias with these groups and dilation"


def _conv2d_channels_last(x: Tensor, weight: Tensor, bias: Tensor | None, at: dict[str, int]) -> Lowered:
    """Return the call of the op for images whose channels are last in memory, if those of its result are as well."""
    if bias is not None and (bias.dtype, bias.device, bias.shape) != (x.dtype, x.device, weight.shape[:1]):
        return "the bias does not fit"

    def finish(outputs: tuple[Tensor, ...]) -> Tensor:
        out = outputs[0].permute(0, 3, 1, 2)
        return out if bias is None else out + bias.view(-1, 1, 1)

    views = tuple(one.permute(0, 2, 3, 1) for one in (x, weight))
    if bias is None:
        return Call("conv2d_channels_last", views, at, finish)
    places = [
        (size + 2 * at["padding"] - taps) // at["stride"] + 1
        for size, taps in zip(x.shape[2:], weight.shape[2:], strict=True)
    ]
    added_to = x.shape[0] * weight.shape[0] * places[0] * places[1] * x.element_size()
    return Call("conv2d_channels_last", views, at, finish, added_to)


def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Lowered:
    """The convolution of volumes."""
    steps = _steps(stride, padding, dilation, rank=3)
    if steps is None:
        return UNEQUAL
    if input.dim() != 5 or bias is not None or groups != 1 or steps[2] != 1:
        return "the kernels accept a batch, no bias, no groups and no dilation"
    if has_channels_last(input, weight):
        return CHANNELS_LAST
    return Call("conv3d", (input, weight), {"stride": steps[0], "padding": steps[1]}, first)


def _transposed(rank: int) -> Callable[..., Lowered]:
    op = f"conv_transpose{rank}d"  # outside of the function: in a graph, the rank may have no value

    def lower(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        dilation: Sizes = 1,
    ) -> Lowered:
        """The transposed convolution: the gradient of a convolution with respect to its input."""
        steps = _steps(stride, padding, output_padding, dilation, rank=rank)
        if steps is None:
            return UNEQUAL
        if input.dim() != rank + 2 or bias is not None or groups != 1 or steps[3] != 1:
            return "the kernels accept a batch, no bias, no groups and no dilation"
        if has_channels_last(input, weight):
            return CHANNELS_LAST
        parameters = dict(zip(("stride", "padding", "output_padding"), steps[:3], strict=True))
        return Call(op, (input, weight), parameters, first)

    return lower


def _avg_pool(rank: int) -> Callable[..., Lowered]:
    op = f"avg_pool{rank}d"

    def lower(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Lowered:
        """The mean of each window."""
        if ceil_mode or not count_include_pad or divisor_override is not None:
            return "the kernels include the padding in the mean and round sizes down"
        return _pooled(op, rank, input, (kernel_size, stride, padding), first)

    return lower


def _max_pool(rank: int) -> Callable[..., Lowered]:
    op = f"max_pool{rank}d"

    def lower(
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Lowered:
        """The largest element of each window, and with `return_indices` its position."""
        if ceil_mode or single(dilation, rank) != 1:
            return "the kernels have no dilation and round sizes down"
        finish = tuple if return_indices else first
        return _pooled(op, rank, input, (kernel_size, stride, padding), finish)

    return lower


def _pooled(op: str, rank: int, input: Tensor, window: tuple[Any, Any, Any], finish: Callable[..., Any]) -> Lowered:
    kernel_size, stride, padding = window
    has_default = stride is None or (not isinstance(stride, int) and not len(stride))
    steps = _steps(kernel_size, kernel_size if has_default else stride, padding, rank=rank)
    if steps is None:
        return UNEQUAL
    if input.dim() != rank + 2:
        return NOT_A_BATCH
    if has_channels_last(input):
        return CHANNELS_LAST
    return Call(op, (input,), dict(zip(("kernel", "stride", "padding"), steps, strict=True)), finish)


def _adaptive(rank: int) -> Callable[..., Lowered]:
    op = f"adaptive_avg_pool{rank}d"

    def lower(input: Tensor, output_size: Sizes) -> Lowered:
        """Means of windows, whose number is given by `output_size`."""
        if input.dim() != rank + 2:
            return NOT_A_BATCH
        if has_channels_last(input):
            return CHANNELS_LAST
        if _are_too_few(output_size, rank):
            return TOO_FEW_SIZES
        sizes = as_sizes(output_size, rank)
        if rank == 1 and None in sizes:
            return "the size is not a number"
        wanted = [given if given is not None else size for given, size in zip(sizes, input.shape[2:], strict=True)]
        parameters = {f"o{axis}": size for axis, size in zip(AXES[rank], wanted, strict=True)}
        return Call(op, (input,), parameters, first)

    return lower


def interpolate(
    input: Tensor,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Lowered:
    """Resized images: each pixel is computed from the nearest pixel (`nearest`) or from four pixels (`bilinear`)."""
    if input.dim() != 4 or not _is_off(align_corners) or antialias or recompute_scale_factor:
        return "the kernels accept images, without align_corners and antialias"
    if (size is not None and scale_factor is not None) or (mode == "nearest" and align_corners is not None):
        return "both a size and a factor are given, or align_corners with `nearest`"
    if has_channels_last(input):
        return CHANNELS_LAST
    if size is not None and _are_too_few(size, 2):
        return TOO_FEW_SIZES
    if mode == "bilinear" and size is not None:
        oh, ow = as_sizes(size, 2)
        return Call("upsample_bilinear", (input,), {"oh": oh, "ow": ow}, first)
    if mode != "nearest":
        return "the kernels accept a size with `bilinear`, or whole factors with `nearest`"
    factor = _factor(input, size, scale_factor)
    if factor is None:
        return "the factor is not a whole number, or differs between the dims"
    return Call("upsample_nearest", (input,), {"factor": factor}, first)


def _are_too_few(sizes: Sizes, rank: int) -> bool:
    """Return whether this is a sequence of fewer sizes than dims.

    PyTorch accepts such a window, but not such a result.
    """
    return isinstance(sizes, Sequence) and len(sizes) < rank


def _factor(x: Tensor, size: Sizes | None, scale_factor: float | Sequence[float] | None) -> int | None:
    """Return the whole factor by which both sides grow."""
    if size is not None:
        found = [wanted / had for wanted, had in zip(as_sizes(size, 2), x.shape[2:], strict=True)]
    elif isinstance(scale_factor, int | float):
        found = [float(scale_factor)]
    else:
        found = [float(one) for one in scale_factor or ()]
    return int(found[0]) if len(set(found)) == 1 and found[0] >= 1 and found[0].is_integer() else None


def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Lowered:
    """Images sampled at the positions of a grid."""
    if input.dim() != 4 or mode != "bilinear" or padding_mode != "zeros" or not _is_off(align_corners):
        return "the kernels sample images bilinearly, with zeros outside"
    if input.dtype != grid.dtype:
        return "image and grid differ in dtype"
    return Call("grid_sample", (input, grid), {}, first)


def _is_off(flag: bool | None) -> bool:
    """Return whether a flag is not set. PyTorch refuses a zero in place of False."""
    return flag is None or flag is False


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Lowered:
    """The positions at which an affine map samples images of a size."""
    if not _is_off(align_corners) or len(size) != 4 or theta.dim() != 3 or theta.shape[0] != size[0]:
        return "the kernels make grids of images, without align_corners"
    return Call("affine_grid", (theta,), {"h": size[2], "w": size[3]}, first)


def _named(rank: int, name: str, lower: Callable[..., Lowered], result: str = "Tensor") -> Form:
    full = f"{name}{rank}d"
    autocast = LOW if name.startswith("conv") else NOTHING if name == "max_pool" else ""
    return Form(full, (full,), lower, getattr(functional, full), autocast, (), result)


RANKS = (1, 2, 3)
OF_CONV2D = (
    *("conv2d", "conv2d_pointwise", "conv2d_bias", "dilated_conv2d", "depthwise_conv2d", "grouped_conv2d"),
    "conv2d_channels_last",
)
FORMS = (
    Form("conv1d", ("conv1d", "causal_conv1d"), conv1d, functional.conv1d, LOW, (torch.conv1d,)),
    Form("conv2d", OF_CONV2D, conv2d, functional.conv2d, LOW, (torch.conv2d,)),
    Form("conv3d", ("conv3d",), conv3d, functional.conv3d, LOW, (torch.conv3d,)),
    *(_named(rank, "conv_transpose", _transposed(rank)) for rank in RANKS),
    *(_named(rank, "avg_pool", _avg_pool(rank)) for rank in RANKS),
    *(_named(rank, "max_pool", _max_pool(rank), f"Tensor | {INDICES}") for rank in RANKS),
    *(_named(rank, "adaptive_avg_pool", _adaptive(rank)) for rank in RANKS),
    Form("interpolate", ("upsample_bilinear", "upsample_nearest"), interpolate, functional.interpolate),
    Form("grid_sample", ("grid_sample",), grid_sample, functional.grid_sample),
    Form("affine_grid", ("affine_grid",), affine_grid, functional.affine_grid),
)
