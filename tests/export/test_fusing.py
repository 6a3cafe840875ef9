"""Several calls of PyTorch that one op computes, as models write them, in graphs that the package's pass redirects."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine
from graph_passes import Model, compiled, functions, trained
from torch import Tensor, nn
from torch.nn import functional
from written_norms import WIDTH, DividedNorm, LlamaNorm, MetaNorm

from evolve.export.template import forms as template_forms
from evolve.export.template.functions import Functions
from evolve.export.template.patterns import OF_SEVERAL_CALLS

OPS = (
    "rms_norm", "add_rms_norm", "add_layer_norm", "layer_norm", "rms_norm_silu", "swiglu", "geglu", "silu", "mish",
    "gelu", "causal_conv1d", "rope", "rotary_embedding", "topk",
)  # fmt: skip
BACKWARD = (
    "rms_norm_backward", "rms_norm_silu_backward", "add_layer_norm_backward", "swiglu_backward",
    "silu_backward", "mish_backward", "causal_conv1d_backward_data", "causal_conv1d_backward_weight",
    "rotary_embedding_backward",
)  # fmt: skip
CHANNELS, LENGTH = 6, 12
ROWS = (2, 5, WIDTH)
pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Functions:
    return functions((*OPS, *BACKWARD), tmp_path_factory.mktemp("kernels"), machine, "fused_kernels")


class Block(nn.Module):
    """A residual stream between two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = LlamaNorm(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.linear(x)
        out: Tensor = x + self.linear(self.norm(x))
        return out


class PostNorm(nn.Module):
    """A residual stream with a norm after each sum, as in BERT; the next part of the model reads the norm's result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.linear(x) + x)
        return out


class PreNorm(PostNorm):
    """A residual stream between two norms, as in GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.linear(x)
        out: Tensor = x + self.linear(self.norm(x))
        return out


class GatedNorm(LlamaNorm):
    """A gated norm as in Hugging Face's Mamba 2."""

    def forward(self, given: Tensor) -> Tensor:
        hidden, gate = given.chunk(2, -1)
        hidden = hidden.to(torch.float32)
        hidden = hidden * functional.silu(gate.to(torch.float32))
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden.to(given.dtype)


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Mish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(functional.softplus(x)) * x


class Gated(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 16, bias=False) for _ in range(2))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.activation(self.gate(x)) * self.up(x)
        return out


class Causal(nn.Module):
    """A causal convolution of each channel, as in Mamba."""

    def __init__(self, *, bias: bool = True, cut: str = "length") -> None:
        super().__init__()
        self.conv = nn.Conv1d(CHANNELS, CHANNELS, 4, groups=CHANNELS, padding=3, bias=bias)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv(x)
        return functional.silu(out[..., : x.shape[-1]] if self.cut == "length" else out[:, :, :-3])


class Rotated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        angles = torch.outer(torch.arange(x.shape[2]), 10_000.0 ** -torch.arange(0, 1, 0.25))
        cos, sin = angles.cos(), angles.sin()
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def tables(batch: int, tokens: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of positions that differ between sequences."""
    positions = torch.arange(tokens)[None] + 3 * torch.arange(batch)[:, None]
    angles = positions[:, :, None] * 10_000.0 ** -torch.linspace(0, 1, dim // 2)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


class LlamaRotated(nn.Module):
    """A rotary embedding as in Hugging Face's Llama: the heads are transposed before they are rotated."""

    def __init__(self, batch: int = 1, heads_at: int = 1) -> None:
        super().__init__()
        self.batch, self.heads_at = batch, heads_at

    def forward(self, x: Tensor) -> Tensor:
        q = x.view(2, 5, 3, 8)
        q = q.transpose(1, 2) if self.heads_at == 1 else q
        cos, sin = (one.unsqueeze(self.heads_at) for one in tables(self.batch, 5, 8))
        out: Tensor = (q * cos) + (rotate_half(q) * sin)
        return out


class FlatRotated(nn.Module):
    """A rotary embedding whose tables have no batch dimension."""

    def forward(self, x: Tensor) -> Tensor:
        (cos,), (sin,) = tables(1, x.shape[-2], x.shape[-1])
        out: Tensor = rotate_half(x).mul(sin) + cos.mul(x)
        return out


class TransposedRotated(Rotated):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2))


