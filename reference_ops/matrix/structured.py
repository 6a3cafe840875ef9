"""Products with triangular and diagonal matrices, in which the dense product's work on zeros can be saved."""

import torch

from reference_ops.matrix._drawing import like_weights
from reference_ops.op import NOT_FINITE, OF_PRODUCTS, Op, Tensors, Tolerance, rotated, tensors, workloads


def triangular_gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.tril(a) @ b


def diagonal_gemm(d: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return d.unsqueeze(1) * b


def draw(inputs: Tensors, _: torch.Generator) -> None:
    like_weights(inputs["b"])


def at(rows: int, cols: int) -> dict[str, int]:
    return {"rows": rows, "cols": cols}


ops = (
    Op(
        name="triangular_gemm",
        note="out = tril(a) @ b, row-major: out[i] is the sum over j <= i of a[i, j] * b[j]; elements of a above its "
             "diagonal have no effect. No TF32.",
        reference=triangular_gemm,
        inputs=tensors(a="rows rows", b="rows cols"),
        outputs=tensors(out="rows cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(4096, 4096)),
            *workloads("bfloat16", at(8192, 1024)),
            *workloads("bfloat16 float32", at(2048, 2048)),
            *workloads("float32", at(3001, 1009)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(96, 64), at(128, 80)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1), at(31, 33), at(33, 31), at(65, 7), at(127, 65), at(129, 17),
        ),
        # No "integers": PyTorch lets cuBLAS add partial sums in 16 bits, which are not exact.
        values=OF_PRODUCTS,
        draw=draw,
        exempt=dict.fromkeys(NOT_FINITE, "whether a zero above the diagonal is multiplied is left open"),
        touched={"a": lambda dims: dims["rows"] * (dims["rows"] + 1) // 2},
        flops=lambda dims: dims["rows"] * dims["cols"],
        matrix_flops=lambda dims: dims["rows"] * (dims["rows"] + 1) * dims["cols"],
        # The default factor suffices for float32 sums, rounded once.
        tolerance=Tolerance(sums="rows"),
    ),
    Op(
        name="diagonal_gemm",
        note="out = diag(d) @ b: row i of b times d[i]. PyTorch is also timed on this form, not on the dense product.",
        reference=diagonal_gemm,
        inputs=tensors(d="rows", b="rows cols"),
        outputs=tensors(out="rows cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", at(8192, 8192)),
            *workloads("bfloat16", at(32768, 2048), at(4096, 4096)),
            *workloads("float32", at(4099, 5003)),
        ),
        emulated=workloads("float32 bfloat16 float16", at(96, 128), at(24, 512)),
        awkward=rotated(
            "float32 bfloat16 float16",
            at(1, 1), at(31, 33), at(33, 31), at(257, 7), at(5, 1009), at(1, 4097),
        ),
        values=(*OF_PRODUCTS, "integers"),
        flops=lambda dims: dims["rows"] * dims["cols"],
        # The default factor suffices for one multiplication, rounded once.
    ),
)  # fmt: skip
