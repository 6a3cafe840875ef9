"""Average pooling to a given size, over one, two or three dims, and its backward."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch.nn import functional

from reference_ops.arrangements import crowded
from reference_ops.op import COMMON, Op, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.pooling._windows import (
    AXES,
    as_given,
    at,
    inner,
    inner_sizes,
    outer,
    volume,
)
from reference_ops.precision import in_float32_on_cpu, wide

ALL = "bfloat16 float32 float16"
GPU: dict[int, tuple[Workload, ...]] = {
    1: (
        *workloads(ALL, at(64, 512, 1500), ol=1),  # a classifier of sound
        *workloads("bfloat16", at(32, 256, 16000), ol=50),
        *workloads("float32", at(128, 768, 197), ol=1),
        *workloads("bfloat16", at(33, 129, 1009), ol=13),
    ),
    2: (
        *workloads(ALL, at(256, 2048, 7, 7), oh=1, ow=1),  # the head of ResNet-50
        *workloads("bfloat16", at(64, 512, 14, 14), oh=7, ow=7),  # VGG on larger images
        *workloads("float32", at(64, 256, 56, 56), oh=1, ow=1),  # squeeze and excitation
        *workloads("bfloat16", at(16, 2048, 60, 60), oh=6, ow=6),  # a pyramid of pools
        *workloads("float32", at(31, 67, 61, 43), oh=5, ow=3),
    ),
    3: (
        *workloads(ALL, at(32, 2048, 8, 7, 7), od=1, oh=1, ow=1),  # the head of I3D
        *workloads("bfloat16", at(16, 512, 16, 14, 14), od=8, oh=7, ow=7),
        *workloads("float32", at(8, 256, 16, 28, 28), od=1, oh=1, ow=1),
        *workloads("bfloat16", at(3, 33, 17, 29, 31), od=3, oh=5, ow=4),
    ),
}
EMULATED = {
    1: (
        *workloads(ALL, at(4, 16, 96), ol=1),
        *workloads("float32 bfloat16", at(3, 8, 101), ol=7),
    ),
    2: (
        *workloads(ALL, at(4, 32, 7, 7), oh=1, ow=1),
        *workloads("float32 bfloat16", at(2, 4, 13, 17), oh=5, ow=3),
    ),
    3: (
        *workloads(ALL, at(4, 16, 4, 5, 5), od=1, oh=1, ow=1),
        *workloads("float32 bfloat16", at(2, 4, 7, 9, 11), od=2, oh=4, ow=3),
    ),
}
AWKWARD = {
    1: (
        *rotated("float32", at(1, 1, 1), ol=1),
        *rotated("bfloat16 float16", at(31, 1, 33), at(2, 3, 257), ol=5),
        *rotated("float32", at(2, 3, 3), ol=7),  # results larger than the input
        *rotated("float32", at(2, 3, 26), ol=22),  # in float32, 11 * (26 / 22) is below 13
        *rotated("float32", at(1, 1, 262_147), ol=8209),  # sound; the product of the sizes exceeds 32 bits
    ),
    2: (
        *rotated("float32", at(1, 1, 1, 1), oh=1, ow=1),
        *rotated("bfloat16 float16", at(1, 3, 31, 33), at(3, 1, 17, 13), oh=4, ow=7),
        *rotated("float32", at(2, 3, 3, 5), oh=5, ow=2),
        # windows are equal along one axis alone
        *rotated("float32", at(2, 3, 12, 13), oh=4, ow=5),
        *rotated("float32", at(2, 3, 13, 12), oh=5, ow=4),
        *rotated("float32", at(2, 3, 28, 26), oh=26, ow=22),  # in float32, 11 * (26 / 22) is below 13
    ),
    3: (
        *rotated("float32", at(1, 1, 1, 1, 1), od=1, oh=1, ow=1),
        *rotated("bfloat16 float16", at(1, 2, 3, 5, 31), at(2, 1, 5, 7, 11), od=2, oh=3, ow=5),
        # only one axis changes
        *rotated("float32", at(2, 3, 5, 4, 6), od=1, oh=4, ow=6),
        *rotated("float32", at(2, 3, 4, 5, 6), od=4, oh=2, ow=6),
        *rotated("float32", at(2, 3, 4, 6, 5), od=4, oh=6, ow=3),
        *rotated("float32", at(1, 2, 28, 3, 26), od=26, oh=2, ow=22),  # in float32, 11 * (26 / 22) is below 13
    ),
}
# Tiny numbers divided by the size of a window are so near float16's smallest number that few digits are left.
DIVISIBLE = tuple(name for name in COMMON if name != "tiny")
NOTE = (
    "Along an axis of `size` the window of output o of `count` is floor(o * size / count) up to, not including, "
    "ceil((o + 1) * size / count): windows may overlap, and differ in length by one. "
)


def swapped(points: tuple[Workload, ...]) -> tuple[Workload, ...]:
    """Swap dims and parameters for the backward: sizes that the forward takes as parameters are dims of its inputs."""
    return tuple(
        replace(point, dims=(*point.dims[:2], *point.parameters), parameters=point.dims[2:])  # type: ignore[arg-type]
        for point in points
    )


def taps(rank: int, known: Mapping[str, int]) -> int:
    """Return the number of elements in about the largest window."""
    return math.prod(-(-known[axis] // known[f"o{axis}"]) for axis in AXES[rank])


def for_long_axes(x: torch.Tensor, sizes: Iterable[int], counts: Iterable[int]) -> torch.Tensor:
    """Return the tensor on the CPU if an axis is too long for PyTorch's kernels on a GPU, else as it is.

    On a GPU PyTorch multiplies the axis's size and its number of windows in 32 bits. If the product overflows, the
    results are wrong, or the kernel reads unallocated memory, which ends the process.
    """
    longest = max((size * count for size, count in zip(sizes, counts, strict=True)), default=0)
    return x.cpu() if longest > torch.iinfo(torch.int32).max else x


def adaptive_avg_pool(rank: int) -> Op:
    pool = in_float32_on_cpu(getattr(functional, f"adaptive_avg_pool{rank}d"))

    def reference(x: torch.Tensor, **sizes: int) -> torch.Tensor:
        counts = [sizes[f"o{axis}"] for axis in AXES[rank]]
        return pool(for_long_axes(x, x.shape[2:], counts), counts).to(x.device)

    return Op(
        name=f"adaptive_avg_pool{rank}d",
        note=f"{NOTE}out[o] is the mean of the window.",
        reference=reference,
        inputs=tensors(x=inner(rank)),
        outputs=tensors(out=outer(rank)),
        derived={f"o{axis}": as_given(f"o{axis}") for axis in AXES[rank]} | {"taps": lambda known: taps(rank, known)},
        gpu=GPU[rank],
        emulated=EMULATED[rank],
        awkward=AWKWARD[rank],
        arranged=crowded("x"),
        flops=lambda dims: volume(dims, f"{outer(rank)} taps"),
        tolerance=Tolerance(sums="taps"),  # the default factor suffices for a sum in float32, divided and rounded once
        backward=(f"adaptive_avg_pool{rank}d_backward",),
    )


def adaptive_avg_pool_backward(rank: int) -> Op:
    planes = max(rank, 2)  # PyTorch treats a row as a plane with one row
    backward = in_float32_on_cpu(getattr(torch.ops.aten, f"_adaptive_avg_pool{planes}d_backward"))

    def reference(grad_out: torch.Tensor, **sizes: int) -> torch.Tensor:
        return as_called(wide(grad_out), **sizes).to(grad_out.dtype)

    def as_called(grad_out: torch.Tensor, **sizes: int) -> torch.Tensor:
        shape = *grad_out.shape[:2], *(sizes[axis] for axis in AXES[rank])
        if math.prod(grad_out.shape[2:]) == 1:  # PyTorch takes a mean, whose backward divides and copies
            return grad_out.expand(shape).div(math.prod(shape[2:]))
        given = for_long_axes(grad_out, shape[2:], grad_out.shape[2:])
        x = given.new_empty(shape)  # PyTorch reads only its shape
        if rank == 1:
            return backward(given.unsqueeze(2), x.unsqueeze(2)).squeeze(2).to(grad_out.device)
        return backward(given, x).to(grad_out.device)

    return Op(
        name=f"adaptive_avg_pool{rank}d_backward",
        note=f"{NOTE}grad_x[i] is the sum of grad_out[o] / (elements of window o) over the windows that contain i.",
        reference=reference,
        baseline=as_called,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out=outer(rank)),
        outputs=tensors(grad_x=inner(rank)),
        derived=inner_sizes(rank),
        gpu=swapped(GPU[rank]),
        emulated=swapped(EMULATED[rank]),
        awkward=swapped(AWKWARD[rank]),
        values=DIVISIBLE,
        arranged=crowded("grad_out"),
        flops=lambda dims: volume(dims, inner(rank)),
        # The default factor suffices for a sum of a few windows in float32, rounded once.
    )


ops = tuple(make(rank) for rank in AXES for make in (adaptive_avg_pool, adaptive_avg_pool_backward))
