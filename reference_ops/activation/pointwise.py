"""Elementwise activations and their gradients. The `note` of each op is its formula."""
# ruff: noqa: PLW0108 - lambdas have source code that can be shown, unlike builtins of torch

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch.nn import functional

from reference_ops.arrangements import sprinkled
from reference_ops.op import COMMON, SAVED_NAN, Arrange, Number, Op, Tensors, Tolerance, rotated, tensors, workloads

Reference = Callable[..., torch.Tensor]
aten = torch.ops.aten


POSITIVE = Tolerance(relative=True)
NOTHING: Mapping[str, str] = {}
UNARRANGED: Mapping[str, Arrange] = {}
OF_COMPARISONS = {SAVED_NAN: "the branch for NaN depends on PyTorch's device"}


def activation(
    name: str, reference: Reference, note: str, flops: int, values: tuple[str, ...] = (), **parameters: Number
) -> Op:
    """Return the op `out = reference(x)`; its gradient is a separate op."""
    return Op(
        name=name,
        reference=reference,
        inputs=tensors(x="n"),
        outputs=tensors(out="n"),
        gpu=(
            *workloads("bfloat16 float32 float16", {"n": 2**26}, **parameters),
            *workloads("bfloat16", {"n": 16384 * 3072}, **parameters),  # a transformer's hidden layer, 16384 tokens
            *workloads("float32", {"n": 64 * 64 * 112 * 112}, **parameters),  # after the first convolution of a ResNet
            *workloads("bfloat16", {"n": 2**22}, {"n": 9_999_991}, **parameters),
        ),
        emulated=workloads("float32 bfloat16 float16", {"n": 8 * 1024}, {"n": 3 * 4096 + 32}, **parameters),
        awkward=rotated(
            "float32 bfloat16 float16",
            {"n": 1}, {"n": 31}, {"n": 33}, {"n": 1009}, {"n": 4095}, {"n": 4097},
            **parameters,
        ),
        values=(*COMMON, *values),
        flops=lambda dims: flops * dims["n"],
        backward=(f"{name}_backward",),
        # The default factor suffices: PyTorch evaluates in float32 and rounds once, as a kernel can.
        note=f"{note} Elementwise over n contiguous values.",
    )  # fmt: skip


def gradient(
    of: str,
    reference: Reference,
    note: str,
    flops: int,
    values: tuple[str, ...] = (),
    exempt: Mapping[str, str] = NOTHING,
    arranged: Mapping[str, Arrange] = UNARRANGED,
    **parameters: Number,
) -> Op:
    """Return the op `grad_x = reference(grad_out, x)`."""
    forward = activation(of, reference, note, flops, values, **parameters)
    inputs, outputs = tensors(grad_out="n", x="n"), tensors(grad_x="n")
    return replace(
        forward,
        name=f"{of}_backward",
        inputs=inputs,
        outputs=outputs,
        backward=(),
        exempt=exempt,
        arranged=arranged,
    )


