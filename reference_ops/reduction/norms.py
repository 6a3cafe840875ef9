"""The Euclidean norm of rows, and rows divided by their norm."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide

DOWN = 2.0**-6
EPS = 1e-12  # PyTorch's default; smaller norms are replaced by it


def l2_norm(x: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm


def l2_norm_backward(grad_out: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return x * (grad_out / out).masked_fill(out == 0, 0).unsqueeze(-1)


def l2_normalize(x: torch.Tensor) -> torch.Tensor:
    return normalize_as_called(wide(x)).to(x.dtype)


def normalize_as_called(x: torch.Tensor) -> torch.Tensor:
    """Call PyTorch's own function, which rounds the norm to the dtype. The norm of long rows overflows float16."""
    return functional.normalize(x, dim=-1, eps=EPS)


def l2_normalize_backward(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    inside = torch.promote_types(x.dtype, torch.float32)
    gradient, values = grad_out.to(inside), x.to(inside)
    norm = l2_norm(values).unsqueeze(-1).clamp_min(EPS)
    # Computed in the order of autograd, with its usual roundings. In a row with one value that is not zero, value /
    # norm is exactly 1, and no kernel that multiplies by 1 / norm could be as exact.
    along = (gradient * (values / norm / norm)).sum(-1, keepdim=True)
    return (gradient / norm - values * (along / norm)).to(x.dtype)


def near_eps(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Scale each row so that its norm lies between a third and three times the eps, which float16 cannot hold."""
    x = inputs["x"]
    factors = torch.empty((len(x), 1), device=x.device).uniform_(-1, 1, generator=generator).mul_(math.log(3)).exp_()
    x.copy_(functional.normalize(x.double(), dim=-1) * EPS * factors)


def draw_norm(inputs: Tensors, _: torch.Generator) -> None:
    inputs["out"].copy_(l2_norm(inputs["x"]))


def draw_short(inputs: Tensors, _: torch.Generator) -> None:
    """Scale rows down in float16: the gradients of long rows are too small for its digits."""
    if inputs["x"].dtype == torch.float16:
        inputs["x"].mul_(DOWN)


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


GPU = (
    *workloads("bfloat16 float32 float16", at(8192, 8192)),
    *workloads("bfloat16", at(65536, 768)),  # embeddings of texts and images
    *workloads("bfloat16", at(262144, 128)),  # queries and keys, head by head
    *workloads("float32", at(4099, 5003)),
)
EMULATED = workloads("float32 bfloat16 float16", at(64, 256), at(16, 1024))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 17), at(31, 33), at(33, 31), at(7, 257), at(5, 1000), at(3, 1023), at(2, 4104), at(19, 2), at(9, 5),
)  # fmt: skip
SINGLE = workloads("float32", at(5, 1))
VALUES = tuple(name for name in COMMON if name != "tiny")  # their squares underflow float32, also in PyTorch

ops = (
    Op(
        name="l2_norm",
        note="The Euclidean norm of each row, over the last dim.",
        reference=l2_norm,
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="rows"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=(*AWKWARD, *SINGLE),
        values=VALUES,
        flops=lambda dims: 2 * dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32, rounded once.
        tolerance=Tolerance(sums="cols", relative=True),
        backward=("l2_norm_backward",),
    ),
    Op(
        name="l2_norm_backward",
        note="grad_x = x * grad_out / out, row by row, where out is the norm of the row; 0 in rows whose norm is 0.",
        reference=l2_norm_backward,
        inputs=tensors(grad_out="rows", x="rows cols", out="rows"),
        outputs=tensors(grad_x="rows cols"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=(*AWKWARD, *SINGLE),
        values=VALUES,
        draw=draw_norm,
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices: PyTorch also rounds the quotient.
    ),
    Op(
        name="l2_normalize",
        note=f"Each row divided by its Euclidean norm, or by {EPS} if that is larger, computed in float32.",
        reference=l2_normalize,
        baseline=normalize_as_called,
        baseline_free=("out",),  # in 16 bits PyTorch rounds the norm, which may overflow
        inputs=tensors(x="rows cols"),
        outputs=tensors(out="rows cols"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=(*AWKWARD, *SINGLE),
        values=VALUES,
        arranged={"norms_near_eps": near_eps},
        flops=lambda dims: 3 * dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32, rounded once.
        tolerance=Tolerance(sums="cols"),
        backward=("l2_normalize_backward",),
    ),
    Op(
        name="l2_normalize_backward",
        note=f"With norm = max(norm of the row of x, {EPS}) and unit = x / norm: "
        "grad_x = (grad_out - unit * sum(grad_out * unit)) / norm, computed in float32.",
        reference=l2_normalize_backward,
        inputs=tensors(grad_out="rows cols", x="rows cols"),
        outputs=tensors(grad_x="rows cols"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        # Where the gradient and the row are almost parallel, as in constant rows, the result is rounding error.
        values=("uniform", "large", "heavy_tail"),
        valid=lambda known: known["cols"] > 1,  # a row of one element is parallel to its gradient
        draw=draw_short,
        arranged={"norms_near_eps": near_eps},
        flops=lambda dims: 8 * dims["rows"] * dims["cols"],
        # The default factor suffices for sums in float32, rounded once.
        tolerance=Tolerance(sums="cols"),
    ),
)
