"""Softmax of masked attention scores, as models write it, in graphs that the package's pass redirects."""

import copy
import math

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine
from graph_passes import Model, compiled, functions
from torch import Tensor, nn
from torch.nn import functional

from evolve.export.template import dispatch
from evolve.export.template.comparing import close
from evolve.export.template.functions import Functions

OPS = ("masked_softmax", "masked_softmax_backward", "softmax", "softmax_backward")
BATCH, HEADS, TOKENS, SIZE = 2, 3, 7, 16
MINUS_INF = float("-inf")
SCORES = (BATCH, HEADS, TOKENS, TOKENS)
LATER = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, machine: EmulatedMachine) -> Functions:
    return functions(OPS, tmp_path_factory.mktemp("kernels"), machine, "masked_kernels")


class Attention(nn.Module):
    """Attention as in nanoGPT, with a mask of zeros and ones in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HEADS * SIZE, 3 * HEADS * SIZE)
        self.bias: Tensor
        self.register_buffer("bias", torch.tril(torch.ones(32, 32)).view(1, 1, 32, 32))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        q, k, v = (one.view(*x.shape[:2], HEADS, SIZE).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(SIZE))
        scores = scores.masked_fill(self.bias[:, :, :tokens, :tokens] == 0, MINUS_INF)
        out: Tensor = (functional.softmax(scores, dim=-1) @ v).transpose(1, 2)
        return out


def of_padding(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax((scores / 8).masked_fill(mask[:, None, None, :], MINUS_INF), -1)


def without_scale(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask.view(BATCH, 1, 1, TOKENS), MINUS_INF).softmax(3)


def in_place(scores: Tensor, _: Tensor) -> Tensor:
    return (scores * 0.125).masked_fill_(LATER, MINUS_INF).softmax(dim=-1)


def by_choice(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(torch.where(~LATER, 0.25 * scores, MINUS_INF), dim=-1)


def by_choice_of_hidden(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(torch.where(LATER, MINUS_INF, scores), dim=-1)


def in_float32(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores.masked_fill(LATER, MINUS_INF), dim=-1, dtype=torch.float32).to(scores.dtype)


def as_another(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores.masked_fill(LATER, MINUS_INF).float(), dim=-1).type_as(scores)


def of_each_head(scores: Tensor, mask: Tensor) -> Tensor:
    by_head = torch.stack((mask, ~mask, mask), 1)[:, :, None, :] & LATER
    return functional.softmax(scores.masked_fill(by_head, MINUS_INF), dim=-1)


def of_one_head(scores: Tensor, mask: Tensor) -> Tensor:
    return functional.softmax(scores[:, 0].masked_fill(mask[:, None], MINUS_INF), dim=-1)


def of_one_sequence(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax((scores[0, 0] * 2).masked_fill(LATER, MINUS_INF), dim=-1)


MASKED = (
    of_padding, without_scale, in_place, by_choice, by_choice_of_hidden, in_float32, as_another, of_each_head,
    of_one_head, of_one_sequence,
)  # fmt: skip


def given(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return scores and a mask that, together with a causal mask, hides whole rows."""
    mask = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    mask[0, :2] = mask[1, 3:] = True
    return (3 * torch.randn(SCORES)).to(dtype), mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("model", sampled(list(MASKED), quick=[of_padding, in_float32, of_each_head]))
def test_a_masked_softmax_becomes_one_call(
    known: Functions, model: Model, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "copying_us", lambda *_: 0.0)  # a call this small gains less than a copy takes
    scores, mask = given(dtype)
    run, graph_pass = compiled(model, known)
    results = []
    for called in (run, model):
        x = scores.clone().requires_grad_()
        out = called(x, mask)
        (gradient,) = torch.autograd.grad(out, x, torch.linspace(-1, 1, out.numel()).view(out.shape).to(dtype))
        results.append([out.detach(), gradient])
    close(results[0], results[1], dtype)
    assert graph_pass.report.replaced == {"masked_softmax": 1}, str(graph_pass)