def gradient_from_output(
    of: str, native: Reference, note: str, flops: int, draw: Callable[[Tensors, torch.Generator], None]
) -> Op:
    """Return the op `grad_x = native(grad_out, out)`, in float32 and rounded once.

    The baseline, PyTorch's own function, rounds at every step on a GPU: if `out` is near 1, 1 - out has few digits in
    16 bits.
    """

    def reference(grad_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        exact = torch.promote_types(out.dtype, torch.float32)
        return native(grad_out.to(exact), out.to(exact)).to(out.dtype)

    return replace(
        gradient(of, reference, note, flops),
        inputs=tensors(grad_out="n", out="n"),
        draw=draw,
        baseline=native,
        baseline_free=("grad_x",),
    )


def through_sigmoid(inputs: Tensors, _: torch.Generator) -> None:
    inputs["out"].sigmoid_()


def through_tanh(inputs: Tensors, _: torch.Generator) -> None:
    inputs["out"].tanh_()


# In `flops`, an exponential, a logarithm and a division count as four operations each. Ops whose slope changes at zero
# are given inputs with many zeros: "integers" if the op rounds nothing, and otherwise "ties".
ops = (
    activation("relu", lambda x: functional.relu(x), "out = max(x, 0).", 1, ("integers",)),
    gradient(
        "relu",
        lambda grad_out, x: aten.threshold_backward(grad_out, x, 0),
        "grad_x = 0 where x <= 0, else grad_out.",
        1,
        ("integers",),
    ),
    activation(
        "leaky_relu",
        lambda x, negative_slope: functional.leaky_relu(x, negative_slope),
        "out = x where x > 0, else negative_slope * x.",
        2,
        negative_slope=0.01,
    ),
    gradient(
        "leaky_relu",
        lambda grad_out, x, negative_slope: aten.leaky_relu_backward(grad_out, x, negative_slope, False),
        "grad_x = grad_out where x > 0, else negative_slope * grad_out.",
        2,
        ("ties",),
        negative_slope=0.01,
    ),
    activation(
        "elu",
        lambda x, alpha: functional.elu(x, alpha),
        "out = x where x > 0, else alpha * expm1(x).",
        7,
        alpha=1.0,
    ),
    gradient(
        "elu",
        lambda grad_out, x, alpha: aten.elu_backward(grad_out, alpha, 1, 1, False, x),
        "grad_x = grad_out * alpha * exp(x) where x <= 0, else grad_out.",
        7,
        ("ties",),
        OF_COMPARISONS,
        alpha=1.0,
    ),
    # The forward of gelu has its own file.
    gradient(
        "gelu",
        lambda grad_out, x: aten.gelu_backward(grad_out, x, approximate="none"),
        "grad_x = grad_out * (0.5 * (1 + erf(x / sqrt(2))) + x * exp(-x * x / 2) / sqrt(2 * pi)).",
        25,
    ),
    activation(
        "gelu_tanh",
        lambda x: functional.gelu(x, approximate="tanh"),
        "out = 0.5 * x * (1 + tanh(u)) with u = sqrt(2 / pi) * (x + 0.044715 * x**3).",
        18,
    ),
    gradient(
        "gelu_tanh",
        lambda grad_out, x: aten.gelu_backward(grad_out, x, approximate="tanh"),
        "grad_x = grad_out * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / pi) * (1 + 3 * 0.044715 * x**2)) "
        "with t = tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)).",
        26,
    ),
    replace(activation("sigmoid", lambda x: torch.sigmoid(x), "out = 1 / (1 + exp(-x)).", 10), tolerance=POSITIVE),
    gradient_from_output(
        "sigmoid",
        lambda grad_out, out: aten.sigmoid_backward(grad_out, out),
        "grad_x = grad_out * out * (1 - out), where out is sigmoid(x).",
        3,
        through_sigmoid,
    ),
    activation("silu", lambda x: functional.silu(x), "out = x / (1 + exp(-x)).", 10),
    gradient(
        "silu",
        lambda grad_out, x: aten.silu_backward(grad_out, x),
        "grad_x = grad_out * s * (1 + x * (1 - s)) with s = 1 / (1 + exp(-x)).",
        14,
    ),
    replace(
        activation(
            "softplus",
            lambda x: functional.softplus(x, beta=1, threshold=20),
            "out = log1p(exp(x)); x itself where x > 20.",
            9,
        ),
        tolerance=POSITIVE,
    ),
    gradient(
        "softplus",
        lambda grad_out, x: aten.softplus_backward(grad_out, x, 1, 20),
        "grad_x = grad_out / (1 + exp(-x)); grad_out itself where x > 20.",
        10,
    ),
    activation("tanh", lambda x: torch.tanh(x), "out = tanh(x).", 10),
    gradient_from_output(
        "tanh",
        lambda grad_out, out: aten.tanh_backward(grad_out, out),
        "grad_x = grad_out * (1 - out * out), where out is tanh(x).",
        3,
        through_tanh,
    ),
    activation("mish", lambda x: functional.mish(x), "out = x * tanh(log1p(exp(x))).", 20),
    gradient(
        "mish",
        lambda grad_out, x: aten.mish_backward(grad_out, x),
        "grad_x = grad_out * (t + x * s * (1 - t * t)) with t = tanh(log1p(exp(x))), s = 1 / (1 + exp(-x)).",
        32,
    ),
    activation("hardswish", lambda x: functional.hardswish(x), "out = x * min(max(x + 3, 0), 6) / 6.", 5),
    gradient(
        "hardswish",
        lambda grad_out, x: aten.hardswish_backward(grad_out, x),
        "grad_x = 0 where x <= -3, grad_out * (x / 3 + 0.5) where -3 < x < 3, grad_out where x >= 3.",
        5,
        exempt=OF_COMPARISONS,
        arranged=sprinkled("x", three=3.0, minus_three=-3.0),
    ),
)
