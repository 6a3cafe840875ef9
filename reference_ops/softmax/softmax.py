"""Softmax over the last dim, and its backward."""

import math

import torch

from reference_ops.arrangements import sprinkled
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide
from reference_ops.scores import last_ahead

# The common part of a row's gradients cancels and leaves only rounding, so "shifted" and "constant" are left out.
# "tiny" gradients times a probability are below float16's smallest number.
OF_GRADIENTS = (*(name for name in COMMON if name not in ("shifted", "constant", "tiny")), "masked")
# few of them, so that some rows have one, which makes the others infinite, and some two
FEW_INFINITIES = sprinkled("grad_out", 1 / 256, infinity=math.inf)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def softmax_backward(grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return backward_as_called(wide(grad_out), wide(out)).to(out.dtype)


def backward_as_called(grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Call PyTorch's own backward. In 16 bits, a GPU rounds every grad_out * out before it subtracts."""
    grad_x: torch.Tensor = torch.ops.aten._softmax_backward_data(grad_out, out, -1, out.dtype)  # noqa: SLF001 - its name
    return grad_x


def as_forward_left(inputs: Tensors, _: torch.Generator) -> None:
    """Make `out` a softmax.

    No probability is near 1: otherwise the gradient would be a difference of almost equal numbers and thus consist of
    rounding errors. Where logits were -inf, `out` is 0, and the gradient stays finite.
    """
    inputs["out"].copy_(torch.softmax(inputs["out"].clamp(max=4), dim=-1))
    inputs["grad_out"].masked_fill_(inputs["grad_out"].isinf(), 0.0)


op = Op(
    name="softmax",
    note="Softmax over the last dim of a matrix.",
    reference=softmax,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=(
        *workloads("bfloat16", {"rows": 32768, "cols": 256}),
        *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}),
        *workloads("bfloat16", {"rows": 4096, "cols": 16384}),
        *workloads("bfloat16 float32", {"rows": 1024, "cols": 131072}),  # a vocabulary
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", {"rows": 64, "cols": 256}, {"rows": 16, "cols": 1024}),
        *workloads("float32 bfloat16", {"rows": 2, "cols": 8192}),
    ),
    awkward=rotated(
        "float32 bfloat16 float16",
        {"rows": 1, "cols": 1}, {"rows": 31, "cols": 33}, {"rows": 33, "cols": 31}, {"rows": 7, "cols": 257},
        {"rows": 5, "cols": 1000}, {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
    ),
    nan_spreads=True,  # `nan_spreads` also holds in rows of one column
    values=(*COMMON, "masked", "far_below"),  # a causal or padding mask is -inf before a softmax
    arranged=last_ahead("x"),
    # a comparison, a subtraction, an addition, a multiplication and an exponential
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],
    # The default factor suffices: PyTorch also accumulates in float32 and rounds once.
    tolerance=Tolerance(sums="cols", relative=True),
    backward=("softmax_backward",),
)  # fmt: skip
backward = Op(
    name="softmax_backward",
    note="grad_x = out * (grad_out - sum of grad_out * out over the row), where out is the output of softmax.",
    reference=softmax_backward,
    baseline=backward_as_called,
    baseline_free=("grad_x",),  # in short rows, the rounding of a product exceeds a small difference
    inputs=tensors(grad_out="rows cols", out="rows cols"),
    outputs=tensors(grad_x="rows cols"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"rows": 8192, "cols": 4096}),
        *workloads("bfloat16", {"rows": 64 * 12 * 197, "cols": 197}),  # attention of a vision transformer
        *workloads("float32", {"rows": 32768, "cols": 256}),
        *workloads("bfloat16", {"rows": 4096, "cols": 16384}, {"rows": 1024, "cols": 131072}),
    ),
    emulated=op.emulated,
    awkward=op.awkward,
    values=OF_GRADIENTS,
    draw=as_forward_left,
    arranged=FEW_INFINITIES,
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],
    # The default factor suffices: PyTorch also sums in float32 and rounds once.
    tolerance=Tolerance(sums="cols"),
)  # fmt: skip
ops = (op, backward)
