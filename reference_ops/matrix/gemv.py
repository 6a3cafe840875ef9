"""Products with a vector, or with the few rows of a decoding step. They take the time of reading the weights once."""

import torch
from torch.nn import functional

from reference_ops.arrangements import opposed
from reference_ops.matrix._drawing import like_weights
from reference_ops.op import OF_PRODUCTS, Op, Tensors, Tolerance, rotated, tensors, workloads


def gemv(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return a @ x


def skinny_gemm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, weight)


def draw_vector(inputs: Tensors, _: torch.Generator) -> None:
    like_weights(inputs["x"])


def draw_weight(inputs: Tensors, _: torch.Generator) -> None:
    like_weights(inputs["weight"])


def square(n: int, k: int) -> dict[str, int]:
    return {"n": n, "k": k}


def at(m: int, n: int, k: int) -> dict[str, int]:
    return {"m": m, "n": n, "k": k}


# "integers" are left out: PyTorch lets cuBLAS add partial sums in 16 bits, which are not exact.

ops = (
    Op(
        name="gemv",
        note="out[n] = sum over k of a[n, k] * x[k]: a matrix times a vector. No TF32.",
        reference=gemv,
        inputs=tensors(a="n k", x="k"),
        outputs=tensors(out="n"),
        gpu=(
            *workloads("bfloat16 float32 float16", square(8192, 8192)),
            *workloads("bfloat16", square(28672, 8192)),  # the widest layer of a 70-billion-parameter model
            *workloads("bfloat16", square(4096, 14336)),
            *workloads("float32", square(5003, 4099)),
        ),
        emulated=workloads("float32 bfloat16 float16", square(256, 512), square(96, 1024)),
        awkward=rotated(
            "float32 bfloat16 float16",
            square(1, 1), square(31, 33), square(33, 31), square(7, 257), square(129, 1009), square(3, 4097),
        ),
        values=OF_PRODUCTS,
        draw=draw_vector,
        flops=lambda dims: dims["n"],
        matrix_flops=lambda dims: 2 * dims["n"] * dims["k"],
        arranged=opposed(a=1, x=0),
        # The default factor suffices for float32 sums, rounded once.
        tolerance=Tolerance(sums="k", in_turn="k"),
    ),
    Op(
        name="skinny_gemm",
        note="out = x @ weight.T for few rows of x (m = 2 to 64, the tokens of a decoding step); weight is [n, k], "
        "row-major. No TF32.",
        reference=skinny_gemm,
        inputs=tensors(x="m k", weight="n k"),
        outputs=tensors(out="m n"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8, 8192, 8192)),
            *workloads("bfloat16", at(4, 8192, 8192), at(64, 8192, 8192)),
            *workloads("bfloat16", at(16, 4096, 14336)),  # the last layer of an 8-billion-parameter model's MLP
            *workloads("float32", at(3, 5003, 4099)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(8, 128, 512), at(33, 64, 256)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1, 1), at(31, 33, 17), at(1, 257, 129), at(63, 31, 33), at(64, 7, 1009), at(9, 65, 4097),
        ),
        values=OF_PRODUCTS,
        draw=draw_weight,
        flops=lambda dims: dims["m"] * dims["n"],
        matrix_flops=lambda dims: 2 * dims["m"] * dims["n"] * dims["k"],
        arranged=opposed(x=1, weight=1),
        # The default factor suffices for float32 sums, rounded once.
        tolerance=Tolerance(sums="k", in_turn="k"),
    ),
)  # fmt: skip
