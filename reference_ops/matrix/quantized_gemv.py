"""Products with weights of 8 bits and a scale per row, for the few tokens of a decoding step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from reference_ops.matrix._drawing import far_below_one
from reference_ops.op import OF_PRODUCTS, Arrange, Op, Tensors, Tolerance, rotated, tensors, workloads

LARGEST_INT8, LARGEST_FP8 = 127, 448.0
NAN_FP8 = (0x7F, 0xFF)  # the bits of NaN


def dequantized_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    inside = torch.promote_types(x.dtype, torch.float32)
    return (functional.linear(x.to(inside), weight.to(inside)) * scales).to(x.dtype)


def scaled_linear(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Compute the product as model code does: with weights converted to the dtype, rounded, and then scaled."""
    return (functional.linear(x, weight.to(x.dtype)) * scales).to(x.dtype)


def draw_int8(inputs: Tensors, generator: torch.Generator) -> None:
    inputs["weight"].random_(-LARGEST_INT8 - 1, LARGEST_INT8 + 1, generator=generator)
    _draw_others(inputs, LARGEST_INT8, generator)


def dequantized_fp8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return dequantized_linear(x, weight.view(torch.float8_e4m3fn), scales)


def scaled_fp8(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return scaled_linear(x, weight.view(torch.float8_e4m3fn), scales)


def draw_fp8(inputs: Tensors, generator: torch.Generator) -> None:
    weight = inputs["weight"].view(torch.float8_e4m3fn)
    values = torch.empty(weight.shape, device=weight.device).normal_(std=LARGEST_FP8 / 4, generator=generator)
    weight.copy_(values.clamp_(-LARGEST_FP8, LARGEST_FP8))
    _draw_others(inputs, LARGEST_FP8, generator)


def nan_in_weights(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Set one weight of every other row to NaN, the last one in the last row."""
    weight = inputs["weight"]
    rows = torch.arange(weight.shape[0] - 1, -1, -2, device=weight.device)
    columns = torch.randint(weight.shape[1], rows.shape, generator=generator, device=weight.device)
    columns[0] = weight.shape[1] - 1
    signs = torch.randint(2, rows.shape, generator=generator, device=weight.device)
    weight[rows, columns] = torch.tensor(NAN_FP8, dtype=weight.dtype, device=weight.device)[signs]


def _draw_others(inputs: Tensors, largest: float, generator: torch.Generator) -> None:
    """Draw scales that bring a row's largest weight to about 1, and an input that does not overflow."""
    inputs["scales"].uniform_(0.5 / largest, 1.5 / largest, generator=generator)
    far_below_one(inputs["x"])


def at(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


def quantized(
    name: str,
    dtype: str,
    holds: str,
    references: tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]],
    draw: Callable[[Tensors, torch.Generator], None],
    arranged: Mapping[str, Arrange],
) -> Op:
    return Op(
        name=name,
        note=f"out[m, n] = scales[n] * sum over k of x[m, k] * weight[n, k]; weight holds {holds}, row-major; its "
        "float32 scales are positive; m is 1 or a few. The result is rounded once, at the end.",
        reference=references[0],
        baseline=references[1],
        baseline_free=("out",),  # PyTorch rounds the sum to the dtype before it scales
        inputs=tensors(x="m k", weight=f"{dtype}[n k]", scales="float32[n]"),
        outputs=tensors(out="m n"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(1, 8192, 8192)),
            *workloads("bfloat16", at(1, 28672, 8192)),  # the widest layer of a 70-billion-parameter model
            *workloads("bfloat16", at(4, 4096, 14336)),
            *workloads("float32", at(3, 5003, 4099)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(2, 256, 512), at(4, 96, 256)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1, 1), at(2, 31, 33), at(1, 33, 31), at(5, 7, 257), at(1, 129, 1009), at(9, 3, 4097),
        ),
        # No "tiny", which underflows float16 when the weights are large, and no "integers", because the scales are not
        # integers.
        values=tuple(name for name in OF_PRODUCTS if name != "tiny"),
        draw=draw,
        arranged=arranged,
        flops=lambda dims: dims["m"] * dims["n"],
        matrix_flops=lambda dims: 2 * dims["m"] * dims["n"] * dims["k"],
        # The default factor suffices: weights are exact in every dtype, and float32 sums are rounded once.
        tolerance=Tolerance(sums="k", in_turn="k"),
    )  # fmt: skip


ops = (
    quantized("int8_gemv", "int8", "int8", (dequantized_linear, scaled_linear), draw_int8, {}),
    quantized(
        "fp8_gemv", "uint8", "the bits of float8_e4m3fn", (dequantized_fp8, scaled_fp8), draw_fp8,
        {"weight_with_nan": nan_in_weights},
    ),
)  # fmt: skip
