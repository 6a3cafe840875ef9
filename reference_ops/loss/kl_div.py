"""The Kullback-Leibler divergence of log-probabilities from target probabilities, and its backward."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.arrangements import nan_at_the_end, nan_in, scaled
from reference_ops.loss._elementwise import draw_grad_loss
from reference_ops.op import Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide


def kl_div(log_probs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.kl_div(wide(log_probs), wide(target), reduction="batchmean")


def in_own_dtype(log_probs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Compute in the inputs' dtype, which is the fastest way for a user of bfloat16."""
    return wide(functional.kl_div(log_probs, target, reduction="batchmean"))


def kl_div_backward(grad_loss: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return target * (-grad_loss / target.shape[0])


def draw_distributions(inputs: Tensors, _: torch.Generator) -> None:
    """Turn the numbers into distributions; probabilities of large numbers include zeros."""
    inputs["target"].copy_(torch.softmax(inputs["target"], dim=-1))
    inputs["log_probs"].copy_(torch.log_softmax(inputs["log_probs"], dim=-1))


def draw_backward(inputs: Tensors, generator: torch.Generator) -> None:
    draw_grad_loss(inputs, generator)
    inputs["target"].copy_(torch.softmax(inputs["target"], dim=-1))


def zeros(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Set a third of the target to zero, as in distributions over few classes."""
    some = torch.empty_like(inputs["target"], dtype=torch.bool).bernoulli_(1 / 3, generator=generator)
    inputs["target"].masked_fill_(some, 0)


def impossible(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
    """Set log_probs to -inf where a few zeros of the target are: 0 times an infinity is NaN, as in PyTorch."""
    zeros(inputs, generator, known)
    inputs["target"].view(-1)[-1:] = 0
    few = torch.empty_like(inputs["target"], dtype=torch.bool).bernoulli_(1 / 64, generator=generator)
    few.view(-1)[-1:] = True
    inputs["log_probs"].masked_fill_(few & (inputs["target"] == 0), -math.inf)


def infinite_gradient(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
    """Set the loss's gradient to infinity, as after an overflow: where the target is zero, the gradient is NaN."""
    zeros(inputs, generator, known)
    inputs["grad_loss"].fill_(math.inf)


def one_below_zero(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Make one number of the target negative: it has no logarithm, so the loss is NaN."""
    flat = inputs["target"].view(-1)
    flat[torch.randint(len(flat), (1,), generator=generator, device=flat.device)] = -0.25


# Softmaxes of constants and of tiny numbers are all equal, so their divergence is only rounding.
VALUES = ("uniform", "large", "heavy_tail", "shifted")
EMULATED = workloads("float32 bfloat16", {"rows": 32, "cols": 256}, {"rows": 8, "cols": 1000})
AWKWARD = rotated(
    "float32 bfloat16",
    {"rows": 1, "cols": 33}, {"rows": 31, "cols": 2}, {"rows": 259, "cols": 31}, {"rows": 7, "cols": 257},
    {"rows": 3, "cols": 1023}, {"rows": 2, "cols": 4104},
)  # fmt: skip
ops = (
    Op(
        name="kl_div",
        note="loss is the sum of target * (log(target) - log_probs) over everything, divided by rows; a term is 0 "
        "where target is 0 and log_probs is finite, and NaN where target is 0 and log_probs infinite, or target is "
        "negative. loss is float32 for inputs of any dtype, as under "
        "autocast.",
        reference=kl_div,
        baseline=in_own_dtype,
        baseline_free=("loss",),  # PyTorch's loss has fewer digits
        inputs=tensors(log_probs="rows cols", target="rows cols"),
        outputs=tensors(loss="float32[]"),
        gpu=(
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 32000}),  # distillation of a large model
            *workloads("bfloat16", {"rows": 8192, "cols": 16384}, {"rows": 2048, "cols": 50257}),
            *workloads("float32", {"rows": 16384, "cols": 1000}),  # classes of images
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=VALUES,
        draw=draw_distributions,
        arranged={
            **nan_in("log_probs", "target"),
            **nan_at_the_end("log_probs", "target"),
            "zeros_in_target": zeros,
            "impossible_where_target_is_zero": impossible,
            "target_below_zero": one_below_zero,
        },
        # a logarithm, a subtraction, a multiplication and an addition
        flops=lambda dims: 4 * dims["rows"] * dims["cols"],
        # The logarithms are a hundred times larger than their sum, and bfloat16 has only a few hundred different
        # values: roundings repeat instead of averaging out. The error is up to six roundings of the loss in PyTorch's
        # order, 11 in other orders, and 104 if blocks add 16384 rows as they finish; 128 are allowed. Losses of
        # different seeds differ by 2500 roundings.
        tolerance=Tolerance(factor=4, sums="added_up"),
        derived={"added_up": lambda dims: min(dims["rows"], 64)},
        backward=("kl_div_backward",),
    ),
    Op(
        name="kl_div_backward",
        note="grad_log_probs = -target * grad_loss / rows.",
        reference=kl_div_backward,
        inputs=tensors(grad_loss="float32[]", target="rows cols"),
        outputs=tensors(grad_log_probs="rows cols"),
        gpu=(
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 32000}),
            *workloads("bfloat16", {"rows": 8192, "cols": 16384}, {"rows": 2048, "cols": 50257}),
            *workloads("float32", {"rows": 16384, "cols": 1000}),
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=VALUES,
        draw=draw_backward,
        arranged={
            **scaled(grad_loss=-1e-8),
            "target_below_zero": one_below_zero,
            "infinite_gradient": infinite_gradient,
        },
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices for one product, rounded once.
    ),
)
