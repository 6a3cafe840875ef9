"""Upsampling and downsampling of images: bilinear to any size, nearest by whole factors, and their backward."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from reference_ops.arrangements import mostly_zero
from reference_ops.op import COMMON, NOT_FINITE, Op, Tolerance, Workload, rotated, tensors, workloads
from reference_ops.precision import wide

aten = torch.ops.aten
LARGEST_FACTOR = 5


def upsample_bilinear(x: torch.Tensor, oh: int, ow: int) -> torch.Tensor:
    given = wide(x) if x.is_cpu else x  # on a GPU PyTorch computes in float32 by default
    return functional.interpolate(given, (oh, ow), mode="bilinear", align_corners=False).to(x.dtype)


def upsample_bilinear_backward(grad_out: torch.Tensor, h: int, w: int) -> torch.Tensor:
    return bilinear_backward_as_called(wide(grad_out), h, w).to(grad_out.dtype)


def bilinear_backward_as_called(grad_out: torch.Tensor, h: int, w: int) -> torch.Tensor:
    batch, channels, oh, ow = grad_out.shape
    found: torch.Tensor = aten.upsample_bilinear2d_backward(grad_out, [oh, ow], [batch, channels, h, w], False)
    return found


def upsample_nearest(x: torch.Tensor, factor: int) -> torch.Tensor:
    return functional.interpolate(x, (x.shape[2] * factor, x.shape[3] * factor), mode="nearest")


def upsample_nearest_backward(grad_out: torch.Tensor, factor: int) -> torch.Tensor:
    given = wide(grad_out) if grad_out.is_cpu else grad_out  # on a GPU PyTorch sums in float32 by default
    batch, channels, oh, ow = grad_out.shape
    sizes = [oh, ow], [batch, channels, oh // factor, ow // factor]
    found: torch.Tensor = aten.upsample_nearest2d_backward(given, *sizes)
    return found.to(grad_out.dtype)


def at(batch: int, channels: int, h: int, w: int, *resized: int) -> dict[str, int]:
    return dict(zip(("batch", "channels", "h", "w", "oh", "ow"), (batch, channels, h, w, *resized), strict=False))


def resized_as_parameters(points: tuple[Workload, ...], *, backward: bool) -> tuple[Workload, ...]:
    """Return workloads with a size as a parameter: of the result for the forward, of the image for the backward."""
    parts = [(point.dtype, point.dims[:2], point.dims[2:4], point.dims[4:]) for point in points]
    return tuple(Workload(kind, (*maps, *(big if backward else small)), small if backward else big)
                 for kind, maps, small, big in parts)  # fmt: skip


def elements(dims: Mapping[str, int], height: str, width: str) -> int:
    return dims["batch"] * dims["channels"] * dims[height] * dims[width]


def lines(size: int, resized: int) -> int:
    """Return the number of rows or columns on which a bilinear result depends, which may be smaller than the image."""
    # The positions of the results' centres, times twice `resized` to keep them integers.
    centres = (max(0, (2 * i + 1) * size - resized) for i in range(resized))
    taken = {at for c in centres for at in (c // (2 * resized), -(-c // (2 * resized)))}
    return len({min(at, size - 1) for at in taken})


GPU = (
    *workloads("bfloat16 float32 float16", at(16, 128, 128, 128, 256, 256)),  # a U-Net's decoder
    *workloads("bfloat16", at(8, 768, 32, 32, 128, 128)),  # SegFormer's head
    *workloads("float32", at(16, 21, 65, 65, 513, 513)),  # DeepLab's scores
    *workloads("float32", at(32, 3, 720, 1280, 224, 224)),  # frames for a classifier
    *workloads("bfloat16", at(7, 61, 97, 131, 211, 101)),
)
EMULATED = workloads("float32 bfloat16 float16", at(9, 3, 8, 9, 16, 18), at(8, 2, 17, 9, 11, 26))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1, 1, 1, 1, 1), at(2, 1, 1, 33, 3, 31), at(31, 3, 5, 1, 1, 7), at(1, 33, 7, 31, 15, 1),
    at(3, 2, 31, 33, 5, 5), at(1, 2, 3, 2, 17, 33),
)  # fmt: skip
NEAREST_GPU = (
    *workloads("bfloat16 float32 float16", at(16, 640, 32, 32), factor=2),  # the decoder of a denoiser
    *workloads("bfloat16", at(4, 512, 128, 128), factor=2),  # the decoder of its autoencoder
    *workloads("float32", at(32, 256, 40, 40), factor=2),  # a feature pyramid
    *workloads("bfloat16", at(8, 64, 64, 64), factor=4),
    *workloads("bfloat16", at(7, 61, 97, 131), factor=3),
)
NEAREST_EMULATED = (
    *workloads("float32 bfloat16 float16", at(9, 3, 8, 9), factor=2),
    *workloads("float32 bfloat16 float16", at(8, 2, 7, 5), factor=3),
)
NEAREST_AWKWARD = (
    *rotated("float32 bfloat16 float16", at(1, 1, 1, 1), at(2, 1, 1, 33), at(31, 3, 5, 1), factor=1),
    *rotated("bfloat16 float16 float32", at(1, 33, 7, 31), at(3, 2, 31, 3), at(1, 257, 1, 2), factor=5),
)
RESIZED = {"oh": lambda known: known["oh"], "ow": lambda known: known["ow"]}
ORIGINAL = {"h": lambda known: known["h"], "w": lambda known: known["w"]}
TIMES_FACTOR = {"oh": lambda known: known["h"] * known["factor"], "ow": lambda known: known["w"] * known["factor"]}
# Sums of many large numbers overflow float16.
MODERATE = tuple(name for name in COMMON if name not in ("heavy_tail", "shifted"))

OF_NO_SHARE = dict.fromkeys(NOT_FINITE, "whether a pixel is multiplied by its share of zero is left open")
bilinear = (
    Op(
        name="upsample_bilinear",
        note="Output row i lies at row max(0, (i + 0.5) * h / oh - 0.5) of x, and is the mean of the rows above and "
        "below that position, weighted by nearness; below the last row, it is the last row. Columns are treated "
        "in the same way. (align_corners=False, "
        "no antialiasing; oh and ow may be smaller than h and w.)",
        reference=upsample_bilinear,
        inputs=tensors(x="batch channels h w"),
        outputs=tensors(out="batch channels oh ow"),
        derived=RESIZED,
        gpu=resized_as_parameters(GPU, backward=False),
        emulated=resized_as_parameters(EMULATED, backward=False),
        awkward=resized_as_parameters(AWKWARD, backward=False),
        touched={"x": lambda d: d["batch"] * d["channels"] * lines(d["h"], d["oh"]) * lines(d["w"], d["ow"])},
        exempt=OF_NO_SHARE,
        flops=lambda dims: 8 * elements(dims, "oh", "ow"),
        tolerance=Tolerance(),  # the default factor suffices for positions and weights in float32
        backward=("upsample_bilinear_backward",),
    ),
    Op(
        name="upsample_bilinear_backward",
        note="grad_x of a pixel is the sum of grad_out times the weight of that pixel in the forward, as in "
        "upsample_bilinear; every element is written. PyTorch adds with atomics on a GPU.",
        reference=upsample_bilinear_backward,
        baseline=bilinear_backward_as_called,
        baseline_free=("grad_x",),  # in 16 bits PyTorch rounds at every step
        inputs=tensors(grad_out="batch channels oh ow"),
        outputs=tensors(grad_x="batch channels h w"),
        derived=ORIGINAL,
        gpu=resized_as_parameters(GPU, backward=True),
        emulated=resized_as_parameters(EMULATED, backward=True),
        awkward=resized_as_parameters(AWKWARD, backward=True),
        arranged=mostly_zero("grad_out"),
        values=MODERATE,
        exempt=OF_NO_SHARE,
        flops=lambda dims: 8 * elements(dims, "oh", "ow"),
        tolerance=Tolerance(),  # the default factor suffices for sums in float32, rounded once
    ),
)
nearest = (
    Op(
        name="upsample_nearest",
        note="out[b, c, i, j] = x[b, c, i // factor, j // factor].",
        reference=upsample_nearest,
        inputs=tensors(x="batch channels h w"),
        outputs=tensors(out="batch channels oh ow"),
        derived=TIMES_FACTOR,
        gpu=NEAREST_GPU,
        emulated=NEAREST_EMULATED,
        awkward=NEAREST_AWKWARD,
        valid=lambda known: known["factor"] <= LARGEST_FACTOR,  # above this factor, PyTorch's own quotients are inexact
        flops=lambda dims: elements(dims, "oh", "ow"),
        tolerance=Tolerance(exact=True),  # no arithmetic: the op only moves numbers
        backward=("upsample_nearest_backward",),
    ),
    Op(
        name="upsample_nearest_backward",
        note="grad_x[b, c, i, j] is the sum of grad_out over the factor * factor elements made from the pixel.",
        reference=upsample_nearest_backward,
        inputs=tensors(grad_out="batch channels oh ow"),
        outputs=tensors(grad_x="batch channels h w"),
        derived=TIMES_FACTOR,
        gpu=NEAREST_GPU,
        emulated=NEAREST_EMULATED,
        awkward=NEAREST_AWKWARD,
        arranged=mostly_zero("grad_out"),
        values=(*MODERATE, "integers"),  # integers stay exact, because the op only adds
        valid=lambda known: known["factor"] <= LARGEST_FACTOR,
        flops=lambda dims: elements(dims, "oh", "ow"),
        tolerance=Tolerance(),  # the default factor suffices for sums in float32, rounded once
    ),
)
ops = (*bilinear, *nearest)