MODELS: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "a norm as in Hugging Face's Llama": ("rms_norm", LlamaNorm, ROWS),
    "a norm as in the first Llama": ("rms_norm", MetaNorm, ROWS),
    "a sum and a norm": ("add_rms_norm", Block, ROWS),
    "a sum and a layer norm": ("add_layer_norm", PostNorm, ROWS),
    "a sum that others read and a layer norm": ("add_layer_norm", PreNorm, ROWS),
    "a gated norm as in Mamba 2": ("rms_norm_silu", GatedNorm, (2, 5, 2 * WIDTH)),
    "a tensor times its sigmoid": ("silu", Swish, ROWS),
    "Mish": ("mish", Mish, ROWS),
    "SwiGLU": ("swiglu", lambda: Gated(functional.silu), ROWS),
    "GEGLU": ("geglu", lambda: Gated(functional.gelu), ROWS),
    "a causal convolution": ("causal_conv1d", Causal, (2, CHANNELS, LENGTH)),
    "one without bias": ("causal_conv1d", lambda: Causal(bias=False), (2, CHANNELS, LENGTH)),
    "one cut at its end": ("causal_conv1d", lambda: Causal(cut="end"), (2, CHANNELS, LENGTH)),
    "a rotary embedding": ("rope", Rotated, (2, 3, 5, 8)),
    "one of tokens": ("rope", TransposedRotated, (2, 5, 3, 8)),
    "one as in Hugging Face's Llama": ("rotary_embedding", LlamaRotated, (2, 5, 24)),
    "one with positions of each sequence": ("rotary_embedding", lambda: LlamaRotated(batch=2), (2, 5, 24)),
    "one with heads behind tokens": ("rotary_embedding", lambda: LlamaRotated(heads_at=2), (2, 5, 24)),
    "one with tables without a batch": ("rotary_embedding", FlatRotated, (2, 3, 5, 8)),
}


QUICK = ("a norm as in Hugging Face's Llama", "a sum and a norm", "SwiGLU", "a causal convolution")


@pytest.mark.parametrize("name", sampled(list(MODELS), quick=QUICK))
def test_calls_that_one_op_computes_become_one_call(known: Functions, name: str) -> None:
    op, make, shape = MODELS[name]
    model, x = make(), torch.randn(shape)
    other = copy.deepcopy(model)
    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(trained(model, run, x), trained(other, other, x), rtol=1e-4, atol=1e-5)
    assert graph_pass.report.replaced[op] == 1, str(graph_pass)
    assert op in {*OF_SEVERAL_CALLS, "rms_norm", "silu", "mish"}


def gated(x: Tensor, norm: nn.Module) -> Any:
    return norm(x * functional.silu(x))


def summed(x: Tensor, norm: nn.Module) -> Any:
    total = x + x
    return total + norm(total)


@pytest.mark.parametrize(
    ("called", "op"), [(lambda x, norm: norm(x), "rms_norm"), (summed, "add_rms_norm"), (gated, "rms_norm_silu")]
)
def test_a_norm_over_channels_is_viewed_as_pytorch_leaves_it(
    known: Functions, called: Model, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_forms, "CALL_US", 0.0)  # kernels save little at this size, and copies precede them
    norm, x = LlamaNorm(), torch.randn(2, WIDTH, 3, 5)

    def model(x: Tensor) -> Any:
        return called(x.permute(0, 2, 3, 1), norm).permute(0, 3, 1, 2).view(2, -1)

    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(run(x), model(x))
    assert graph_pass.report.replaced[op] == 1, str(graph_pass)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_norm_with_one_change_of_dtype_at_its_end_becomes_one_call(known: Functions, dtype: torch.dtype) -> None:
    norm, x = DividedNorm(dtype), torch.randn(ROWS, dtype=dtype)
    run, graph_pass = compiled(norm, known)
    torch.testing.assert_close(run(x), norm(x), rtol=2e-2, atol=2e-2)
    assert graph_pass.report.replaced["rms_norm"] == 1, str(graph_pass)


def changed(x: Tensor, weight: Tensor) -> Tensor:
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    x.add_(1)
    return x * scale * weight


