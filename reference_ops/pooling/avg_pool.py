"""Average pooling over one, two or three dims, and its backward."""

import torch
from torch.nn import functional

from reference_ops.arrangements import crowded
from reference_ops.op import Op, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.pooling._windows import (
    AXES,
    at,
    fits,
    fits_inside,
    inner,
    inner_sizes,
    of_backward,
    outer,
    outer_sizes,
    volume,
)
from reference_ops.precision import in_float32_on_cpu, wide

ALL = "bfloat16 float32 float16"
GPU: dict[int, tuple[Workload, ...]] = {
    1: (
        *workloads(ALL, at(32, 128, 16000), kernel=4, stride=4, padding=0),  # sound
        *workloads("bfloat16", at(64, 512, 4096), kernel=2, stride=2, padding=0),
        *workloads("float32", at(256, 64, 720), kernel=25, stride=1, padding=12),  # the trend of a time series
        *workloads("bfloat16", at(33, 65, 9973), kernel=5, stride=3, padding=2),
    ),
    2: (
        *workloads(ALL, at(64, 256, 56, 56), kernel=2, stride=2, padding=0),  # DenseNet
        *workloads("float32", at(64, 288, 35, 35), kernel=3, stride=1, padding=1),  # Inception
        *workloads("bfloat16", at(32, 96, 112, 112), kernel=3, stride=1, padding=1),  # PoolFormer
        *workloads("bfloat16", at(256, 2048, 7, 7), kernel=7, stride=7, padding=0),  # the head of ResNet-50
        *workloads("float32", at(31, 67, 113, 111), kernel=3, stride=2, padding=1),
    ),
    3: (
        *workloads(ALL, at(8, 64, 16, 112, 112), kernel=2, stride=2, padding=0),  # a video
        *workloads("bfloat16", at(8, 192, 16, 28, 28), kernel=3, stride=2, padding=1),
        *workloads("float32", at(1, 32, 96, 96, 96), kernel=2, stride=2, padding=0),  # a U-Net in 3d
        *workloads("bfloat16", at(3, 33, 17, 57, 59), kernel=3, stride=2, padding=1),
    ),
}
EMULATED = {
    1: (
        *workloads(ALL, at(4, 8, 512), kernel=4, stride=4, padding=0),
        *workloads("float32 bfloat16", at(3, 4, 301), kernel=3, stride=2, padding=1),
    ),
    2: (
        *workloads(ALL, at(2, 4, 32, 32), kernel=3, stride=2, padding=1),
        *workloads("float32 bfloat16", at(2, 3, 28, 20), kernel=2, stride=2, padding=0),
    ),
    3: (
        *workloads(ALL, at(2, 4, 8, 12, 12), kernel=2, stride=2, padding=0),
        *workloads("float32 bfloat16", at(1, 4, 7, 11, 13), kernel=3, stride=2, padding=1),
    ),
}
AWKWARD = {
    1: (
        *rotated("float32", at(1, 1, 1), kernel=1, stride=1, padding=0),
        *rotated("bfloat16 float16", at(31, 1, 33), at(2, 3, 257), kernel=5, stride=3, padding=2),
        *rotated("float32", at(3, 5, 131), kernel=7, stride=1, padding=3),
        *rotated("float32", at(2, 3, 5), kernel=5, stride=2, padding=2),  # a window as large as the row
    ),
    2: (
        *rotated("float32", at(1, 1, 1, 1), kernel=1, stride=1, padding=0),
        *rotated("bfloat16 float16", at(1, 3, 31, 33), at(3, 1, 17, 13), kernel=5, stride=3, padding=2),
        *rotated("float32", at(2, 5, 19, 23), kernel=5, stride=1, padding=2),
        *rotated("float32", at(2, 3, 3, 3), kernel=3, stride=2, padding=1),  # a window as large as the plane
        *rotated("float32", at(2, 3, 5, 5), kernel=5, stride=1, padding=2),
    ),
    3: (
        *rotated("float32", at(1, 1, 1, 1, 1), kernel=1, stride=1, padding=0),
        *rotated("bfloat16 float16", at(1, 2, 3, 5, 31), at(2, 1, 5, 7, 11), kernel=3, stride=1, padding=1),
        *rotated("float32", at(2, 3, 3, 3, 3), kernel=3, stride=2, padding=1),  # a window as large as the volume
    ),
}


def avg_pool(rank: int) -> Op:
    pool = in_float32_on_cpu(getattr(functional, f"avg_pool{rank}d"))

    def reference(x: torch.Tensor, kernel: int, stride: int, padding: int) -> torch.Tensor:
        return pool(x, kernel, stride, padding)

    return Op(
        name=f"avg_pool{rank}d",
        note="`kernel`, `stride` and `padding` are the same along each axis. The padding counts as zeros: every sum "
        f"is divided by kernel ** {rank}.",
        reference=reference,
        inputs=tensors(x=inner(rank)),
        outputs=tensors(out=outer(rank)),
        derived=outer_sizes(rank),
        gpu=GPU[rank],
        emulated=EMULATED[rank],
        awkward=AWKWARD[rank],
        valid=fits_inside if rank == 3 else fits,
        arranged=crowded("x"),
        flops=lambda dims: volume(dims, f"{outer(rank)} taps"),
        tolerance=Tolerance(sums="taps"),  # the default factor suffices for a sum in float32, divided and rounded once
        backward=(f"avg_pool{rank}d_backward",),
    )


def avg_pool_backward(rank: int) -> Op:
    planes = max(rank, 2)  # PyTorch treats a row as a plane with one row
    backward = in_float32_on_cpu(getattr(torch.ops.aten, f"avg_pool{planes}d_backward"))

    def reference(grad_out: torch.Tensor, **known: int) -> torch.Tensor:
        return as_called(wide(grad_out), **known).to(grad_out.dtype)

    def as_called(grad_out: torch.Tensor, kernel: int, stride: int, padding: int, **sizes: int) -> torch.Tensor:
        # PyTorch reads only the shape of the forward's input.
        x = grad_out.new_empty((*grad_out.shape[:2], *(sizes[axis] for axis in AXES[rank])))
        if rank == 1:
            window = [1, kernel], [1, stride], [0, padding]
            return backward(grad_out.unsqueeze(2), x.unsqueeze(2), *window, False, True, None).squeeze(2)
        return backward(grad_out, x, [kernel] * rank, [stride] * rank, [padding] * rank, False, True, None)

    return Op(
        name=f"avg_pool{rank}d_backward",
        note=f"grad_x[i] is the sum of grad_out / kernel ** {rank} over the windows that contain i.",
        reference=reference,
        baseline=as_called,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out=outer(rank)),
        outputs=tensors(grad_x=inner(rank)),
        derived={**inner_sizes(rank), **outer_sizes(rank)},
        gpu=of_backward(GPU[rank]),
        emulated=of_backward(EMULATED[rank]),
        awkward=of_backward(AWKWARD[rank]),
        valid=fits_inside if rank == 3 else fits,
        arranged=crowded("grad_out"),
        flops=lambda dims: volume(dims, f"{outer(rank)} taps"),
        # The default factor suffices for a sum of a few windows in float32, rounded once.
    )


ops = tuple(make(rank) for rank in AXES for make in (avg_pool, avg_pool_backward))
