"""The Huber loss, quadratic for small differences and linear for large differences, and its backward."""

import torch
from torch.nn import functional

from reference_ops.loss._elementwise import elementwise


def huber(x: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    return functional.huber_loss(x, target, delta=delta)


def huber_backward(grad_loss: torch.Tensor, x: torch.Tensor, target: torch.Tensor, delta: float) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten.huber_loss_backward(grad_loss, x, target, 1, delta)
    return grad_x


ops = elementwise(
    "huber",
    (
        "d^2 / 2 where |d| <= delta, else delta * (|d| - delta / 2), where d = x - target",
        "x - target, clamped to within delta",
    ),
    huber,
    huber_backward,
    flops=6,
    valid=lambda known: known["delta"] >= 0,
    delta=1.0,
)
