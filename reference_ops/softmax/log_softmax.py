"""The logarithm of a softmax over the last dim, and its backward."""

import torch

from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.scores import last_ahead
from reference_ops.softmax.softmax import FEW_INFINITIES


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x, dim=-1)


def log_softmax_backward(grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten._log_softmax_backward_data(grad_out, out, -1, out.dtype)  # noqa: SLF001 - its name
    return grad_x


def as_forward_left(inputs: Tensors, _: torch.Generator) -> None:
    """Make `out` the logarithm of a softmax, and the gradient finite where `out` is not."""
    inputs["out"].copy_(torch.log_softmax(inputs["out"], dim=-1))
    inputs["grad_out"].masked_fill_(inputs["grad_out"].isinf(), 0.0)


forward = Op(
    name="log_softmax",
    note="x minus the logarithm of the sum of exp(x), per row; -inf stays -inf.",
    reference=log_softmax,
    inputs=tensors(x="rows cols"),
    outputs=tensors(out="rows cols"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"rows": 4096, "cols": 32000}),
        *workloads("bfloat16", {"rows": 2048, "cols": 128256}, {"rows": 4096, "cols": 50257}),  # vocabularies
        *workloads("float32", {"rows": 32768, "cols": 1000}),  # classes of images
        *workloads("bfloat16", {"rows": 65536, "cols": 1025}),  # frames and tokens of a speech model
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
    values=(*COMMON, "masked", "far_below"),  # logits of excluded tokens are -inf
    arranged=last_ahead("x"),
    nan_spreads=True,  # `nan_spreads` also holds in rows of one column
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],  # a comparison, a subtraction, an exponential and an addition
    # The default factor suffices: PyTorch also accumulates in float32 and rounds once.
    tolerance=Tolerance(sums="cols"),
    backward=("log_softmax_backward",),
)  # fmt: skip
backward = Op(
    name="log_softmax_backward",
    note="grad_x = grad_out - exp(out) * sum of grad_out over the row, where out is what log_softmax returned.",
    reference=log_softmax_backward,
    inputs=tensors(grad_out="rows cols", out="rows cols"),
    outputs=tensors(grad_x="rows cols"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"rows": 2048, "cols": 32000}),
        *workloads("bfloat16", {"rows": 1024, "cols": 128256}, {"rows": 2048, "cols": 50257}),
        *workloads("float32", {"rows": 32768, "cols": 1000}),
        *workloads("bfloat16", {"rows": 65536, "cols": 1025}),
    ),
    emulated=forward.emulated,
    awkward=forward.awkward,
    # With a constant gradient, the true result is zero, and only the rounding of a sum is left.
    values=tuple(name for name in forward.values if name not in ("constant", "far_below")),
    draw=as_forward_left,
    arranged=FEW_INFINITIES,
    flops=lambda dims: 4 * dims["rows"] * dims["cols"],
    # The default factor suffices, as in the forward.
    tolerance=Tolerance(sums="cols"),
)
ops = (forward, backward)
