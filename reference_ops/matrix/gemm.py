"""The product of two matrices, and its backward."""

import torch

from reference_ops.arrangements import opposed
from reference_ops.matrix._drawing import far_below_one, like_weights
from reference_ops.op import OF_PRODUCTS, Op, Tensors, Tolerance, rotated, tensors, workloads


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def gemm_backward(grad_out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return grad_out @ b.T, a.T @ grad_out


def draw(inputs: Tensors, _: torch.Generator) -> None:
    like_weights(inputs["b"])
    if "grad_out" in inputs:
        far_below_one(inputs["grad_out"])


def at(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


EMULATED = workloads("float32 bfloat16 float16", at(96, 64, 128), at(64, 48, 256))
AWKWARD = rotated(
    "float32 bfloat16 float16",
    at(1, 1, 1), at(31, 33, 17), at(33, 31, 65), at(65, 129, 7), at(129, 65, 31), at(7, 257, 33), at(127, 5, 101),
)  # fmt: skip
# "integers" are left out: PyTorch lets cuBLAS add partial sums in 16 bits, which are not exact.

ops = (
    Op(
        name="gemm",
        note="out = a @ b, both row-major. float32 is multiplied in float32 (no TF32), as PyTorch does by default.",
        reference=gemm,
        inputs=tensors(a="m k", b="k n"),
        outputs=tensors(out="m n"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(4096, 4096, 4096)),
            *workloads("bfloat16", at(4096, 8192, 2048)),  # a projection of a small language model
            *workloads("bfloat16", at(16384, 64, 4096)),  # the narrow projection of a LoRA
            *workloads("float32", at(4099, 1009, 1281)),
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=OF_PRODUCTS,
        draw=draw,
        flops=lambda dims: dims["m"] * dims["n"],
        matrix_flops=lambda dims: 2 * dims["m"] * dims["n"] * dims["k"],
        arranged=opposed(a=1, b=0),
        # The default factor suffices for float32 sums in any order, rounded once.
        tolerance=Tolerance(sums="k", in_turn="k"),
        backward=("gemm_backward",),
    ),
    Op(
        name="gemm_backward",
        note="The gradients of out = a @ b: grad_a = grad_out @ b.T and grad_b = a.T @ grad_out. No TF32.",
        reference=gemm_backward,
        inputs=tensors(grad_out="m n", a="m k", b="k n"),
        outputs=tensors(grad_a="m k", grad_b="k n"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(4096, 2048, 4096)),
            *workloads("bfloat16", at(8192, 2048, 2048), at(16384, 64, 4096)),
            *workloads("float32", at(4099, 1009, 1281)),
        ),
        emulated=EMULATED,
        awkward=AWKWARD,
        values=tuple(name for name in OF_PRODUCTS if name != "tiny"),  # products of two tiny rows underflow float16
        draw=draw,
        flops=lambda dims: dims["k"] * (dims["m"] + dims["n"]),
        matrix_flops=lambda dims: 4 * dims["m"] * dims["n"] * dims["k"],
        arranged=opposed(grad_out=1, b=1),
        # The default factor suffices, as in the forward. grad_b has the longer sums, over all tokens of a batch.
        tolerance=Tolerance(sums="m"),
    ),
)
