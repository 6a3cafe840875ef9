"""Activations after convolutions, linear layers and norms, in graphs that the package's pass redirects."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine
from graph_passes import compiled, functions, trained
from torch import Tensor, nn

from evolve.export.template.comparing import close
from evolve.export.template.functions import Functions
from evolve.export.template.patterns import OF_SEVERAL_CALLS

OPS = (
    "conv2d", "conv2d_bias", "conv2d_bias_relu", "conv2d_bias_gelu", "conv2d_bias_silu", "gemm_bias_relu",
    "gemm_bias_gelu", "skinny_gemm", "relu", "gelu", "silu", "batch_norm", "batch_norm_inference", "batch_norm_relu",
    "group_norm", "group_norm_silu",
)  # fmt: skip
BACKWARD = ("conv2d_backward_data", "conv2d_backward_weight", "conv2d_bias_backward_bias", "relu_backward")
CHANNELS = 6
IMAGES = (2, CHANNELS, 9, 8)
ROWS = (2, 5, 16)
Made = Callable[[], nn.Module]
pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Functions:
    return functions((*OPS, *BACKWARD), tmp_path_factory.mktemp("kernels"), machine, "activated_kernels")


class Then(nn.Module):
    """A sequence of layers. Other calls read only the result of the last layer."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Any:
        return self.layers(x)


def conv(*, bias: bool = True, **how: Any) -> nn.Conv2d:
    return nn.Conv2d(CHANNELS, 12, 3, bias=bias, **how)


def norm(filters: int = 12) -> nn.BatchNorm2d:
    """Return batch norm whose statistics and parameters differ from those of a new layer."""
    made = nn.BatchNorm2d(filters)
    for one in (made.weight, made.bias, made.running_mean, made.running_var):
        assert one is not None
        nn.init.uniform_(one.data, 0.5, 2)
    return made


TRAINED: dict[str, tuple[str, Made, tuple[int, ...]]] = {
    "batch norm and ReLU": ("batch_norm_relu", lambda: Then(norm(CHANNELS), nn.ReLU()), IMAGES),
    "ReLU in place": ("batch_norm_relu", lambda: Then(norm(CHANNELS), nn.ReLU(inplace=True)), IMAGES),
    "group norm and SiLU": ("group_norm_silu", lambda: Then(nn.GroupNorm(3, CHANNELS), nn.SiLU()), IMAGES),
}
INFERRED: dict[str, tuple[str, Made, tuple[int, ...]]] = {
    "a convolution and ReLU": ("conv2d_bias_relu", lambda: Then(conv(), nn.ReLU()), IMAGES),
    "ReLU in place after a convolution": ("conv2d_bias_relu", lambda: Then(conv(), nn.ReLU(inplace=True)), IMAGES),
    "a strided convolution and GELU": ("conv2d_bias_gelu", lambda: Then(conv(stride=2, padding=3), nn.GELU()), IMAGES),
    "a convolution and SiLU": ("conv2d_bias_silu", lambda: Then(conv(), nn.SiLU()), IMAGES),
    "a convolution without bias": ("conv2d_bias_relu", lambda: Then(conv(bias=False), nn.ReLU()), IMAGES),
    "a convolution and its norm": ("conv2d_bias", lambda: Then(conv(bias=False), norm()), IMAGES),
    "a biased convolution and its norm": ("conv2d_bias", lambda: Then(conv(), norm()), IMAGES),
    "a ResNet's layer": ("conv2d_bias_relu", lambda: Then(conv(bias=False), norm(), nn.ReLU(inplace=True)), IMAGES),
    "an EfficientNet's layer": ("conv2d_bias_silu", lambda: Then(conv(bias=False), norm(), nn.SiLU(True)), IMAGES),
    "a linear layer and ReLU": ("gemm_bias_relu", lambda: Then(nn.Linear(16, 24), nn.ReLU()), ROWS),
    "a linear layer and GELU": ("gemm_bias_gelu", lambda: Then(nn.Linear(16, 24), nn.GELU()), ROWS),
    "one without bias": ("gemm_bias_gelu", lambda: Then(nn.Linear(16, 24, bias=False), nn.GELU()), ROWS),
}


@pytest.mark.parametrize("name", sampled(list(TRAINED), quick=["ReLU in place"]))
def test_a_norm_with_its_activation_becomes_one_call_in_training(known: Functions, name: str) -> None:
    op, make, shape = TRAINED[name]
    model, x = make(), torch.randn(shape)
    other = copy.deepcopy(model)
    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(trained(model, run, x), trained(other, other, x), rtol=1e-4, atol=1e-5)
    assert graph_pass.report.replaced[op] == 1, str(graph_pass)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", sampled(list(INFERRED), quick=["a ResNet's layer", "a linear layer and GELU", "a convolution and SiLU"])
)
def test_a_layer_with_its_activation_becomes_one_call(
    known: Functions, machine: EmulatedMachine, name: str, dtype: torch.dtype
) -> None:
    op, make, shape = INFERRED[name]
    model, x = make().to(dtype).eval(), torch.randn(shape, dtype=dtype)
    run, graph_pass = compiled(model, known)
    with torch.no_grad():
        found, expected = run(x), model(x)
    close([found], [expected], dtype)
    assert graph_pass.report.replaced == {op: 1}, str(graph_pass)
    assert op in {*OF_SEVERAL_CALLS, "conv2d_bias"}
    assert len(machine.launched) == 1


