"""Maximum pooling over one, two or three dims, with the positions of the maxima, and its backward."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.arrangements import crowded, last_bits, many_nan, of_order, planes_of_minus_inf
from reference_ops.op import COMMON, Op, Tensors, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.pooling._windows import (
    AXES,
    at,
    fits,
    inner,
    inner_sizes,
    of_backward,
    outer,
    outer_sizes,
    volume,
)
from reference_ops.precision import wide

ALL = "bfloat16 float32 float16"
GPU: dict[int, tuple[Workload, ...]] = {
    1: (
        *workloads(ALL, at(32, 128, 16000), kernel=4, stride=4, padding=0),  # sound
        *workloads("bfloat16", at(64, 256, 4000), kernel=4, stride=4, padding=0),
        *workloads("float32", at(128, 64, 1024), kernel=3, stride=2, padding=1),
        *workloads("bfloat16", at(33, 65, 9973), kernel=5, stride=3, padding=2),
    ),
    2: (
        *workloads(ALL, at(64, 64, 112, 112), kernel=3, stride=2, padding=1),  # ResNet's stem
        *workloads("bfloat16", at(32, 64, 224, 224), kernel=2, stride=2, padding=0),  # VGG
        *workloads("float32", at(64, 480, 14, 14), kernel=3, stride=1, padding=1),  # Inception
        *workloads("bfloat16", at(32, 512, 20, 20), kernel=5, stride=1, padding=2),  # YOLO
        *workloads("float32", at(31, 67, 113, 111), kernel=3, stride=2, padding=1),
    ),
    3: (
        *workloads(ALL, at(8, 64, 16, 112, 112), kernel=2, stride=2, padding=0),  # C3D, a video
        *workloads("bfloat16", at(8, 64, 8, 112, 112), kernel=3, stride=2, padding=1),  # I3D
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


def max_pool(rank: int) -> Op:
    pool = getattr(functional, f"max_pool{rank}d")

    def reference(x: torch.Tensor, kernel: int, stride: int, padding: int) -> tuple[torch.Tensor, torch.Tensor]:
        out, indices = pool(x, kernel, stride, padding, return_indices=True)
        return out, indices

    return Op(
        name=f"max_pool{rank}d",
        note="`kernel`, `stride` and `padding` are the same along each axis. `indices` are places in the plane of x, "
        f"row-major over its dims {' '.join(AXES[rank])}. Of equal values (-0.0 equals 0.0), including -inf, the first "
        "in row-major order counts; the padding never counts. NaN counts as greater than every number.",
        reference=reference,
        inputs=tensors(x=inner(rank)),
        outputs=tensors(out=outer(rank), indices=f"int64[{outer(rank)}]"),
        derived=outer_sizes(rank),
        gpu=GPU[rank],
        emulated=EMULATED[rank],
        awkward=AWKWARD[rank],
        values=(*COMMON, "ties", "masked", "far_below"),  # the rule for ties is part of the contract
        arranged={**of_order("x"), **many_nan("x"), **planes_of_minus_inf("x"), **last_bits("x"), **crowded("x", 0.2)},
        valid=fits,
        flops=lambda dims: volume(dims, f"{outer(rank)} taps"),
        tolerance=Tolerance(exact=True),  # a selection involves no rounding
        backward=(f"max_pool{rank}d_backward",),
    )


def max_pool_backward(rank: int) -> Op:
    def reference(grad_out: torch.Tensor, indices: torch.Tensor, **known: int) -> torch.Tensor:
        return as_called(wide(grad_out), indices, **known).to(grad_out.dtype)

    def as_called(
        grad_out: torch.Tensor, indices: torch.Tensor, kernel: int, stride: int, padding: int, **sizes: int
    ) -> torch.Tensor:
        # PyTorch reads only the shape of the forward's input.
        x = grad_out.new_empty((*grad_out.shape[:2], *(sizes[axis] for axis in AXES[rank])))
        if rank == 1:  # PyTorch treats a row as a plane with one row
            window = [1, kernel], [1, stride], [0, padding], [1, 1], False, indices.unsqueeze(2)
            lifted = (tensor.unsqueeze(2) for tensor in (grad_out, x))
            row: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(*lifted, *window)
            return row.squeeze(2)
        backward = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices_backward")
        window = [kernel] * rank, [stride] * rank, [padding] * rank, [1] * rank, False, indices
        grad_x: torch.Tensor = backward(grad_out, x, *window)
        return grad_x

    def draw(inputs: Tensors, generator: torch.Generator, known: Mapping[str, int]) -> None:
        """Draw the position of each maximum anywhere inside its window."""
        indices = inputs["indices"].zero_()
        for dim, axis in enumerate(AXES[rank], start=2):
            shape = [-1 if other == dim else 1 for other in range(indices.ndim)]
            first = torch.arange(indices.shape[dim], device=indices.device).mul_(known["stride"]) - known["padding"]
            begin, end = first.clamp(min=0), (first + known["kernel"]).clamp(max=known[axis])
            chance = torch.empty(indices.shape, device=indices.device).uniform_(generator=generator)
            places = chance.mul_((end - begin).view(shape)).to(torch.int64)
            # clamped, because 1 - 2**-24 may be rounded up
            places = torch.minimum(places + begin.view(shape), end.view(shape) - 1)
            indices.mul_(known[axis]).add_(places)

    return Op(
        name=f"max_pool{rank}d_backward",
        note=f"grad_x[i] is the sum of grad_out over the windows whose index is i; `indices` are as max_pool{rank}d "
        "gives them, each inside its own window.",
        reference=reference,
        baseline=as_called,
        baseline_free=("grad_x",),  # in 16 bits PyTorch may round at every step
        inputs=tensors(grad_out=outer(rank), indices=f"int64[{outer(rank)}]"),
        outputs=tensors(grad_x=inner(rank)),
        derived={**inner_sizes(rank), **outer_sizes(rank)},
        gpu=of_backward(GPU[rank]),
        emulated=of_backward(EMULATED[rank]),
        awkward=of_backward(AWKWARD[rank]),
        values=(*COMMON, "integers"),  # integers stay exact, because the op only adds
        draw=draw,
        valid=fits,
        flops=lambda dims: volume(dims, outer(rank)),
    )


ops = tuple(make(rank) for rank in AXES for make in (max_pool, max_pool_backward))
