"""Batched product: many small matrix products at once."""

import torch

from reference_ops.arrangements import opposed
from reference_ops.matrix._drawing import far_below_one
from reference_ops.op import OF_PRODUCTS, Op, Tensors, Tolerance, rotated, tensors, workloads


def batched_gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


def draw(inputs: Tensors, _: torch.Generator) -> None:
    far_below_one(inputs["b"])


def at(batch: int, m: int, n: int, k: int) -> dict[str, int]:
    return {"batch": batch, "m": m, "n": n, "k": k}


op = Op(
    name="batched_gemm",
    note="out[i] = a[i] @ b[i] for every i of the batch; all matrices are row-major. No TF32.",
    reference=batched_gemm,
    inputs=tensors(a="batch m k", b="batch k n"),
    outputs=tensors(out="batch m n"),
    gpu=(
        *workloads("bfloat16 float32 float16", at(4096, 64, 64, 64)),
        *workloads("bfloat16", at(2048, 128, 128, 64)),  # chunks of a linear attention
        *workloads("bfloat16", at(16384, 49, 49, 32)),  # the windows of a Swin transformer
        *workloads("float32", at(8191, 17, 33, 65)),
    ),
    emulated=workloads("float32 bfloat16 float16", at(4, 64, 32, 64), at(9, 16, 48, 32)),
    awkward=rotated(
        "float32 bfloat16 float16",
        at(1, 1, 1, 1), at(5, 31, 33, 17), at(3, 33, 31, 65), at(7, 65, 1, 31), at(2, 1, 65, 33), at(2, 17, 16, 127),
    ),
    # Products of two tiny numbers underflow float16. With constant matrices, all results are equal, and a single
    # rounding would affect all of them.
    values=(*(name for name in OF_PRODUCTS if name not in ("tiny", "constant")), "integers"),
    draw=draw,
    flops=lambda dims: dims["batch"] * dims["m"] * dims["n"],
    matrix_flops=lambda dims: 2 * dims["batch"] * dims["m"] * dims["n"] * dims["k"],
    arranged=opposed(a=2, b=1),
    # The default factor suffices for float32 sums, rounded once.
    tolerance=Tolerance(sums="k", in_turn="k"),
)  # fmt: skip
