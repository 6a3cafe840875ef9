"""Gated linear units, as in the MLP of a transformer: the activation of one projection times another."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.op import Op, Tensors, rotated, tensors, workloads

aten = torch.ops.aten
LARGEST = 240.0  # largest float16 input: the product of two inputs, times a slope of at most 1.13, does not overflow
CLOSED = (-16.0, -4.0)  # where both activations approach zero


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.silu(gate) * up


def swiglu_backward(grad_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return aten.silu_backward(grad_out * up, gate), grad_out * functional.silu(gate)


def geglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return functional.gelu(gate) * up


def geglu_backward(grad_out: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return aten.gelu_backward(grad_out * up, gate), grad_out * functional.gelu(gate)


def limited(inputs: Tensors, _: torch.Generator) -> None:
    """Limit float16 inputs: PyTorch rounds intermediate results, which overflow although the final result does not."""
    for values in inputs.values():
        if values.dtype == torch.float16:
            values.clamp_(-LARGEST, LARGEST)


def nearly_closed(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw gates whose activations are small. Beside open gates, an error in them would seem to be rounding."""
    inputs["gate"].uniform_(*CLOSED, generator=generator)


def gated(
    reference: Callable[..., torch.Tensor | tuple[torch.Tensor, ...]], inputs: str, outputs: str, flops: int, note: str
) -> Op:
    name = reference.__name__
    backward = name.endswith("_backward")
    return Op(
        name=name,
        reference=reference,
        inputs=tensors(**dict.fromkeys(inputs.split(), "n")),
        outputs=tensors(**dict.fromkeys(outputs.split(), "n")),
        gpu=(
            *workloads("bfloat16 float32 float16", {"n": 4096 * 11008}),  # Llama 2 7B: tokens times hidden size
            *workloads("bfloat16", {"n": 4096 * 14336}),  # Llama 3 8B
            *workloads("float32", {"n": 8 * 4096 * 1280}),  # a transformer block in the U-Net of Stable Diffusion
            *workloads("bfloat16", {"n": 16 * 14336}, {"n": 9_999_991}),  # a decoding step, and an awkward size
        ),
        emulated=workloads("float32 bfloat16 float16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}),
        awkward=rotated(
            "float32 bfloat16 float16", {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, {"n": 4095}, {"n": 4097}
        ),
        draw=limited,
        arranged={"nearly_closed_gates": nearly_closed},
        flops=lambda dims: flops * dims["n"],
        # The default factor suffices: a kernel that rounds once is more exact than PyTorch, which rounds more often.
        backward=() if backward else (f"{name}_backward",),
        note=f"{note} Elementwise over n contiguous values.",
    )


# In `flops`, an exponential and a division count as four operations each, and an erf as ten.
ops = (
    gated(swiglu, "gate up", "out", 11, "out = silu(gate) * up, silu(g) = g * s with s = 1 / (1 + exp(-g))."),
    gated(
        swiglu_backward,
        "grad_out gate up",
        "grad_gate grad_up",
        17,
        "grad_gate = grad_out * up * s * (1 + gate * (1 - s)), grad_up = grad_out * gate * s, "
        "with s = 1 / (1 + exp(-gate)).",
    ),
    gated(geglu, "gate up", "out", 15, "out = gate * P * up, with P = 0.5 * (1 + erf(gate / sqrt(2)))."),
    gated(
        geglu_backward,
        "grad_out gate up",
        "grad_gate grad_up",
        26,
        "grad_gate = grad_out * up * (P + gate * exp(-gate * gate / 2) / sqrt(2 * pi)), grad_up = grad_out * gate * P, "
        "with P = 0.5 * (1 + erf(gate / sqrt(2))).",
    ),
)
