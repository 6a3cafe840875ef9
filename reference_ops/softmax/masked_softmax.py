"""A scaled softmax of attention scores under a given mask, and its backward."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import of_mask, runs_of_minus_inf, then
from reference_ops.distributions import ONLY_KEY_NAN
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide
from reference_ops.scores import last_ahead
from reference_ops.softmax.softmax import FEW_INFINITIES, OF_GRADIENTS, backward_as_called


def masked_softmax(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    hidden = mask & ~mask.all(-1, keepdim=True)
    return softmax_as_called(x, mask, scale).masked_fill(hidden.unsqueeze(1), 0)  # also in a row of NaN


def softmax_as_called(x: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax((x * scale).masked_fill(mask.unsqueeze(1), -torch.inf), dim=-1)


def masked_softmax_backward(
    grad_out: torch.Tensor, out: torch.Tensor, mask: torch.Tensor, scale: float
) -> torch.Tensor:
    return masked_as_called(wide(grad_out), wide(out), mask, scale).to(out.dtype)


def masked_as_called(grad_out: torch.Tensor, out: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """Call autograd's functions. A hidden key has no gradient, even in a row of NaN without visible keys."""
    return backward_as_called(grad_out, out).masked_fill(mask.unsqueeze(1), 0.0) * scale


def scaled_as_called(grad_out: torch.Tensor, out: torch.Tensor, scale: float) -> torch.Tensor:
    return backward_as_called(grad_out, out) * scale


def some_masked(inputs: Tensors, generator: torch.Generator) -> None:
    """Mask about a third of the keys, but keep at least one key in each row."""
    mask = inputs["mask"].bernoulli_(0.3, generator=generator)
    kept = torch.randint(mask.shape[-1], (*mask.shape[:-1], 1), generator=generator, device=mask.device)
    mask.scatter_(-1, kept, value=False)


def draw_saved(inputs: Tensors, generator: torch.Generator) -> None:
    some_masked(inputs, generator)
    inputs["grad_out"].masked_fill_(inputs["grad_out"].isinf(), 0.0)
    leave_out(inputs)


def leave_one_key(inputs: Tensors, generator: torch.Generator) -> torch.Tensor:
    """Hide all keys except one in each row; return where the visible key of every other row is."""
    mask, scores = inputs["mask"].fill_(True), inputs["mask"].unsqueeze(1)
    kept = torch.randint(mask.shape[-1], (*mask.shape[:-1], 1), generator=generator, device=mask.device)
    mask.scatter_(-1, kept, value=False)
    rows = next(values for values in inputs.values() if values.ndim == scores.ndim).shape[:-1]
    every_other = torch.arange(math.prod(rows), device=mask.device).view(*rows, 1) % 2 == 0
    return ~scores & every_other


def nan_in_the_only_key(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    inputs["x"].masked_fill_(leave_one_key(inputs, generator), math.nan)


def nan_gradient_of_the_only_key(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    chosen = leave_one_key(inputs, generator)
    leave_out(inputs)
    inputs["grad_out"].masked_fill_(chosen, math.nan)


def show_last_key(inputs: Tensors) -> None:
    inputs["mask"][..., -1] = False


def leave_out(inputs: Tensors) -> None:
    """Make `out` a softmax of the visible keys.

    If a row has several keys, no probability is near 1, because only rounding would be left.
    """
    scores = inputs["out"].clamp(min=-100, max=4).masked_fill(inputs["mask"].unsqueeze(1), -torch.inf)
    inputs["out"].copy_(torch.softmax(scores, dim=-1))


def at(batch: int, heads: int, queries: int, keys: int) -> dict[str, int]:
    return {"batch": batch, "heads": heads, "queries": queries, "keys": keys}


forward = Op(
    name="masked_softmax",
    note="out = softmax over the keys of x * scale, where mask, which is the same for all heads, is false; 0 where it "
         "is true. A fully masked row is NaN, as in PyTorch.",
    reference=masked_softmax,
    baseline=softmax_as_called,
    inputs=tensors(x="batch heads queries keys", mask="bool[batch queries keys]"),
    outputs=tensors(out="batch heads queries keys"),
    # 1 / 8 is the scale for heads of size 64. Multiplying by a power of two is exact, so PyTorch rounds only once.
    gpu=(
        *workloads("bfloat16 float32 float16", at(32, 12, 512, 512), scale=0.125),  # BERT
        *workloads("bfloat16", at(64, 12, 197, 197), at(1, 32, 2048, 2048), scale=0.125),
        *workloads("bfloat16 float32", at(16, 16, 64, 1500), scale=0.125),  # text tokens that attend to audio frames
    ),
    emulated=workloads("float32 bfloat16 float16", at(2, 2, 16, 128), at(1, 3, 5, 1024), scale=0.125),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1), at(2, 3, 7, 33), at(3, 2, 5, 31), at(1, 2, 33, 257), at(2, 1, 1, 1023), at(1, 1, 3, 4104),
        scale=0.125,
    ),
    values=(*COMMON, "far_below"),  # together with the mask, "masked" would hide whole rows
    draw=some_masked,
    arranged={
        **of_mask("mask", hides=True),
        **runs_of_minus_inf("x"),
        **then(last_ahead("x"), show_last_key),
        ONLY_KEY_NAN: nan_in_the_only_key,
    },
    nan_spreads=True,  # `nan_spreads` also holds in rows with one visible key
    flops=lambda dims: 5 * dims["batch"] * dims["heads"] * dims["queries"] * dims["keys"],
    # The default factor suffices: PyTorch also accumulates in float32 and rounds once.
    tolerance=Tolerance(sums="keys", relative=True),
    backward=("masked_softmax_backward",),
)  # fmt: skip
backward = Op(
    name="masked_softmax_backward",
    note="grad_x = scale * out * (grad_out - sum of grad_out * out over the keys) where mask, which is the same for "
    "all heads, is false; 0 where it is true. out is the output of masked_softmax: NaN in a fully masked row, "
    "where grad_x is 0.",
    reference=masked_softmax_backward,
    baseline=masked_as_called,
    baseline_free=("grad_x",),  # with few keys, the rounding of a product exceeds a small difference
    inputs=tensors(
        grad_out="batch heads queries keys", out="batch heads queries keys", mask="bool[batch queries keys]"
    ),
    outputs=tensors(grad_x="batch heads queries keys"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(16, 12, 512, 512), scale=0.125),
        *workloads("bfloat16", at(64, 12, 197, 197), at(1, 32, 2048, 2048), scale=0.125),
        *workloads("bfloat16 float32", at(16, 16, 64, 1500), scale=0.125),
    ),
    emulated=forward.emulated,
    awkward=forward.awkward,
    values=OF_GRADIENTS,
    draw=draw_saved,
    arranged={
        **then(of_mask("mask", hides=True), leave_out),
        "NaN_gradient_of_the_only_key": nan_gradient_of_the_only_key,
        **FEW_INFINITIES,
    },
    flops=lambda dims: 5 * dims["batch"] * dims["heads"] * dims["queries"] * dims["keys"],
    # The default factor suffices: the reference sums in float32 and rounds once.
    tolerance=Tolerance(sums="keys"),
)
ops = (forward, backward)
