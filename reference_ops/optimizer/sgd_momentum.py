"""A step of stochastic gradient descent with momentum on a flat vector of parameters, with the momentum in float32."""

import torch

from reference_ops.arrangements import unused
from reference_ops.op import Number, Op, rotated, tensors, workloads


def sgd_momentum(
    param: torch.Tensor,
    grad: torch.Tensor,
    momentum_buffer: torch.Tensor,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    wide = param.to(momentum_buffer.dtype)
    buffer = momentum * momentum_buffer + (grad.to(wide.dtype) + weight_decay * wide)
    return (wide - lr * buffer).to(param.dtype), buffer


SETTINGS: dict[str, Number] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4}

op = Op(
    name="sgd_momentum",
    note="new_momentum_buffer = momentum * momentum_buffer + grad + weight_decay * param in float32, "
    "new_param = param - lr * new_momentum_buffer, rounded once.",
    reference=sgd_momentum,
    inputs=tensors(param="n", grad="n", momentum_buffer="float32[n]"),
    outputs=tensors(new_param="n", new_momentum_buffer="float32[n]"),
    gpu=(
        *workloads("float32 bfloat16", {"n": 25_557_032}, **SETTINGS),  # all parameters of ResNet-50
        *workloads("float32", {"n": 512 * 512 * 9}, {"n": 2048 * 1000}, **SETTINGS),  # two of its layers
        # a layer of Llama 2 7B, and an awkward size
        *workloads("bfloat16", {"n": 4096 * 11008}, {"n": 9_999_991}, **SETTINGS),
    ),
    emulated=workloads("float32 bfloat16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}, **SETTINGS),
    awkward=rotated(
        "float32 bfloat16", {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, {"n": 4095}, {"n": 4097}, **SETTINGS
    ),
    arranged=unused("grad", "momentum_buffer"),
    # the condition that PyTorch requires
    valid=lambda known: min(known["lr"], known["momentum"], known["weight_decay"]) >= 0,
    flops=lambda dims: 6 * dims["n"],
    # The default factor suffices: PyTorch rounds every intermediate result to float32, and a kernel need not be less
    # exact.
)