def used(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return normed * weight, normed


def of_another(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(weight.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def over_others(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + 1e-6) * weight


def narrower(x: Tensor, weight: Tensor) -> Tensor:
    half = x.bfloat16()
    return weight * (half * torch.rsqrt(half.pow(2).mean(-1, keepdim=True) + 1e-6)).float()


def wider(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).double()


def by_columns(x: Tensor, weight: Tensor) -> Tensor:
    return weight.view(-1, 1)[:1] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize(
    "model", [changed, used, of_another, over_others, narrower, wider, by_columns], ids=lambda one: one.__name__
)
def test_calls_that_compute_something_else_are_left(known: Functions, model: Model) -> None:
    x, weight = torch.randn(ROWS), torch.rand(WIDTH)
    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(run(x.clone(), weight), model(x.clone(), weight))
    assert "rms_norm" not in graph_pass.report.replaced


def negated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((x[..., 4:], -x[..., :4]), dim=-1) * sin


def unequal(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 3:], x[..., :3]), dim=-1) * sin


def overlapping(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 4:], x[..., 1:5]), dim=-1) * sin


def of_two(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x + 1) * sin


def for_each_head(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos.expand(2, 3, 5, 8) + rotate_half(x) * sin.expand(2, 3, 5, 8)


def in_wider_angles(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x.bfloat16() * cos + rotate_half(x.bfloat16()) * sin


@pytest.mark.parametrize(
    "model", [negated, unequal, overlapping, of_two, for_each_head, in_wider_angles], ids=lambda one: one.__name__
)
def test_rotations_of_another_kind_are_left(known: Functions, model: Model) -> None:
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(1, 5, 8)
    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(run(x, cos[0], sin[0]), model(x, cos[0], sin[0]))
    assert "rotary_embedding" not in graph_pass.report.replaced


def test_a_rotation_has_the_memory_layout_of_pytorchs(known: Functions) -> None:
    model, x = LlamaRotated(), torch.randn(2, 5, 24)
    run, _ = compiled(model, known)
    assert run(x).stride() == model(x).stride() == (120, 8, 24, 1)


def test_a_rotation_by_tables_that_require_gradients_is_left(known: Functions) -> None:
    run, graph_pass = compiled(lambda *given: given[0] * given[1] + rotate_half(given[0]) * given[2], known)
    x, (cos, sin) = torch.randn(2, 3, 5, 8), tables(1, 5, 8)
    cos.requires_grad_()
    run(x, cos, sin).sum().backward()
    torch.testing.assert_close(cos.grad, x.sum((0, 1))[None])
    assert "no gradient of rotary_embedding with respect to cos" in str(graph_pass)


@pytest.mark.parametrize(("padding", "kept"), [(3, slice(1, LENGTH)), (3, slice(LENGTH - 1)), (2, slice(LENGTH))])
def test_a_convolution_of_each_channel_that_is_not_causal_is_left(known: Functions, padding: int, kept: slice) -> None:
    weight, x = torch.randn(CHANNELS, 1, 4), torch.randn(2, CHANNELS, LENGTH)

    def model(x: Tensor) -> Tensor:
        return functional.conv1d(x, weight, padding=padding, groups=CHANNELS)[..., kept]

    run, graph_pass = compiled(model, known)
    torch.testing.assert_close(run(x), model(x))
    assert "causal_conv1d" not in graph_pass.report.replaced


def test_one_graph_serves_other_lengths(known: Functions, machine: EmulatedMachine) -> None:
    model = Causal()
    run, _ = compiled(model, known, dynamic=True)
    run(torch.randn(2, CHANNELS, LENGTH))
    with torch.compiler.set_stance("fail_on_recompile"):
        for batch, length in ((3, 20), (4, 9)):
            x = torch.randn(batch, CHANNELS, length)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(machine.launched) == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_within_a_model_gives_the_same_as_without_the_pass(known: Functions, dtype: torch.dtype) -> None:
    block, gated = Block().to(dtype), Gated(functional.silu).to(dtype)

    def model(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out: Tensor = gated(block(x))
        return out

    run, graph_pass = compiled(model, known)
    x = torch.randn(ROWS, dtype=dtype)
    expected, found = model(x), run(x)
    assert (found.dtype, graph_pass.report.replaced["swiglu"]) == (expected.dtype, 1)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=6e-2)


def test_an_op_without_a_backward_stays_with_pytorch_where_a_gradient_is_required(
    known: Functions, machine: EmulatedMachine
) -> None:
    """The tensor that requires a gradient need not be an input of the graph."""
    run, graph_pass = compiled(lambda x: torch.topk(2 * x, 2).values.sum(), known)
    x = torch.randn(3, 5)
    run(x)
    assert len(machine.launched) == 1
    x.requires_grad_()
    run(x).backward()
    assert x.grad is not None
    assert len(machine.launched) == 1
    assert "no gradient of topk with respect to x" in str(graph_pass)
