"""Quantisation of rows to 8 bits with one scale each, as for activations before a product, and dequantisation."""

from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.arrangements import filled, nan_at_the_end, nan_in, scaled
from reference_ops.op import (
    COUNTED_NAN,
    DTYPES,
    NOT_FINITE,
    Arrange,
    Op,
    Tensors,
    Tolerance,
    rotated,
    tensors,
    workloads,
)
from reference_ops.precision import TORCH_DTYPES

LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0}
SHORT = {"int8": "int8", "float8_e4m3fn": "fp8"}
SMALLEST_FP8 = 2.0**-9
LEAST = 1e-10  # smallest magnitude on which a row's scale is based, so that rows of zeros also have a scale


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


GPU = (
    *workloads("bfloat16 float32 float16", at(8192, 4096)),
    *workloads("bfloat16", at(4096, 14336)),  # before the last product of a Llama's feed-forward layer
    *workloads("bfloat16", at(32768, 1024)),
    *workloads("bfloat16", at(16, 8192)),  # a few tokens of a decoding step
    *workloads("float32", at(4099, 3001)),
)
EMULATED = (
    *workloads("float32 bfloat16 float16", at(32, 256)),
    *workloads("float32 bfloat16", at(7, 1040)),
)
AWKWARD = rotated(
    "float32 bfloat16 float16", at(1, 1), at(31, 33), at(33, 31), at(5, 257), at(3, 1000), at(2, 1023), at(1, 4097)
)


def halves(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw numbers halfway between integers, and 127 in each row, so that each is a tie when rounded to int8."""
    x = inputs["x"]
    x.random_(-20, 20, generator=generator).add_(0.5)
    x[:, 0] = LARGEST["int8"]


def between_eighths(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw numbers halfway between two neighbours in fp8, and 448 in each row, so that the scale is 1."""
    x = inputs["x"]
    x.random_(0, 8, generator=generator).add_(8.5).div_(8)
    exponents = torch.empty_like(x).random_(-4, 5, generator=generator)
    signs = torch.empty_like(x).random_(0, 2, generator=generator).mul_(2).sub_(1)
    x.mul_(exponents.exp2_()).mul_(signs)
    x[:, 0] = LARGEST["float8_e4m3fn"]


def between_subnormals(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
    """Draw numbers halfway between two subnormal neighbours in fp8, and 448 in each row, so that the scale is 1."""
    x = inputs["x"]
    x.random_(-8, 8, generator=generator).add_(0.5).mul_(SMALLEST_FP8)
    x[:, 0] = LARGEST["float8_e4m3fn"]


TIES: dict[str, dict[str, Arrange]] = {
    "int8": {"halves": halves},
    "float8_e4m3fn": {"halves": between_eighths, "between_subnormals": between_subnormals},
}


def quantise(dtype: str) -> Op:
    largest = LARGEST[dtype]

    def reference(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        most = wide.abs().amax(dim=-1, keepdim=True).clamp(min=LEAST)
        limit = torch.full_like(most, largest)  # a tensor, because PyTorch's division by Python numbers is less exact
        scaled = wide * (limit / most)
        rounded = scaled.round() if dtype == "int8" else scaled
        return rounded.clamp(-largest, largest).to(TORCH_DTYPES[dtype]), (most / limit).squeeze(-1)

    return Op(
        name=f"quantise_rows_{SHORT[dtype]}",
        note=f"In float32, with each operation rounded to nearest: most = max(max |x| of the row, {LEAST:g}); "
        f"scales = most / {largest:g}; quantised = x * ({largest:g} / most), clamped to +-{largest:g} and rounded to "
        f"{dtype}, ties to even. Both outputs must be exact: one division per row, one multiplication per element.",
        reference=reference,
        inputs=tensors(x="rows cols"),
        outputs=tensors(quantised=f"{dtype}[rows cols]", scales="float32[rows]"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        flops=lambda dims: 3 * dims["rows"] * dims["cols"],  # a maximum, a product and a rounding
        tolerance=Tolerance(exact=True),  # every rounding is specified
        arranged=TIES[dtype],
        exempt=dict.fromkeys((*NOT_FINITE, COUNTED_NAN), "the scale of such a row is not a number"),
    )


def dequantise(dtype: str) -> Op:
    largest = LARGEST[dtype]

    def reference(quantised: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return quantised.to(scales.dtype) * scales.unsqueeze(-1)

    def draw(inputs: Tensors, generator: torch.Generator) -> None:
        """Draw every 8-bit value, and scales of rows whose largest magnitude is between 1/2 and 4."""
        shape, device = inputs["quantised"].shape, inputs["quantised"].device
        values = torch.empty(shape, device=device).uniform_(-largest, largest, generator=generator)
        inputs["quantised"].copy_(values.round_() if dtype == "int8" else values)
        inputs["scales"].uniform_(0.5 / largest, 4 / largest, generator=generator)

    return Op(
        name=f"dequantise_rows_{SHORT[dtype]}",
        note=f"out = quantised * scales of the row, rounded once. `quantised` is {dtype}; `scales` have the dtype of "
        "the result.",
        reference=reference,
        inputs=tensors(quantised=f"{dtype}[rows cols]", scales="rows"),
        outputs=tensors(out="rows cols"),
        gpu=GPU,
        emulated=EMULATED,
        awkward=AWKWARD,
        values=(),  # `draw` draws all inputs
        draw=draw,
        arranged={
            **nan_in("scales"),
            **(
                {**nan_in("quantised"), **nan_at_the_end("quantised")}
                if DTYPES[dtype].is_floating_point
                else {"least": filled(quantised=-128)}
            ),
            **scaled(scales=-(2.0**-10)),
        },
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices for a product, rounded once.
    )


ops = tuple(make(dtype) for dtype in LARGEST for make in (quantise, dequantise))
