"""Convolutions of images whose channels are last in memory run the op for that layout, however they are called."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor, nn
from torch.nn import functional

from evolve.export.families import forms
from evolve.export.template import dispatch
from evolve.export.template.functions import Function, Functions
from evolve.export.template.layers import made, patch
from evolve.export.template.redirecting import GraphPass, enabled

OP = "conv2d_channels_last"
BACKWARD = (f"{OP}_backward_data", f"{OP}_backward_weight")


@dataclass(frozen=True)
class Package:
    """Functions with a kernel for each layout, and the ops whose kernels ran."""

    known: dict[str, Function]
    machine: EmulatedMachine
    op_of: dict[str, str]  # the name of the op by the id of its kernel

    @property
    def ran(self) -> list[str]:
        return [self.op_of[kernel] for kernel in self.machine.launched]

    def conv2d(self, *arguments: Any, **named: Any) -> Any:
        return self.known["conv2d"](*arguments, **named)


@pytest.fixture(scope="module")
def made_package(tmp_path_factory: pytest.TempPathFactory) -> Package:
    machine = EmulatedMachine()
    ops = primitives(("conv2d", OP, *BACKWARD), tmp_path_factory.mktemp("kernels"), machine)
    known = Functions([form for form in forms() if form.name == "conv2d"], ops, "channels_last_kernels")
    op_of = {one.id: name for name, op in ops.items() for one in op.entry.kernels}
    return Package(dict(known), machine, op_of)


@pytest.fixture
def package(made_package: Package) -> Iterator[Package]:
    made_package.machine.launched.clear()
    yield made_package
    torch._dynamo.reset()


def images(*shape: int) -> Tensor:
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("bias", [None, torch.randn(5)], ids=["", "with a bias"])
@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True)], ids=["both", "images", "weight"])
def test_results_and_strides_are_those_of_pytorch(
    package: Package, last: tuple[bool, bool], bias: Tensor | None
) -> None:
    given = [images(2, 3, 7, 6), images(5, 3, 3, 2)]
    x, weight = (one if is_last else one.contiguous() for one, is_last in zip(given, last, strict=True))
    expected = functional.conv2d(x, weight, bias, 2, 2)
    for _ in range(2):
        got = package.conv2d(x, weight, bias, 2, 2)
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()
    assert package.ran == [OP] * 2


def test_gradients_by_kernels_are_those_of_pytorch(package: Package) -> None:
    x, weight = images(2, 3, 7, 6).requires_grad_(), images(5, 3, 3, 3).requires_grad_()
    for _ in range(3):
        outs = [function(x, weight, None, 1, 1) for function in (package.conv2d, functional.conv2d)]
        grad = images(*outs[0].shape)
        torch.testing.assert_close(*[torch.autograd.grad(out, (x, weight), grad) for out in outs])
    assert package.ran == [OP, *BACKWARD] * 3


@pytest.mark.parametrize("groups", [1, 3])
def test_convolutions_that_the_kernel_does_not_compute_are_left_to_pytorch(package: Package, groups: int) -> None:
    x, weight = images(2, 3, 7, 6), images(6, 3 // groups, 3, 3)
    named: dict[str, Any] = {"groups": groups, "dilation": 2 if groups == 1 else 1}
    assert "channels are last" in package.known["conv2d"].explain((x, weight), named).reason
    torch.testing.assert_close(package.conv2d(x, weight, **named), functional.conv2d(x, weight, **named))
    assert not package.machine.launched


def test_other_images_run_the_other_op(package: Package) -> None:
    x, weight = torch.randn(2, 3, 7, 6), torch.randn(5, 3, 3, 3)
    torch.testing.assert_close(package.conv2d(x, weight), functional.conv2d(x, weight))
    assert package.ran == ["conv2d"]


def trained(model: nn.Module, called: Callable[[Tensor], Tensor] | None = None) -> list[float]:
    """Train a model for a few steps and return the losses."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = (called or model)(images(2, 3, 8, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.Conv2d(4, 2, 3, stride=2, padding=2)
    for layer in (first, second):
        layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
    return nn.Sequential(first, nn.Tanh(), second)


def of_a_step() -> list[str]:
    """Return the ops of a step of the model. Its first layer needs no gradient with respect to the images."""
    return sorted([OP] * 2 + [BACKWARD[0]] + [BACKWARD[1]] * 2)


def test_a_patched_model_trains_with_kernels(package: Package, model: nn.Module) -> None:
    expected = trained(copy.deepcopy(model))
    patch(model, made(package.known, __name__))
    assert trained(model) == pytest.approx(expected, rel=1e-4)
    assert sorted(package.ran) == sorted(of_a_step() * 3)


def test_a_model_trains_with_kernels_where_they_are_enabled(package: Package, model: nn.Module) -> None:
    expected = trained(copy.deepcopy(model))
    with enabled(package.known) as report:
        assert trained(model) == pytest.approx(expected, rel=1e-4)
    assert report.replaced["conv2d"] == 6
    assert sorted(package.ran) == sorted(of_a_step() * 3)


@pytest.mark.exhaustive
def test_a_compiled_model_trains_with_kernels(
    package: Package, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "copying_us", lambda *_: 0.0)  # a call this small gains less than a copy takes
    from torch._dynamo.backends.debugging import aot_eager

    redirect = GraphPass(package.known, "content")

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        redirect(module.graph)
        module.recompile()
        return aot_eager(module, inputs)

    expected = trained(copy.deepcopy(model))
    assert trained(model, torch.compile(model, fullgraph=True, backend=backend)) == pytest.approx(expected, rel=1e-4)
    assert redirect.replaced["conv2d"] == 2
    assert sorted(package.ran) == sorted(of_a_step() * 3)
