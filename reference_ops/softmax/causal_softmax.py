"""The scaled causal softmax of attention scores, in which later keys are hidden from a query, and its backward."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import runs_of_minus_inf
from reference_ops.distributions import ONLY_KEY_NAN
from reference_ops.op import COMMON, Arrange, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide
from reference_ops.softmax.masked_softmax import at, scaled_as_called
from reference_ops.softmax.softmax import FEW_INFINITIES, OF_GRADIENTS


def causal_softmax(x: torch.Tensor, scale: float) -> torch.Tensor:
    return as_called(x, scale).masked_fill(later(x), 0)  # also in a row of NaN


def as_called(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.softmax((x * scale).masked_fill(later(x), -torch.inf), dim=-1)


def causal_softmax_backward(grad_out: torch.Tensor, out: torch.Tensor, scale: float) -> torch.Tensor:
    grad_x = scaled_as_called(wide(grad_out).masked_fill(later(out), 0), wide(out), scale)
    return grad_x.masked_fill(later(out), 0).to(out.dtype)


def later(x: torch.Tensor) -> torch.Tensor:
    """Return the mask of the keys that are later than a query; the last query attends to all keys."""
    queries, keys = x.shape[-2:]
    return torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu_(1 + keys - queries)


def nan_in_the_only_key(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement with NaN in the first key of the first query, which sees no other key in a square."""

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name][..., 0, 0] = math.nan

    return {ONLY_KEY_NAN: arrange}


def nan_in_later_keys(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement with NaN at all keys that are later than a query, where nothing has an effect."""

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].masked_fill_(later(inputs[name]), math.nan)

    return {f"NaN_in_later_keys_of_{name}": arrange}


def as_forward_left(inputs: Tensors, _: torch.Generator) -> None:
    """Make `out` a causal softmax.

    No probability is near 1, because the gradient would be a difference of equal numbers.
    """
    inputs["out"].copy_(causal_softmax(inputs["out"].clamp(max=4), 1.0))


def seen(dims: Mapping[str, int]) -> int:
    """Return the number of pairs of a query and a visible key. Other pairs need not be read."""
    queries, keys = dims["queries"], dims["keys"]
    return dims["batch"] * dims["heads"] * (queries * (keys - queries) + queries * (queries + 1) // 2)


forward = Op(
    name="causal_softmax",
    note="Query i sees the keys up to i + keys - queries: out = softmax of x * scale over these keys, 0 for the other "
         "keys.",
    reference=causal_softmax,
    baseline=as_called,
    inputs=tensors(x="batch heads queries keys"),
    outputs=tensors(out="batch heads queries keys"),
    # 1 / 8 is the scale for heads of size 64. Multiplying by a power of two is exact, so PyTorch rounds only once.
    gpu=(
        *workloads("bfloat16 float32 float16", at(8, 12, 1024, 1024), scale=0.125),  # GPT-2
        *workloads("bfloat16 float32", at(1, 32, 2048, 2048), scale=0.125),
        *workloads("bfloat16", at(1, 32, 512, 8192), scale=0.125),  # a long prompt in chunks
        *workloads("bfloat16", at(4, 25, 1023, 1023), scale=0.125),
    ),
    emulated=workloads("float32 bfloat16 float16", at(2, 2, 48, 48), at(1, 3, 5, 1024), scale=0.125),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1), at(2, 3, 7, 33), at(3, 2, 31, 31), at(1, 2, 33, 257), at(2, 1, 1, 1023), at(1, 1, 3, 4104),
        scale=0.125,
    ),
    values=(*COMMON, "far_below"),  # "masked" would leave no key for the first query
    # padding before or after a prompt
    arranged={**runs_of_minus_inf("x"), **nan_in_the_only_key("x"), **nan_in_later_keys("x")},
    nan_spreads=True,  # `nan_spreads` also holds for the first query, which may see one key
    valid=lambda known: known["queries"] <= known["keys"],
    touched={"x": seen},
    flops=lambda dims: 5 * seen(dims),
    # The default factor suffices: PyTorch also accumulates in float32 and rounds once.
    tolerance=Tolerance(sums="keys", relative=True),
    backward=("causal_softmax_backward",),
)  # fmt: skip
backward = Op(
    name="causal_softmax_backward",
    note="grad_x = scale * out * (grad_out - sum of grad_out * out over the keys); out is what causal_softmax "
    "returned: 0 for the keys after i + keys - queries, where grad_out has no effect and grad_x is 0.",
    reference=causal_softmax_backward,
    baseline=scaled_as_called,
    baseline_free=("grad_x",),  # with few keys, the rounding of a product exceeds a small difference
    inputs=tensors(grad_out="batch heads queries keys", out="batch heads queries keys"),
    outputs=tensors(grad_x="batch heads queries keys"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(4, 12, 1024, 1024), scale=0.125),
        *workloads("bfloat16 float32", at(1, 16, 2048, 2048), scale=0.125),
        *workloads("bfloat16", at(1, 32, 512, 8192), at(4, 25, 1023, 1023), scale=0.125),
    ),
    emulated=forward.emulated,
    awkward=forward.awkward,
    values=tuple(name for name in OF_GRADIENTS if name in COMMON),
    draw=as_forward_left,
    arranged={
        **nan_in_the_only_key("grad_out"),
        **nan_in_later_keys("grad_out"),
        **FEW_INFINITIES,
    },
    nan_spreads=True,  # `nan_spreads` also holds for the first query, which may see one key
    valid=forward.valid,
    touched={"grad_out": seen, "out": seen},
    flops=lambda dims: 5 * seen(dims),
    # The default factor suffices: the reference sums in float32 and rounds once.
    tolerance=Tolerance(sums="keys"),
)
ops = (forward, backward)
