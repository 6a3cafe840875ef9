"""Layer normalisation over the last dim with weight and bias, with its statistics as outputs, and its backward."""

import torch

from reference_ops.arrangements import far_from_zero
from reference_ops.normalization._moments import constant_sets, drawn_eps, moments_as_on_a_gpu
from reference_ops.normalization.rms_norm import AWKWARD, is_many
from reference_ops.op import COMMON, Op, Tensors, Tolerance, rotated, tensors, workloads

aten = torch.ops.aten
EPS = 1e-5
# For a row of equal numbers the weight's gradient is only rounding, because x minus its mean is 0.
VARIED = tuple(name for name in COMMON if name != "constant")


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """On a CPU, compute in float32 as on a GPU, whose errors are larger than those of a CPU."""
    if x.device.type != "cpu" or x.dtype == torch.float64:
        return as_called(x, weight, bias, eps)
    mean, variance = moments_as_on_a_gpu(x.float())
    rstd = (variance + eps).rsqrt()
    out = (x.float() - mean) * rstd * weight.float() + bias.float()
    return out.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


def as_called(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if rounds_statistics(x):
        out, mean, rstd = aten.native_layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps)
    else:
        out, mean, rstd = aten.native_layer_norm(x, weight.shape, weight, bias, eps)
    return out.to(x.dtype), mean.squeeze(-1), rstd.squeeze(-1)


def layer_norm_backward(
    grad_out: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if rounds_statistics(x):
        wide = layer_norm_backward(grad_out.float(), x.float(), mean, rstd, weight.float())
        grad_x, grad_weight, grad_bias = (gradient.to(x.dtype) for gradient in wide)
        return grad_x, grad_weight, grad_bias
    statistics = (mean.unsqueeze(-1), rstd.unsqueeze(-1))
    # PyTorch only checks whether there is a bias, so the weight can take its place.
    given = (grad_out, x, weight.shape, *statistics, weight, weight)
    grad_x, grad_weight, grad_bias = aten.native_layer_norm_backward(*given, [True, True, True])
    return grad_x, grad_weight, grad_bias


def rounds_statistics(x: torch.Tensor) -> bool:
    """Return whether PyTorch rounds the statistics to x's dtype, as on a CPU; on a GPU it keeps them in float32."""
    return x.device.type == "cpu" and x.element_size() == 2


def draw_statistics(inputs: Tensors, generator: torch.Generator) -> None:
    variance, mean = torch.var_mean(inputs["x"].double(), -1, correction=0)
    inputs["mean"].copy_(mean)
    inputs["rstd"].copy_(variance.add_(drawn_eps(generator)).rsqrt_())


EMULATED = ({"rows": 32, "cols": 256}, {"rows": 16, "cols": 768}, {"rows": 3, "cols": 2080})

ops = (
    Op(
        name="layer_norm",
        note="out = (x - mean) * rstd * weight + bias, with the mean and rstd = 1 / sqrt(variance + eps) of each row, "
             "the variance divided by cols. Both statistics are also outputs, in float32, for the backward.",
        reference=layer_norm,
        baseline=as_called,
        inputs=tensors(x="rows cols", weight="cols", bias="cols"),
        outputs=tensors(out="rows cols", mean="float32[rows]", rstd="float32[rows]"),
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 32768, "cols": 768}, eps=EPS),
            *workloads("bfloat16 float32", {"rows": 8192, "cols": 4096}, eps=EPS),
            *workloads("bfloat16", {"rows": 2048, "cols": 16384}, eps=EPS),
            *workloads("bfloat16", {"rows": 12608, "cols": 1153}, eps=EPS),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED, eps=EPS),
        awkward=rotated("float32 bfloat16 float16", *AWKWARD, eps=EPS),
        nan_spreads=True,  # `nan_spreads` also holds in rows of one column
        arranged=far_from_zero("x"),
        flops=lambda dims: 8 * dims["rows"] * dims["cols"],
        # The default factor suffices: PyTorch also sums in float32 and rounds once.
        tolerance=Tolerance(sums="cols"),
        backward=("layer_norm_backward",),
    ),
    Op(
        name="layer_norm_backward",
        note="With n = (x - mean) * rstd and g = grad_out * weight: grad_x = rstd * (g - mean(g) - n * mean(g * n)), "
        "means over each row; grad_weight = sum over the rows of grad_out * n, grad_bias of grad_out.",
        reference=layer_norm_backward,
        inputs=tensors(
            grad_out="rows cols", x="rows cols", mean="float32[rows]", rstd="float32[rows]", weight="cols"
        ),
        outputs=tensors(grad_x="rows cols", grad_weight="cols", grad_bias="cols"),
        gpu=(
            *workloads("bfloat16 float32 float16", {"rows": 32768, "cols": 768}),
            *workloads("bfloat16 float32", {"rows": 8192, "cols": 4096}),
            *workloads("bfloat16", {"rows": 2048, "cols": 16384}),
            *workloads("bfloat16", {"rows": 12608, "cols": 1153}),
        ),
        emulated=workloads("float32 bfloat16 float16", *EMULATED),
        awkward=rotated("float32 bfloat16 float16", {"rows": 1, "cols": 31}, *AWKWARD[1:]),
        valid=is_many,
        draw=draw_statistics,
        values=VARIED,
        arranged=constant_sets("x", draw_statistics),
        flops=lambda dims: 14 * dims["rows"] * dims["cols"],
        # The default factor suffices: PyTorch also sums rows and columns in float32.
        tolerance=Tolerance(sums="rows"),
    ),
)  # fmt: skip