def test_the_attention_of_a_model_is_trained_by_kernels(known: Functions, machine: EmulatedMachine) -> None:
    model, x = Attention(), torch.randn(2, 5, HEADS * SIZE)
    other = copy.deepcopy(model)
    run, graph_pass = compiled(model, known)
    run(x).square().sum().backward()
    other(x).square().sum().backward()
    for one, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, expected.grad, rtol=1e-3, atol=1e-4)
    assert graph_pass.report.replaced["masked_softmax"] == 1
    assert len(machine.launched) == 2


def by_least_number(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores.masked_fill(LATER, torch.finfo(scores.dtype).min), dim=-1)


def over_queries(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores.masked_fill(LATER, MINUS_INF), dim=-2)


def enlarged(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores[:, :1, :1].masked_fill(LATER, MINUS_INF), dim=-1)


def wider(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores.bfloat16().masked_fill(LATER, MINUS_INF), dim=-1, dtype=torch.float32)


def of_lists(scores: Tensor, _: Tensor) -> Tensor:
    return functional.softmax(scores[0, 0, 0].masked_fill(LATER[0], MINUS_INF), dim=-1)


LEFT = {
    by_least_number: "not NaN, but the op's is",
    over_queries: "along the last one",
    enlarged: "not one of booleans for these scores",
    wider: "another dtype",
    of_lists: "two to four dims",
}


@pytest.mark.parametrize("model", LEFT, ids=lambda one: one.__name__)
def test_another_masked_softmax_is_left_and_the_report_says_why(known: Functions, model: Model) -> None:
    scores, mask = given()
    run, graph_pass = compiled(model, known)
    with torch.no_grad():
        torch.testing.assert_close(run(scores, mask), model(scores, mask), equal_nan=True)
    assert LEFT[model] in graph_pass.report.reasons["masked_softmax"]


def changed(scores: Tensor, _: Tensor) -> Tensor:
    return scores.masked_fill_(LATER, MINUS_INF).softmax(-1)


def by_a_tensor(scores: Tensor, _: Tensor) -> Tensor:
    return torch.where(LATER, scores.new_full((), -1e4), scores).softmax(-1)


@pytest.mark.parametrize("model", [changed, by_a_tensor], ids=lambda one: one.__name__)
def test_calls_that_are_not_a_masked_softmax_are_left(known: Functions, model: Model) -> None:
    scores, mask = given()
    run, graph_pass = compiled(model, known)
    ours, theirs = scores.clone(), scores.clone()
    with torch.no_grad():
        torch.testing.assert_close(run(ours, mask), model(theirs, mask))
    torch.testing.assert_close(ours, theirs)
    assert "masked_softmax" not in {*graph_pass.report.left, *graph_pass.report.replaced}


def test_a_masked_softmax_under_autocast_has_pytorchs_dtype(known: Functions) -> None:
    scores, mask = given(torch.bfloat16)

    def model(scores: Tensor, mask: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return of_padding(scores, mask) + in_float32(scores, mask)

    run, graph_pass = compiled(model, known)
    with torch.no_grad():
        found, expected = run(scores, mask), model(scores, mask)
    assert found.dtype == expected.dtype
    close([found], [expected], torch.bfloat16)
    assert graph_pass.report.replaced["masked_softmax"] == 2


def test_one_graph_serves_sequences_of_other_lengths(known: Functions, machine: EmulatedMachine) -> None:
    def model(scores: Tensor, mask: Tensor) -> Tensor:
        return functional.softmax((scores * 0.125).masked_fill(mask[:, None, None], MINUS_INF), dim=-1)

    run, _ = compiled(model, known, dynamic=True)
    with torch.no_grad():
        run(*given())
        with torch.compiler.set_stance("fail_on_recompile"):
            for batch, tokens in ((3, 9), (4, 12)):
                scores, mask = torch.randn(batch, HEADS, tokens, tokens), torch.zeros(batch, tokens).bool()
                close([run(scores, mask)], [model(scores, mask)], torch.float32)
    assert len(machine.launched) == 3
