"""Transposed convolutions, which enlarge images in generators, decoders and U-Nets."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import LONG_SUMS, product
from reference_ops.op import Op, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.precision import rounded_once

ALL, SOME = "float32 bfloat16 float16", "float32 bfloat16"


def conv_transpose1d(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, output_padding: int
) -> torch.Tensor:
    return functional.conv_transpose1d(x, weight, stride=stride, padding=padding, output_padding=output_padding)


def conv_transpose2d(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, output_padding: int
) -> torch.Tensor:
    return functional.conv_transpose2d(x, weight, stride=stride, padding=padding, output_padding=output_padding)


def conv_transpose3d(
    x: torch.Tensor, weight: torch.Tensor, stride: int, padding: int, output_padding: int
) -> torch.Tensor:
    return functional.conv_transpose3d(x, weight, stride=stride, padding=padding, output_padding=output_padding)


def grown(size: str, taps: str) -> Callable[[Mapping[str, int]], int]:
    return lambda known: (
        (known[size] - 1) * known["stride"] - 2 * known["padding"] + known[taps] + known["output_padding"]
    )


def at(batch: int, channels: int, sizes: tuple[int, ...], filters: int, *window: int) -> dict[str, int]:
    axes = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}[len(sizes)]
    names = {1: ("taps",), 2: ("r", "s"), 3: ("q", "r", "s")}[len(sizes)]
    taps = window * len(sizes) if len(window) == 1 else window
    return {
        "batch": batch,
        "channels": channels,
        **dict(zip(axes, sizes, strict=True)),
        "filters": filters,
        **dict(zip(names, taps, strict=True)),
    }


def transposed(
    called: Callable[..., torch.Tensor],
    axes: Mapping[str, tuple[str, str]],
    gpu: tuple[Workload, ...],
    emulated: tuple[Workload, ...],
    awkward: tuple[Workload, ...],
) -> Op:
    """Return a transposed convolution; `axes` gives the names of an axis's sizes in the output and in the window."""
    taps = [tap for _, tap in axes.values()]
    return Op(
        name=called.__name__,
        note="out[n, k, y, ...] = sum over c, i, ... of weight[c, k, i, ...] * x[n, c, (y + padding - i) / stride, "
        "...], where each division is without remainder and its result inside. output_padding adds that many results "
        "at the end of each axis. No bias. In float32 PyTorch multiplies in TF32.",
        reference=rounded_once(called),
        baseline=called,
        baseline_free=("out",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(x=f"batch channels {' '.join(axes)}", weight=f"channels filters {' '.join(taps)}"),
        outputs=tensors(out=f"batch filters {' '.join(out for out, _ in axes.values())}"),
        derived={
            **{out: grown(size, tap) for size, (out, tap) in axes.items()},
            "terms": product("channels", *taps),
        },
        valid=lambda known: known["output_padding"] < known["stride"],
        gpu=gpu,
        emulated=emulated,
        awkward=awkward,
        values=LONG_SUMS,
        flops=product("batch", "filters", *(out for out, _ in axes.values())),
        matrix_flops=lambda dims: 2 * product("batch", "channels", *axes, "filters", *taps)(dims),
        arranged=opposed(x=1, weight=0),
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    )


ops = (
    transposed(
        conv_transpose1d,
        {"length": ("out_length", "taps")},
        gpu=(
            *workloads(ALL, at(8, 512, (400,), 256, 16), stride=8, padding=4, output_padding=0),  # HiFi-GAN
            *workloads("bfloat16", at(16, 128, (12800,), 64, 4), stride=2, padding=1, output_padding=0),
            *workloads("bfloat16", at(8, 256, (3750,), 128, 8), stride=4, padding=2, output_padding=0),
            *workloads("float32", at(13, 61, (1999,), 101, 5), stride=3, padding=1, output_padding=2),
        ),
        emulated=(
            *workloads(ALL, at(2, 8, (50,), 16, 4), stride=2, padding=1, output_padding=0),
            *workloads(SOME, at(1, 24, (31,), 20, 5), stride=3, padding=1, output_padding=2),
        ),
        awkward=(
            *rotated(SOME, at(1, 1, (1,), 1, 1), at(3, 33, (31,), 65, 3), stride=1, padding=0, output_padding=0),
            *rotated(
                "float16 float32", at(3, 31, (33,), 2, 7), at(1, 1, (64,), 63, 2), stride=4, padding=1, output_padding=1
            ),
            *rotated("float32", at(2, 5, (1,), 3, 4), stride=2, padding=1, output_padding=0),  # from one element
        ),
    ),
    transposed(
        conv_transpose2d,
        {"height": ("oh", "r"), "width": ("ow", "s")},
        gpu=(
            *workloads(ALL, at(16, 256, (32, 32), 128, 4), stride=2, padding=1, output_padding=0),  # DCGAN, pix2pix
            *workloads("bfloat16", at(4, 128, (128, 128), 64, 2), stride=2, padding=0, output_padding=0),  # a U-Net
            *workloads("float32", at(8, 256, (28, 28), 256, 3), stride=2, padding=1, output_padding=1),
            *workloads("bfloat16", at(2, 256, (64, 64), 128, 3), stride=1, padding=1, output_padding=0),
            *workloads("bfloat16", at(7, 61, (29, 43), 67, 3, 5), stride=3, padding=2, output_padding=1),
        ),
        emulated=(
            *workloads(ALL, at(2, 8, (6, 7), 12, 4), stride=2, padding=1, output_padding=0),
            *workloads(SOME, at(1, 12, (5, 9), 16, 3), stride=2, padding=1, output_padding=1),
        ),
        awkward=(
            *rotated(SOME, at(1, 1, (1, 1), 1, 1), at(3, 33, (5, 3), 65, 3, 2), stride=1, padding=0, output_padding=0),
            *rotated(
                "float16 float32",
                at(3, 31, (4, 7), 2, 5),
                at(1, 2, (11, 3), 63, 3),
                stride=3,
                padding=1,
                output_padding=2,
            ),
            *rotated("float32", at(2, 5, (1, 1), 3, 4), stride=2, padding=1, output_padding=0),  # from one pixel
        ),
    ),
    transposed(
        conv_transpose3d,
        {"depth": ("od", "q"), "height": ("oh", "r"), "width": ("ow", "s")},
        gpu=(
            *workloads(
                ALL, at(2, 128, (16, 16, 16), 64, 2), stride=2, padding=0, output_padding=0
            ),  # the decoder of a 3d U-Net
            *workloads("bfloat16", at(2, 64, (32, 32, 32), 32, 2), stride=2, padding=0, output_padding=0),
            *workloads(
                "bfloat16", at(4, 128, (8, 8, 8), 64, 4), stride=2, padding=1, output_padding=0
            ),  # a GAN of volumes
            *workloads("float32", at(3, 29, (9, 13, 11), 37, 3, 2, 5), stride=2, padding=1, output_padding=1),
        ),
        emulated=(
            *workloads(ALL, at(1, 8, (3, 4, 5), 8, 2), stride=2, padding=0, output_padding=0),
            *workloads(SOME, at(1, 6, (4, 3, 3), 8, 3), stride=2, padding=1, output_padding=1),
        ),
        awkward=(
            *rotated(
                SOME,
                at(1, 1, (1, 1, 1), 1, 1),
                at(2, 33, (1, 3, 2), 65, 1, 3, 2),
                stride=1,
                padding=0,
                output_padding=0,
            ),
            *rotated(
                "float16 float32",
                at(3, 5, (2, 3, 4), 31, 3),
                at(1, 2, (3, 5, 2), 3, 4),
                stride=3,
                padding=1,
                output_padding=2,
            ),
            *rotated("float32", at(2, 5, (1, 1, 1), 3, 4), stride=2, padding=1, output_padding=0),
        ),
    ),
)
