"""A residual addition followed by layer normalisation, as in BERT and GPT-2, and its backward."""

import torch

from reference_ops.arrangements import far_from_zero, filled
from reference_ops.normalization._moments import constant_sets, drawn_eps
from reference_ops.normalization.layer_norm import EMULATED, EPS, VARIED, layer_norm, layer_norm_backward
from reference_ops.normalization.rms_norm import AWKWARD, is_many
from reference_ops.op import Op, Tensors, Tolerance, rotated, tensors, workloads


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    exact = torch.promote_types(x.dtype, torch.float32)
    summed = x.to(exact) + residual.to(exact)
    out, mean, rstd = layer_norm(summed, weight.to(exact), bias.to(exact), eps)
    return out.to(x.dtype), summed.to(x.dtype), mean, rstd


def rounded_before(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the op as model code does: the sum is rounded before it is normalised."""
    summed = x + residual
    out, mean, rstd = layer_norm(summed, weight, bias, eps)
    return out, summed, mean, rstd


def add_layer_norm_backward(
    grad_out: torch.Tensor,
    grad_summed: torch.Tensor,
    summed: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute in float32 or wider, so that the gradient through the norm is not rounded before it is added."""
    exact = torch.promote_types(summed.dtype, torch.float32)
    grad, value, gain = (tensor.to(exact) for tensor in (grad_out, summed, weight))
    through_norm, grad_weight, grad_bias = layer_norm_backward(grad, value, mean, rstd, gain)
    gradients = (through_norm + grad_summed, grad_weight, grad_bias)
    grad_x, grad_weight, grad_bias = (gradient.to(summed.dtype) for gradient in gradients)
    return grad_x, grad_weight, grad_bias


def draw_statistics(inputs: Tensors, generator: torch.Generator) -> None:
    variance, mean = torch.var_mean(inputs["summed"].double(), -1, correction=0)
    inputs["mean"].copy_(mean)
    inputs["rstd"].copy_(variance.add_(drawn_eps(generator)).rsqrt_())


ops = (
    Op(
        name="add_layer_norm",
        note="summed = x + residual, out = (summed - mean) * rstd * weight + bias, with the mean and rstd = 1 / "
             "sqrt(variance + eps) of each row of the sum, the variance divided by cols. All of these are computed "
             "from the sum in float32, which is rounded to the dtype only as the output `summed`, the residual stream. "
             "The statistics are float32.",
        reference=add_layer_norm,
        baseline=rounded_before,
        baseline_free=("out", "mean", "rstd"),
        inputs=tensors(x="rows cols", residual="rows cols", weight="cols", bias="cols"),
        outputs=tensors(out="rows cols", summed="rows cols", mean="float32[rows]", rstd="float32[rows]"),
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 16384, "cols": 1024}, eps=EPS),
            *workloads("bfloat16", {"rows": 32768, "cols": 768}, eps=EPS),
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 12288}, eps=EPS),
            *workloads("bfloat16", {"rows": 12608, "cols": 1153}, eps=EPS),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=EPS),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, eps=EPS),
        nan_spreads=True,  # `nan_spreads` also holds in rows of one column
        arranged=far_from_zero("x"),
        flops=lambda dims: 9 * dims["rows"] * dims["cols"],
        # The default factor suffices: the reference also works in float32 and rounds once.
        tolerance=Tolerance(sums="cols"),
        backward=("add_layer_norm_backward",),
    ),
    Op(
        name="add_layer_norm_backward",
        note="With n = (summed - mean) * rstd and g = grad_out * weight: grad_x = grad_summed + rstd * (g - mean(g) - "
        "n * mean(g * n)), means over each row; grad_weight = sum over the rows of grad_out * n, grad_bias of "
        "grad_out. The gradient of the residual is that of x.",
        reference=add_layer_norm_backward,
        inputs=tensors(
            grad_out="rows cols", grad_summed="rows cols", summed="rows cols", mean="float32[rows]",
            rstd="float32[rows]", weight="cols",
        ),
        outputs=tensors(grad_x="rows cols", grad_weight="cols", grad_bias="cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 16384, "cols": 1024}),
            *workloads("bfloat16", {"rows": 32768, "cols": 768}),
            *workloads("bfloat16 float32", {"rows": 4096, "cols": 12288}),
            *workloads("bfloat16", {"rows": 12608, "cols": 1153}),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED),
        awkward=rotated("float32 bfloat16 float16", {"rows": 1, "cols": 31}, *AWKWARD[1:]),
        valid=is_many,
        draw=draw_statistics,
        values=VARIED,
        arranged={
            "grad_out_zero": filled(grad_out=0.0),
            "grad_summed_zero": filled(grad_summed=0.0),
            **constant_sets("summed", draw_statistics),
        },
        flops=lambda dims: 15 * dims["rows"] * dims["cols"],
        # The default factor suffices: PyTorch also sums rows and columns in float32.
        tolerance=Tolerance(sums="rows"),
    ),
)  # fmt: skip
