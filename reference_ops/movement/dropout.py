"""Dropout with a given mask, so that it can be checked, and its backward."""

from collections.abc import Mapping

import torch

from reference_ops.arrangements import of_mask
from reference_ops.op import Op, Tensors, rotated, tensors, workloads

KEPT = 0.8


def dropout(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return torch.where(mask, x / (1 - p), 0)


def as_called(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return x * mask / (1 - p)


def dropout_backward(grad_out: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    return dropout(grad_out, mask, p)


def backward_as_called(grad_out: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    grad_x: torch.Tensor = torch.ops.aten.native_dropout_backward(grad_out, mask, 1 / (1 - p))
    return grad_x


def draw(inputs: Tensors, generator: torch.Generator) -> None:
    inputs["mask"].bernoulli_(KEPT, generator=generator)


GPU = (
    *workloads("bfloat16 float32 float16", {"n": 4 * 4096 * 4096}, p=0.1),  # the residual stream of a transformer
    *workloads("bfloat16", {"n": 32 * 12 * 512 * 512}, p=0.1),  # BERT's attention
    *workloads("float32", {"n": 64 * 9216}, p=0.5),  # AlexNet
    *workloads("bfloat16", {"n": 33554393}, p=0.25),
)
EMULATED = workloads("float32 bfloat16 float16", {"n": 4096}, {"n": 9999}, p=0.1)
AWKWARD = rotated("float32 bfloat16 float16", {"n": 1}, {"n": 31}, {"n": 33}, {"n": 257}, {"n": 1009}, p=0.5)


def is_probability(known: Mapping[str, float]) -> bool:
    return 0 <= known["p"] < 1


ops = (
    Op(
        name="dropout",
        note="out = x / (1 - p) where `mask` is true, else 0. The mask is an input, true with probability 1 - p.",
        reference=dropout,
        baseline=as_called,
        inputs=tensors(x="n", mask="bool[n]"),
        outputs=tensors(out="n"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=of_mask("mask", hides=False),
        valid=is_probability,
        flops=lambda dims: dims["n"],
        # The default factor suffices for a product or a quotient, rounded once.
        backward=("dropout_backward",),
    ),
    Op(
        name="dropout_backward",
        note="grad_x = grad_out / (1 - p) where `mask` is true, else 0.",
        reference=dropout_backward,
        baseline=backward_as_called,
        inputs=tensors(grad_out="n", mask="bool[n]"),
        outputs=tensors(grad_x="n"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        draw=draw,
        arranged=of_mask("mask", hides=False),
        valid=is_probability,
        flops=lambda dims: dims["n"],
        # The default factor suffices for a product or a quotient, rounded once.
    ),
)
