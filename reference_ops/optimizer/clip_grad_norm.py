"""Clipping of a gradient to a maximum norm, as between the backward pass and the optimizer's step."""

import torch

from reference_ops.arrangements import nan_at_the_end
from reference_ops.op import OF_PRODUCTS, Op, Tolerance, rotated, tensors, workloads


def clip_grad_norm(grad: torch.Tensor, max_norm: float) -> tuple[torch.Tensor, torch.Tensor]:
    wide = torch.promote_types(grad.dtype, torch.float32)
    norm = torch.linalg.vector_norm(grad, dtype=wide)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1)
    return (grad.to(wide) * scale).to(grad.dtype), norm.reshape(1)


op = Op(
    name="clip_grad_norm",
    note="norm = sqrt(sum of grad * grad), in float32. out = grad * min(1, max_norm / (norm + 1e-6)), rounded once.",
    reference=clip_grad_norm,
    inputs=tensors(grad="n"),
    outputs=tensors(out="n", norm="float32[1]"),
    gpu=(
        *workloads("bfloat16 float32 float16", {"n": 2**26}, max_norm=1.0),  # a bucket of a large model
        *workloads("float32", {"n": 25_557_032}, max_norm=1.0),  # all parameters of ResNet-50
        *workloads("bfloat16", {"n": 50257 * 768}, {"n": 768 * 768}, {"n": 9_999_991}, max_norm=1.0),  # GPT-2; awkward
        # no clipping, because the usual norm is a third of this limit
        *workloads("float32", {"n": 9_999_991}, max_norm=1e4),
    ),
    emulated=(
        *workloads("float32 bfloat16 float16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}, max_norm=1.0),
        *workloads("float32", {"n": 8 * 1024}, max_norm=300.0),
    ),
    awkward=(
        *rotated(
            "float32 bfloat16 float16",
            {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, {"n": 4095}, {"n": 4097},
            max_norm=1.0,
        ),
        *rotated("bfloat16 float16", {"n": 40_009}, {"n": 90_001}, max_norm=600.0),
    ),
    # "tiny" is left out, because its squares underflow in a kernel, while PyTorch does not square a single element.
    # Each row is one element here, so "constant" gives normal numbers.
    values=tuple(name for name in OF_PRODUCTS if name not in ("tiny", "constant")),
    by_rows=False,  # every value is scaled by the norm of all values
    arranged=nan_at_the_end("grad"),
    valid=lambda known: known["max_norm"] >= 0,
    flops=lambda dims: 3 * dims["n"],
    # All elements share the error of one norm: three or four roundings, each of which may be exact in PyTorch. `sums`
    # is not set: thousands of threads sum, so that no thread sums many terms.
    tolerance=Tolerance(factor=3.0),
)  # fmt: skip
