"""Losses that are a mean over elements, and their backwards, built from their formulas."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_ops.arrangements import nan_at_the_end, nan_in, scaled
from reference_ops.op import Number, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide

ONE_BLOCK = 2**20  # number of elements up to which one block of threads may be enough
MANY_BLOCKS = 128  # number of terms that the tolerance assumes for more blocks


def elementwise(
    name: str,
    formulas: tuple[str, str],
    forward: Callable[..., torch.Tensor],
    backward: Callable[..., torch.Tensor],
    flops: int,
    valid: Callable[[Mapping[str, Any]], bool] | None = None,
    **parameters: Number,
) -> tuple[Op, Op]:
    """Return the ops of a mean loss and of its gradient with respect to x, from the formulas for one element.

    The reference computes in float32 and keeps the loss in float32, as under autocast, because a mean rounded to
    bfloat16 is too inexact to judge. The baseline is PyTorch in bfloat16, the fastest function that a user can call.
    """

    def loss(x: torch.Tensor, target: torch.Tensor, **given: Number) -> torch.Tensor:
        return forward(wide(x), wide(target), **given)

    def loss_in_own_dtype(x: torch.Tensor, target: torch.Tensor, **given: Number) -> torch.Tensor:
        return wide(forward(x, target, **given))

    def gradient(grad_loss: torch.Tensor, x: torch.Tensor, target: torch.Tensor, **given: Number) -> torch.Tensor:
        return backward(grad_loss, wide(x), wide(target), **given).to(x.dtype)

    def gradient_in_own_dtype(
        grad_loss: torch.Tensor, x: torch.Tensor, target: torch.Tensor, **given: Number
    ) -> torch.Tensor:
        return backward(grad_loss.to(x.dtype), x, target, **given)

    gpu = (
        *workloads("bfloat16 float32", {"n": 2**26}, {"n": 64 * 4 * 64 * 64}, **parameters),  # latents of images
        *workloads("bfloat16", {"n": 32 * 3 * 512 * 512}, {"n": 10_000_019}, **parameters),
    )
    emulated = workloads("float32 bfloat16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}, **parameters)
    sizes = (1, 31, 33, 1009, 4095, 4097)
    awkward = rotated("float32 bfloat16", *({"n": size} for size in sizes), **parameters)
    return (
        Op(
            name=name,
            note=f"loss is the mean of {formulas[0]}, in float32 for all input dtypes.",
            reference=loss,
            baseline=loss_in_own_dtype,
            baseline_free=("loss",),  # PyTorch's loss has fewer digits
            inputs=tensors(x="n", target="n"),
            outputs=tensors(loss="float32[]"),
            gpu=gpu,
            emulated=emulated,
            awkward=awkward,
            arranged={**nan_in("x", "target"), **nan_at_the_end("x", "target")},
            flops=lambda dims: flops * dims["n"],
            # The default factor suffices for partial sums in float32, as in PyTorch, that are added as blocks finish.
            tolerance=Tolerance(sums="added_up"),
            derived={"added_up": added_up},
            valid=valid,
            backward=(f"{name}_backward",),
        ),
        Op(
            name=f"{name}_backward",
            note=f"grad_x = grad_loss / n * {formulas[1]}. The gradient to the target is its opposite.",
            reference=gradient,
            baseline=gradient_in_own_dtype,
            baseline_free=("grad_x",),  # PyTorch rounds three times
            inputs=tensors(grad_loss="float32[]", x="n", target="n"),
            outputs=tensors(grad_x="n"),
            gpu=gpu,
            emulated=emulated,
            awkward=awkward,
            draw=draw_grad_loss,
            arranged=scaled(grad_loss=-1e-8),
            valid=valid,
            flops=lambda dims: flops * dims["n"],
            # The default factor suffices: everything is in float32 and rounded once.
        ),
    )


def added_up(dims: Mapping[str, int]) -> int:
    """Return the number of terms in a thread's sum, for the tolerance.

    Losses of 2^26 elements differ by only 2e-4 between seeds. With a tolerance above a fortieth of that, half of the
    elements could be left out. The tolerance is twice the error of 4096 blocks that add their parts as they finish.
    """
    return dims["n"] if dims["n"] <= ONE_BLOCK else MANY_BLOCKS


def draw_grad_loss(inputs: Tensors, generator: torch.Generator) -> None:
    inputs["grad_loss"].uniform_(0.5, 2, generator=generator)
