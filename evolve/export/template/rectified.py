"""Ops that end with ReLU: their gradients are those of the op without it, where the output is positive.

The output is kept and nothing is computed again. Ops that end with GELU or SiLU have no such gradients: they need the
values before the activation, which a fused kernel does not write, and computing these again would take as long as the
forward.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from reference_ops.op import Op, tensors, workloads

Tensors = tuple[Tensor, ...]


def linear_backward_data(grad_out: Tensor, weight: Tensor) -> Tensor:
    return grad_out @ weight


def linear_backward_weight(grad_out: Tensor, x: Tensor) -> Tensor:
    return grad_out.t() @ x


def linear_backward_bias(grad_out: Tensor) -> Tensor:
    return grad_out.sum(0)


def _of_linear(reference: Callable[..., Tensor], inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Op:
    """Return a backward op of a linear layer, which PyTorch computes."""
    size = workloads("float32", {"m": 1, "n": 1, "k": 1})
    return Op(
        name=reference.__name__,
        reference=reference,
        baseline=reference,
        inputs=tensors(**inputs),
        outputs=tensors(**outputs),
        gpu=size,
        emulated=size,
        flops=lambda dims: dims["m"] * dims["n"],
    )


GRAD_OUT = {"grad_out": "m n"}
OF_LINEAR = (
    _of_linear(linear_backward_data, {**GRAD_OUT, "weight": "n k"}, {"grad_x": "m k"}),
    _of_linear(linear_backward_weight, {**GRAD_OUT, "x": "m k"}, {"grad_weight": "n k"}),
    _of_linear(linear_backward_bias, GRAD_OUT, {"grad_bias": "n"}),
)
# The backward ops, by name or as ops that are not in the catalog.
RECTIFIED: Mapping[str, tuple[str | Op, ...]] = {
    "conv2d_bias_relu": ("conv2d_backward_data", "conv2d_backward_weight", "conv2d_bias_backward_bias"),
    "gemm_bias_relu": OF_LINEAR,
}


def before_relu(grad_out: Tensor, out: Tensor) -> Tensor:
    """Return the gradient before ReLU, as PyTorch computes it."""
    return torch.ops.aten.threshold_backward(grad_out, out, 0)  # type: ignore[no-any-return]
