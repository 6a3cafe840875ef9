"""Training with ops that end with ReLU: kernels run, and gradients are those of PyTorch without a second forward."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor
from torch._dynamo.backends.debugging import aot_eager
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template.functions import Functions
from evolve.export.template.redirecting import GraphPass
from reference_ops import catalog

OPS = (
    "conv2d_bias_relu", "conv2d_backward_data", "conv2d_backward_weight", "conv2d_bias_backward_bias", "gemm_bias_relu",
    "gemm_bias_gelu",
)  # fmt: skip
IMAGES = torch.randn(2, 8, 9, 9), torch.randn(16, 8, 3, 3), torch.randn(16)
ROWS = torch.randn(12, 5, 128), torch.randn(64, 128), torch.randn(64)
Given = tuple[Tensor, Tensor, Tensor]


def of_images(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.conv2d(x, weight, bias, padding=1))


def of_rows(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.linear(x, weight, bias))


CASES = (("conv2d_bias_relu", of_images, IMAGES, (1, 1)), ("gemm_bias_relu", of_rows, ROWS, ()))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> EmulatedMachine:
    monkeypatch.setattr("evolve.export.template.forms.CALL_US", 0.0)
    torch._dynamo.reset()
    return EmulatedMachine(by_reference=True)


@pytest.fixture
def known(tmp_path: Path, machine: EmulatedMachine) -> Functions:
    ops = primitives(OPS, tmp_path, machine)
    for one in ("linear_backward_data", "conv2d_bias"):
        assert one not in ops
    return Functions(forms(), ops, f"rectified{id(ops)}")


def gradients(run: Callable[..., Tensor], given: Given, learns: tuple[bool, ...], *rest: int) -> list[Tensor | None]:
    leaves = [x.clone().requires_grad_(one) for x, one in zip(given, learns, strict=True)]
    out = run(*leaves, *rest)
    out.square().sum().backward()
    return [out.detach(), *(x.grad for x in leaves)]


@pytest.mark.parametrize(("name", "plain", "given", "rest"), CASES)
@pytest.mark.parametrize("learns", [(True, True, True), (False, True, False), (True, False, True)])
def test_gradients_are_those_of_pytorch(
    known: Functions,
    machine: EmulatedMachine,
    name: str,
    plain: Callable[..., Tensor],
    given: Given,
    rest: tuple[int, ...],
    learns: tuple[bool, ...],
) -> None:
    expected = gradients(plain, given, learns)
    for _ in range(3):
        found = gradients(known[name], given, learns, *rest)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    of_kernels = {kernel.id: op for op in OPS for kernel in known._primitives[op].entry.kernels}
    ran = [of_kernels[one] for one in machine.launched]
    assert ran.count(name) == 3
    assert ran.count("conv2d_backward_weight") == (3 if name.startswith("conv") and learns[1] else 0)
    assert ran.count("conv2d_backward_data") == (3 if name.startswith("conv") and learns[0] else 0)


@pytest.mark.parametrize(("name", "plain", "given", "rest"), CASES)
def test_nothing_but_the_output_is_kept_in_addition(
    known: Functions, name: str, plain: Callable[..., Tensor], given: Given, rest: tuple[int, ...]
) -> None:
    kept = known._primitives[name].gradients.kept
    assert kept == ("x", "weight", "bias", "out")


@pytest.mark.parametrize(("name", "plain", "given", "rest"), CASES)
def test_gradients_of_gradients_are_those_of_pytorch(
    known: Functions, name: str, plain: Callable[..., Tensor], given: Given, rest: tuple[int, ...]
) -> None:
    found = []
    for run, more in ((known[name], rest), (plain, ())):
        leaves = [x.double().float().requires_grad_() for x in given]
        first = torch.autograd.grad(run(*leaves, *more).square().sum(), leaves, create_graph=True)
        found.append(torch.autograd.grad([one.square().sum() for one in first], leaves))
    torch.testing.assert_close(*found, rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize(("name", "plain", "given", "rest"), CASES)
def test_a_graph_trains_with_the_kernel_of_the_forward(
    known: Functions,
    machine: EmulatedMachine,
    name: str,
    plain: Callable[..., Tensor],
    given: Given,
    rest: tuple[int, ...],
) -> None:
    graph_pass = GraphPass(known, "content")

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graph_pass(module.graph)
        module.recompile()
        return aot_eager(module, inputs)

    every = (True, True, True)
    found = gradients(torch.compile(plain, backend=backend, fullgraph=True), given, every)
    torch.testing.assert_close(found, gradients(plain, given, every), rtol=1e-3, atol=1e-3)
    assert graph_pass.report.replaced == {name: 1}, str(graph_pass)


def test_other_activations_need_values_that_the_kernel_does_not_write(known: Functions) -> None:
    x, weight, bias = (one.clone().requires_grad_() for one in ROWS)
    found = known["gemm_bias_gelu"].explain((x, weight, bias), {})
    assert (found.kernel, "no gradient of gemm_bias_gelu" in found.reason) == ("", True)


def test_a_result_that_is_not_a_number_has_the_gradient_of_pytorch(known: Functions) -> None:
    x, weight, bias = ROWS
    x = x.clone()
    x[0, 0, 0] = torch.nan
    pair = [gradients(run, (x, weight, bias), (True, True, True)) for run in (known["gemm_bias_relu"], of_rows)]
    torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_the_backward_ops_exist_and_have_these_names() -> None:
    from evolve.export.template.rectified import RECTIFIED

    assert set(RECTIFIED) <= set(catalog.names())
    names = [one for every in RECTIFIED.values() for one in every if isinstance(one, str)]
    assert set(names) <= set(catalog.names())
    assert set(names) == set(catalog.load("conv2d_bias").backward)
