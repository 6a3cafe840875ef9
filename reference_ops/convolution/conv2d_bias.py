"""A 2d convolution with bias and activation, in one pass instead of three."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.convolution._points import (
    LONG_SUMS,
    SUMS_OF_BATCHES,
    image,
    multiply_adds,
    near_zero_bias,
    out_size,
    product,
)
from reference_ops.op import Arrange, Op, Tensors, Tolerance, rotated, tensors, workloads
from reference_ops.precision import wide


def conv2d_bias(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    return in_float32(x, weight, bias, stride, padding).to(x.dtype)


def conv2d_bias_relu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    return torch.relu(in_float32(x, weight, bias, stride, padding)).to(x.dtype)


def conv2d_bias_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    return functional.gelu(in_float32(x, weight, bias, stride, padding)).to(x.dtype)


def conv2d_bias_silu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int
) -> torch.Tensor:
    return functional.silu(in_float32(x, weight, bias, stride, padding)).to(x.dtype)


def in_float32(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
    """Compute in float32 or wider. TF32 is exact for products of 16-bit numbers."""
    return functional.conv2d(wide(x), wide(weight), wide(bias), stride=stride, padding=padding)


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def as_called(activation: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Compute the op as users do.

    In 16 bits, PyTorch rounds the sums, the sums with bias, and the activation's results.
    """

    def called(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, stride: int, padding: int) -> torch.Tensor:
        return activation(functional.conv2d(x, weight, bias, stride=stride, padding=padding))

    return called


def closed_gates(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
    """Draw sums near each other and so far below zero that every result is small, as those of a closed gate are."""
    inputs["x"].mul_(NARROW)
    inputs["bias"].sub_(CLOSED)


def conv2d_bias_backward_bias(grad_out: torch.Tensor) -> torch.Tensor:
    return grad_out.sum((0, 2, 3))


# A bias would hide faint sums.
BIASED = (*(name for name in LONG_SUMS if name != "faint"), "vast")
CLOSED, NARROW = 15.0, 2.0**-6  # so far below zero a gate is almost closed, and float16 still holds its results
# These activations do not map integers to integers.
BEFORE_SMOOTH = tuple(name for name in BIASED if name != "integers")


def fused(
    reference: Callable[..., torch.Tensor],
    activation: Callable[[torch.Tensor], torch.Tensor],
    values: tuple[str, ...] = BIASED,
    backward: tuple[str, ...] = (),
    arranged: Mapping[str, Arrange] | None = None,
) -> Op:
    name = reference.__name__.removeprefix("conv2d_bias").strip("_")
    return Op(
        name=reference.__name__,
        note=f"out[n, k, y, x] = {name}(bias[k] + sum over c, i, j of weight[k, c, i, j] * "
        "x[n, c, y * stride - padding + i, x * stride - padding + j]), where x is 0 outside. "
        "In float32 PyTorch multiplies in TF32.",
        reference=reference,
        baseline=as_called(activation),
        baseline_free=("out",),  # in 16 bits PyTorch rounds up to three times, and overflows before the bias is added
        inputs=tensors(x="batch channels height width", weight="filters channels r s", bias="filters"),
        outputs=tensors(out="batch filters oh ow"),
        derived={"oh": out_size("height", "r"), "ow": out_size("width", "s"), "terms": product("channels", "r", "s")},
        gpu=(
            *workloads("bfloat16 float32 float16", image(64, 64, 56, 56, 64, 3), stride=1, padding=1),
            *workloads("bfloat16", image(32, 3, 224, 224, 768, 16), stride=16, padding=0),  # patches of a ViT
            *workloads("float32", image(64, 3, 224, 224, 64, 7), stride=2, padding=3),
            *workloads("bfloat16", image(1, 256, 256, 256, 128, 3), stride=1, padding=1),  # Stable Diffusion's decoder
            *workloads("bfloat16", image(13, 61, 45, 67, 101, 3, 5), stride=2, padding=2),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", image(2, 8, 9, 9, 16, 3), stride=1, padding=1),
            *workloads("float32 bfloat16", image(2, 3, 19, 17, 8, 7), stride=2, padding=3),
        ),
        awkward=(
            *rotated("float32 bfloat16", image(1, 1, 1, 1, 1, 1), image(3, 33, 6, 5, 65, 1), stride=1, padding=0),
            *rotated("float16 float32", image(3, 5, 11, 13, 31, 5, 2), image(1, 2, 33, 31, 63, 3), stride=3, padding=2),
            *rotated("float32", image(2, 3, 1, 9, 5, 2, 3), stride=1, padding=1),  # a row under an even window
        ),
        values=values,
        draw=near_zero_bias,
        flops=lambda dims: 2 * product("batch", "filters", "oh", "ow")(dims),  # bias and activation
        matrix_flops=multiply_adds,
        arranged={**opposed(x=1, weight=1), **(arranged or {})},
        tf32=True,
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
        backward=backward,
    )


def in_two_steps(known: Mapping[str, int]) -> int:
    """Return the number of terms for the tolerance, as if 256 threads sum each image, and then the sums of all images.

    With the total number of terms, the tolerance for equal values would allow errors in half of the digits.
    """
    image = known["oh"] * known["ow"]
    return min(known["batch"] * image, image + 256 * known["batch"])


def outputs(batch: int, filters: int, oh: int, ow: int) -> dict[str, int]:
    return {"batch": batch, "filters": filters, "oh": oh, "ow": ow}


ops = (
    fused(
        conv2d_bias, as_it_is, backward=("conv2d_backward_data", "conv2d_backward_weight", "conv2d_bias_backward_bias")
    ),
    fused(conv2d_bias_relu, torch.relu),
    fused(conv2d_bias_gelu, functional.gelu, BEFORE_SMOOTH),
    fused(conv2d_bias_silu, functional.silu, BEFORE_SMOOTH, arranged={"gates_closed": closed_gates}),
    Op(
        name="conv2d_bias_backward_bias",
        note="grad_bias[k] = sum over n, y, x of grad_out[n, k, y, x].",
        reference=conv2d_bias_backward_bias,
        inputs=tensors(grad_out="batch filters oh ow"),
        outputs=tensors(grad_bias="filters"),
        derived={"terms": in_two_steps},
        gpu=(
            *workloads("bfloat16 float32 float16", outputs(64, 256, 56, 56)),
            *workloads("bfloat16", outputs(128, 2048, 7, 7), outputs(1, 256, 256, 256)),
            *workloads("float32", outputs(64, 64, 112, 112), outputs(13, 101, 43, 67)),
        ),
        emulated=(
            *workloads("float32 bfloat16 float16", outputs(4, 16, 9, 9)),
            *workloads("float32 bfloat16", outputs(2, 12, 31, 33)),
        ),
        awkward=rotated(
            "float32 bfloat16 float16", outputs(1, 1, 1, 1), outputs(33, 31, 1, 1), outputs(3, 2, 33, 31),
            outputs(1, 65, 7, 5),
        ),
        values=SUMS_OF_BATCHES,
        by_rows=False,
        flops=product("batch", "filters", "oh", "ow"),
        tolerance=Tolerance(sums="terms"),  # the default factor suffices for a sum in float32, rounded once
    ),
)  # fmt: skip
