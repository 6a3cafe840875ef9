"""A step of AdamW on a flat vector of parameters, its moments in float32."""

import math
from collections.abc import Mapping

import torch

from reference_ops.arrangements import unused
from reference_ops.op import INFINITE, MINUS_INF, Number, Op, Tensors, rotated, tensors, workloads


def adamw(  # noqa: PLR0913, PLR0917 - AdamW has as many
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    step: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    wide, slope = param.to(exp_avg.dtype), grad.to(exp_avg.dtype)
    mean = beta1 * exp_avg + (1 - beta1) * slope
    square = beta2 * exp_avg_sq + (1 - beta2) * slope * slope
    denominator = square.sqrt() / math.sqrt(1 - beta2**step) + eps
    stepped = (1 - lr * weight_decay) * wide - lr / (1 - beta1**step) * mean / denominator
    return stepped.to(param.dtype), mean, square


def no_negative_square(inputs: Tensors, _: torch.Generator) -> None:
    inputs["exp_avg_sq"].abs_()


def infinite_gradient(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Number]) -> None:
    """Draw a few infinite gradients, as after an overflow: the parameter becomes NaN."""
    chosen = torch.empty_like(inputs["grad"], dtype=torch.bool).bernoulli_(0.1, generator=generator)
    chosen[-1] = True
    inputs["grad"].masked_fill_(chosen, math.inf)


UNDEFINED = "whether an infinite moment stays infinite or becomes NaN depends on how PyTorch interpolates it"
# Rounded to bfloat16, a parameter hardly shows the usual decay of 1e-4 and less.
COARSE: dict[str, Number] = {"lr": 0.02, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.25}
FINE: dict[str, Number] = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
SLOW: dict[str, Number] = {**FINE, "beta2": 0.9999}  # its correction still matters after 10,000 steps
SMALL = ({"n": 8 * 1024}, {"n": 3 * 4096 + 32})

op = Op(
    name="adamw",
    note="new_exp_avg, new_exp_avg_sq: m and v after this step, in float32. new_param = (1 - lr * weight_decay) * "
    "param - "
    "lr / (1 - beta1**step) * m / (sqrt(v / (1 - beta2**step)) + eps), rounded once; beta**step in double.",
    reference=adamw,
    inputs=tensors(param="n", grad="n", exp_avg="float32[n]", exp_avg_sq="float32[n]"),
    outputs=tensors(new_param="n", new_exp_avg="float32[n]", new_exp_avg_sq="float32[n]"),
    gpu=(
        *workloads("float32", {"n": 4096 * 4096}, **FINE, step=1000),  # a projection of Llama 2 7B
        *workloads("bfloat16", {"n": 4096 * 4096}, **COARSE, step=1000),
        # all parameters of ResNet-50; one of GPT-2
        *workloads("float32", {"n": 25_557_032}, {"n": 768 * 768}, **FINE, step=1),
        *workloads("bfloat16", {"n": 50257 * 768}, {"n": 9_999_991}, **COARSE, step=20),  # GPT-2's embedding; awkward
    ),
    emulated=(
        *workloads("float32", *SMALL, **FINE, step=1000),
        *workloads("bfloat16", *SMALL, **COARSE, step=20),
    ),
    awkward=(
        *rotated("float32 bfloat16", {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, **FINE, step=1),
        *rotated("float32 bfloat16", {"n": 4095}, {"n": 4097}, **COARSE, step=5),
        *workloads("bfloat16", {"n": 63}, **COARSE, step=65537),  # one step beyond 16 bits
        *workloads("float32", {"n": 127}, **SLOW, step=10_007),
        *workloads("float32", {"n": 511}, **COARSE, step=20_000_019),  # beyond the integers of float32
    ),
    draw=no_negative_square,
    arranged={"infinite_gradient": infinite_gradient, **unused("grad", "exp_avg", "exp_avg_sq")},
    exempt={INFINITE: UNDEFINED, MINUS_INF: UNDEFINED},
    valid=lambda known: (
        known["lr"] >= 0
        and known["weight_decay"] >= 0
        and 0 <= known["beta1"] < 1
        and 0 <= known["beta2"] < 1
        and known["step"] > 0
        # A step that removes nearly all of a parameter leaves a difference of two numbers, which has few correct digits
        # if lr * weight_decay is rounded. If lr * weight_decay is at most a half, 1 - lr * weight_decay has all the
        # digits of its terms.
        and known["lr"] * known["weight_decay"] <= 1 / 2
    ),
    # Two moments with three operations each, a root, two divisions with four operations each, two products and a
    # difference.
    flops=lambda dims: 22 * dims["n"],
    # The default factor suffices: PyTorch rounds every intermediate result to float32, and a kernel need not be less
    # exact.
)
