"""Linear layers with an activation: a fused epilogue saves a pass over the output."""

from collections.abc import Callable

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.matrix._drawing import like_weights
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads


def gemm_bias_relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.relu(functional.linear(x, weight, bias))


def gemm_bias_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.gelu(functional.linear(x, weight, bias))


def draw(inputs: Tensors, _: torch.Generator) -> None:
    like_weights(inputs["weight"])


def at(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


def activated(name: str, reference: Callable[..., torch.Tensor], formula: str, each: int) -> Op:
    """Return the op of a linear layer whose epilogue costs `each` operations per element of the output."""
    return Op(
        name=name,
        note=f"A linear layer: out = {formula} of x @ weight.T + bias; weight is [n, k], row-major. No TF32. PyTorch "
        "rounds the sum to the dtype before the activation; a kernel need not do so.",
        reference=reference,
        inputs=tensors(x="m k", weight="n k", bias="n"),
        outputs=tensors(out="m n"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 3072, 768)),  # GPT-2's first layer of an MLP
            *workloads("bfloat16", at(4096, 8192, 2048)),
            *workloads("bfloat16 float32", at(16384, 512, 1024)),
            *workloads("float32", at(4099, 1009, 1281)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(96, 64, 128), at(64, 48, 256)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1, 1), at(31, 33, 17), at(33, 31, 65), at(65, 129, 7), at(129, 65, 31), at(7, 257, 33),
            at(127, 5, 101),
        ),
        values=(*COMMON, "vast"),  # a bias would hide faint sums
        # No "integers": PyTorch lets cuBLAS add partial sums in 16 bits, which are not exact.
        draw=draw,
        flops=lambda dims: (1 + each) * dims["m"] * dims["n"],
        matrix_flops=lambda dims: 2 * dims["m"] * dims["n"] * dims["k"],
        arranged=opposed(x=1, weight=1),
        # The default factor suffices for float32 sums, rounded once at the end.
        tolerance=Tolerance(sums="k", in_turn="k"),
    )  # fmt: skip


ops = (
    activated("gemm_bias_relu", gemm_bias_relu, "relu", 1),
    activated("gemm_bias_gelu", gemm_bias_gelu, "gelu (exact, by erf)", 16),
)
