"""Local response normalisation across channels, as in AlexNet and GoogLeNet, and its backward."""

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import Op, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide

ALEXNET = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}
GOOGLENET = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0}
NARROW = {"size": 2, "alpha": 2e-2, "beta": 0.5, "k": 1.5}


def local_response_norm(x: torch.Tensor, size: int, alpha: float, beta: float, k: float) -> torch.Tensor:
    return functional.local_response_norm(wide(x), size, alpha, beta, k).to(x.dtype)


def as_called(x: torch.Tensor, size: int, alpha: float, beta: float, k: float) -> torch.Tensor:
    """Call PyTorch's own function, in float32 on a CPU, which has no average pools of 16-bit numbers."""
    given = wide(x) if x.is_cpu else x
    return functional.local_response_norm(given, size, alpha, beta, k).to(x.dtype)


def local_response_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, size: int, alpha: float, beta: float, k: float
) -> torch.Tensor:
    grad, value = wide(grad_out), wide(x)
    before, after = size // 2, (size - 1) // 2
    scale = windows(value.square(), size, before, after).mul_(alpha).add_(k)
    power = scale.pow(-beta)
    others = windows(grad * value * power / scale, size, after, before)  # number of windows that contain a channel
    return (grad * power - 2 * alpha * beta * value * others).to(x.dtype)


def windows(x: torch.Tensor, size: int, before: int, after: int) -> torch.Tensor:
    """Return the mean over some channels before and after each channel, with zeros beyond the ends."""
    padded = functional.pad(x.unsqueeze(1), (0, 0, 0, 0, before, after))
    return functional.avg_pool3d(padded, (size, 1, 1), stride=1).squeeze(1)


def at(batch: int, channels: int, height: int, width: int) -> dict[str, int]:
    return {"batch": batch, "channels": channels, "height": height, "width": width}


def elements(dims: Mapping[str, int]) -> int:
    return dims["batch"] * dims["channels"] * dims["height"] * dims["width"]


def is_tame(known: Mapping[str, Any]) -> bool:
    """Return whether results stay representable: with larger beta, powers of 1e5 would make them vanish in float16."""
    return known["beta"] <= 1 and known["k"] >= 0.5  # type: ignore[no-any-return]


GPU = (
    *workloads("bfloat16 float32 float16", at(128, 96, 55, 55), **ALEXNET),
    *workloads("bfloat16", at(128, 256, 27, 27), **ALEXNET),
    *workloads("bfloat16 float32", at(128, 192, 56, 56), **GOOGLENET),
    *workloads("float32", at(17, 61, 29, 31), **NARROW),
)
EMULATED = (
    *workloads("float32 bfloat16 float16", at(9, 16, 7, 9), **ALEXNET),
    *workloads("float32 bfloat16", at(8, 24, 5, 6), **NARROW),
)
AWKWARD = (
    *rotated("float32 bfloat16 float16", at(1, 1, 1, 1), at(33, 2, 1, 31), at(2, 31, 3, 5), **GOOGLENET),
    *rotated("bfloat16 float16 float32", at(1, 257, 1, 3), at(5, 3, 17, 13), at(31, 33, 1, 1), **NARROW),
    *rotated("float32 float16", at(3, 7, 5, 11), at(2, 4, 1, 127), size=8, alpha=1e-3, beta=1.0, k=1.0),
    *rotated("bfloat16 float32", at(2, 67, 3, 5), at(3, 41, 2, 7), size=37, alpha=1e-2, beta=0.75, k=1.0),
)
ops = (
    Op(
        name="local_response_norm",
        note="out = x / (k + alpha * m) ** beta, where m is the sum of the squares of x at the same pixel over the "
        "channels c - size // 2 to c + (size - 1) // 2 that exist, always divided by `size`.",
        reference=local_response_norm,
        baseline=as_called,
        baseline_free=("out",),  # in 16 bits PyTorch rounds at every step
        inputs=tensors(x="batch channels height width"),
        outputs=tensors(out="batch channels height width"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        valid=is_tame,
        flops=lambda dims: 8 * elements(dims),  # a sliding sum of squares, a power and a product
        tolerance=Tolerance(),  # the default factor suffices: PyTorch also computes in float32 and rounds once
        backward=("local_response_norm_backward",),
    ),
    Op(
        name="local_response_norm_backward",
        note="With d = k + alpha * m as in the forward: grad_x[c] = grad_out[c] * d[c] ** -beta - 2 * alpha * beta / "
        "size * x[c] * (the sum of grad_out[j] * x[j] * d[j] ** (-beta - 1) over the channels j whose windows hold c, "
        "which are c - (size - 1) // 2 to c + size // 2).",
        reference=local_response_norm_backward,
        inputs=tensors(grad_out="batch channels height width", x="batch channels height width"),
        outputs=tensors(grad_x="batch channels height width"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        valid=is_tame,
        flops=lambda dims: 18 * elements(dims),
        tolerance=Tolerance(),  # the default factor suffices: PyTorch also computes in float32 and rounds once
    ),
)