@pytest.mark.parametrize(
    "name", sampled(list(INFERRED), quick=["a ResNet's layer", "a linear layer and ReLU", "a linear layer and GELU"])
)
def test_a_layer_trains_by_one_call_with_relu_and_by_its_single_calls_with_other_activations(
    known: Functions, name: str
) -> None:
    op, make, shape = INFERRED[name]
    model, x = make().eval(), torch.randn(shape)
    other = copy.deepcopy(model)
    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(trained(model, run, x), trained(other, other, x), rtol=1e-3, atol=1e-4)
    if op.endswith(("gelu", "silu")):
        assert f"no gradient of {op} with respect to" in graph_pass.report.reasons[op]
    else:
        assert graph_pass.report.replaced[op] == 1, str(graph_pass)


class Used(Then):
    """A layer whose value before the activation is read by another call."""

    def forward(self, x: Tensor) -> Any:
        before = self.layers[0](x)
        return self.layers[1](before) + before


LEFT: dict[str, tuple[str, Made, tuple[int, ...]]] = {
    "the kernels compute the exact": (
        "gemm_bias_gelu",
        lambda: Then(nn.Linear(16, 24), nn.GELU(approximate="tanh")),
        ROWS,
    ),
    "the exact GELU": (
        "conv2d_bias_gelu",
        lambda: Then(conv(stride=1, padding=1), nn.GELU(approximate="tanh")),
        IMAGES,
    ),
    "these groups": ("conv2d_bias_relu", lambda: Then(conv(groups=2), nn.ReLU()), IMAGES),
    "groups and dilation": ("conv2d_bias_relu", lambda: Then(conv(dilation=2), nn.ReLU()), IMAGES),
    "differs between the dims": ("conv2d_bias_relu", lambda: Then(conv(padding="same"), nn.ReLU()), IMAGES),
    "the range of torch.float16": ("conv2d_bias_relu", lambda: Then(conv(), norm(), nn.ReLU()).half(), IMAGES),
}


@pytest.mark.parametrize("reason", LEFT)
def test_a_layer_that_no_kernel_computes_is_left_and_the_report_says_why(known: Functions, reason: str) -> None:
    op, make, shape = LEFT[reason]
    model = make().eval()
    x = torch.randn(shape, dtype=next(model.parameters()).dtype)
    run, graph_pass = compiled(model, known)
    with torch.no_grad():
        close([run(x)], [model(x)], x.dtype)
    assert reason in graph_pass.report.reasons[op]
    assert not graph_pass.report.replaced[op]


def test_a_layer_whose_value_other_calls_read_is_left(known: Functions) -> None:
    model, x = Used(nn.Linear(16, 24), nn.ReLU()).eval(), torch.randn(ROWS)
    run, graph_pass = compiled(model, known)
    with torch.no_grad():
        close([run(x)], [model(x)], torch.float32)
    assert "gemm_bias_relu" not in {*graph_pass.report.replaced, *graph_pass.report.left}


def test_a_norm_of_other_channels_raises_pytorchs_error(known: Functions) -> None:
    run, _ = compiled(Then(conv(), norm(1), nn.ReLU()).eval(), known)
    with torch.no_grad(), pytest.raises(RuntimeError, match="running_mean should contain 12 elements not 1"):
        run(torch.randn(IMAGES))


@pytest.mark.parametrize("name", ["a ResNet's layer", "a linear layer and GELU", "a convolution and SiLU"])
def test_a_layer_has_the_dtype_of_autocast(known: Functions, name: str) -> None:
    op, make, shape = INFERRED[name]
    model, x = make().eval(), torch.randn(shape)

    def inside(x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    run, graph_pass = compiled(inside, known)
    with torch.no_grad():
        found, expected = run(x), inside(x)
    assert (found.dtype, graph_pass.report.replaced[op]) == (expected.dtype, 1), str(graph_pass)
    close([found], [expected], torch.bfloat16)


def test_one_graph_serves_images_of_other_sizes(known: Functions, machine: EmulatedMachine) -> None:
    model = Then(conv(bias=False), norm(), nn.ReLU()).eval()
    run, _ = compiled(model, known, dynamic=True)
    with torch.no_grad():
        run(torch.randn(IMAGES))
        with torch.compiler.set_stance("fail_on_recompile"):
            for batch, height, width in ((3, 12, 9), (4, 7, 11)):
                x = torch.randn(batch, CHANNELS, height, width)
                close([run(x)], [model(x)], torch.float32)
    assert len(machine.launched) == 3


def test_layers_whose_numbers_a_graph_leaves_open_run_kernels(known: Functions) -> None:
    """With all sizes open, PyTorch leaves a layer's eps and momentum open, too."""
    model, x = Then(nn.GroupNorm(3, CHANNELS), norm(CHANNELS), nn.SiLU()).eval(), torch.randn(IMAGES)
    run, graph_pass = compiled(model, known, dynamic=True)
    with torch.no_grad():
        close([run(x)], [model(x)], torch.float32)
    assert graph_pass.report.replaced.keys() == {"group_norm", "batch_norm", "silu"}, str(graph_pass)
