"""Calls in unusual modes of PyTorch agree with PyTorch: batches of gradients, inference mode, statistics in use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor

from evolve.export.families import forms
from evolve.export.template.dispatch import Primitive
from evolve.export.template.functions import Function, Functions
from evolve.export.template.manifest import ExportedEntry
from reference_ops import catalog

FORMS = {form.name: form for form in forms()}
TIMES = range(3)  # a call that is made again takes another way
ATTENTION = "scaled_dot_product_attention"


def timed_once(call: Callable[[], object]) -> float:
    call()
    return 5.0


def function(folder: Path, name: str) -> tuple[Function, EmulatedMachine]:
    """Return a function and the machine on which its kernels and those of its backward run."""
    machine = EmulatedMachine(by_reference=True)
    ops = [one for op in FORMS[name].ops for one in (op, *catalog.load(op).backward)]
    return Function(FORMS[name], primitives(dict.fromkeys(ops), folder, machine)), machine


@pytest.mark.parametrize("name", ["cross_entropy", "layer_norm", "softmax"])
def test_a_batch_of_gradients_is_computed_as_by_pytorch(tmp_path: Path, name: str) -> None:
    called, machine = function(tmp_path, name)
    rest = {"cross_entropy": (torch.randint(5, (4,)),), "layer_norm": ((5,), torch.randn(5), torch.randn(5))}
    arguments = rest.get(name, (-1,))
    x = torch.randn(4, 5, requires_grad=True)

    def jacobian(out: Tensor) -> Tensor:
        basis = torch.eye(out.numel()).view(-1, *out.shape)
        (found,) = torch.autograd.grad(out, x, basis, is_grads_batched=True)
        return found

    for _ in TIMES:
        found = jacobian(called(x, *arguments))
        torch.testing.assert_close(found, jacobian(FORMS[name].pytorch(x, *arguments)))
        assert not found.requires_grad
    assert machine.launched


def test_a_batch_of_gradients_can_be_differentiated_again(tmp_path: Path) -> None:
    called, machine = function(tmp_path, "softmax")
    x = torch.randn(3, 4)
    for _ in TIMES:
        ours = torch.autograd.functional.hessian(lambda y: called(y, -1).square().sum(), x, vectorize=True)
        theirs = torch.autograd.functional.hessian(lambda y: torch.softmax(y, -1).square().sum(), x, vectorize=True)
        torch.testing.assert_close(ours, theirs)
    assert machine.launched


def test_with_an_input_of_inference_mode_pytorch_decides_whether_a_gradient_is_possible(tmp_path: Path) -> None:
    called, machine = function(tmp_path, "rms_norm")
    with torch.inference_mode():
        x = torch.randn(4, 8)
    weight = torch.randn(8, requires_grad=True)
    for _ in TIMES:
        torch.testing.assert_close(called(x, (8,), weight, 1e-6), torch.rms_norm(x, (8,), weight, 1e-6))
    assert not machine.launched
    assert "inference mode" in called.explain((x, (8,), weight, 1e-6), {}).reason
    with torch.no_grad():
        torch.testing.assert_close(called(x, (8,), weight, 1e-6), torch.rms_norm(x, (8,), weight, 1e-6))
    assert machine.launched


def test_the_first_call_of_attention_accepts_inputs_of_inference_mode(tmp_path: Path) -> None:
    """It times PyTorch's attention as in training, whose inputs must require gradients."""
    machine = EmulatedMachine(host_us=timed_once)
    called = Function(FORMS[ATTENTION], primitives(["attention"], tmp_path, machine))
    with torch.inference_mode():
        q, k, v = (torch.randn(1, 2, 4, 16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    for _ in TIMES:
        torch.testing.assert_close(called(q, k, v), expected)
    assert len(machine.launched) == 1 + len(TIMES)


def test_batch_norm_records_statistics_that_were_made_in_inference_mode(tmp_path: Path) -> None:
    called, machine = function(tmp_path, "batch_norm")
    x, weight, bias = torch.randn(6, 3, 4), torch.ones(3), torch.zeros(3)
    with torch.inference_mode():
        ours, theirs = ((torch.zeros(3), torch.ones(3)) for _ in range(2))
    for _ in TIMES:
        out = called(x, *ours, weight, bias, True)
        torch.testing.assert_close(out, torch.nn.functional.batch_norm(x, *theirs, weight, bias, True))
        torch.testing.assert_close(ours, theirs)
    assert machine.launched


def test_recorded_statistics_do_not_count_as_changed_in_the_backward_of_an_earlier_call(tmp_path: Path) -> None:
    """The first call is made by PyTorch, which keeps the statistics."""
    called, machine = function(tmp_path, "batch_norm")
    statistics, weight, bias = (torch.zeros(3), torch.ones(3)), torch.ones(3), torch.zeros(3)
    x = torch.randn(6, 3, 4, requires_grad=True)
    first = torch.nn.functional.batch_norm(x, *statistics, weight, bias, True)
    called(x, *statistics, weight, bias, True)
    assert machine.launched
    first.square().sum().backward()


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_a_transform_of_torch_func_in_a_graph_is_left_to_pytorch(tmp_path: Path, transform: str) -> None:
    machine = EmulatedMachine(by_reference=True)
    ops = primitives(["softmax", "softmax_backward"], tmp_path, machine)
    softmax = Functions([FORMS["softmax"]], ops, f"transformed_{transform}_kernels")["softmax"]

    def total(x: Tensor, of: Callable[..., Tensor]) -> Tensor:
        return of(x, -1).square().sum()

    transformed = {"vmap": torch.vmap(total, (0, None)), "grad": torch.func.grad(total)}[transform]
    x = torch.randn(3, 4, 5)
    torch._dynamo.reset()

    def run(x: Tensor) -> Any:
        return transformed(x, softmax)

    compiled: Callable[..., Tensor] = torch.compile(run, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), transformed(x, torch.softmax))
    assert not machine.launched


@pytest.mark.parametrize("shapes", [((4, 64), (4, 64)), ((2, 2, 64), (2, 2, 64))], ids=["as the op", "more dims"])
@pytest.mark.parametrize("with_backward", [True, False], ids=["kernel", "formula"])
@pytest.mark.parametrize("is_strided", [False, True], ids=["contiguous", "strided"])
def test_two_tensors_with_the_same_gradient_do_not_share_its_memory(
    tmp_path: Path, shapes: tuple[tuple[int, ...], ...], with_backward: bool, is_strided: bool
) -> None:
    """Otherwise the gradients of a second backward would be added to both at once, and twice."""
    machine = EmulatedMachine(by_reference=True)
    ops = primitives(["add_rms_norm", *(["add_rms_norm_backward"] if with_backward else [])], tmp_path, machine)
    called = Functions([], ops)["add_rms_norm"]
    x, residual = (torch.randn(shape) for shape in shapes)
    residual = residual.movedim(0, -1).contiguous().movedim(-1, 0) if is_strided else residual
    leaves = [one.requires_grad_() for one in (x, residual, torch.randn(64))]
    for count in range(1, 5):
        out, summed = called(*leaves, 1e-6)
        (out.square().sum() + summed.square().sum()).backward()
        if count == 1:
            first = [leaf.grad.clone() for leaf in leaves if leaf.grad is not None]
        torch.testing.assert_close([leaf.grad for leaf in leaves], [count * one for one in first])
    assert machine.launched


def test_a_repeated_backward_that_gives_two_tensors_the_same_gradient_is_recognised(tmp_path: Path) -> None:
    machine = EmulatedMachine(by_reference=True)
    called = Functions([], primitives(["add_rms_norm", "add_rms_norm_backward"], tmp_path, machine))["add_rms_norm"]
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((4, 64), (4, 64), (64,))]
    for _ in range(4):
        out, summed = called(*leaves, 1e-6)
        (out.square().sum() + summed.square().sum()).backward()
    assert len(machine.planned_launches) >= 5  # three forwards and two backwards


def test_a_residual_layer_norm_trains_where_pytorch_runs(tmp_path: Path) -> None:
    """On a CPU, its reference once changed the statistics in place, which autograd had kept."""
    op = catalog.load("add_layer_norm")
    empty = ExportedEntry("", (), (), dict(op.parameters), (), ())
    called = Functions([], {op.name: Primitive(op, empty, tmp_path)})[op.name]
    leaves = [torch.randn(shape, requires_grad=True) for shape in ((3, 300), (3, 300), (300,), (300,))]
    x, residual, weight, bias = leaves
    expected = torch.nn.functional.layer_norm(x + residual, (300,), weight, bias)
    found = torch.autograd.grad(called(*leaves, 1e-5)[0].square().sum(), leaves)
    torch.testing.assert_close(found, torch.autograd.grad(expected.square().sum(), leaves), rtol=1e-4, atol=1e-4)
