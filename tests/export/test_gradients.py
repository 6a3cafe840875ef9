"""Gradients: tensors that a forward keeps, gradients of gradients, and the ways in which PyTorch calls a backward."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from each import sampled
from emulated_machine import EmulatedMachine, primitives
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from evolve.export.families import forms
from evolve.export.template.checks import drawn
from evolve.export.template.dispatch import gradients_of
from evolve.export.template.drawn import Drawn, changed, tensors
from evolve.export.template.functions import Function
from evolve.export.template.gradients import Differentiable, Gradients
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload

TRAINED = [name for name in catalog.names() if catalog.load(name).backward]
QUICK = ("softmax", "relu", "embedding", "max_pool2d", "add_rms_norm", "layer_norm")


def gradients(name: str) -> Gradients:
    op = catalog.load(name)
    return gradients_of(op, {one: catalog.load(one) for one in op.backward}, {}, None)


KEEPING_LESS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive)
    for name in TRAINED
    if gradients(name).steps and any(spec.name not in gradients(name).kept for spec in catalog.load(name).inputs)
]


def outputs(op: Op, workload: Workload, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    found = (op.baseline or op.reference)(*inputs, **dict(workload.parameters))
    return (found,) if isinstance(found, Tensor) else tuple(found)


def second(outs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> list[Tensor | None]:
    """Return the gradients, and those of a function of the gradients."""
    learned = [x for x in inputs if x.requires_grad]
    flowing = [out for out in outs if out.requires_grad]
    first = torch.autograd.grad(sum((out.sin().sum() for out in flowing), torch.zeros(())), learned, create_graph=True)
    total = sum((x.square().sum() for x in first if x.requires_grad), torch.zeros(()))
    return [*first, *torch.autograd.grad(total, learned, allow_unused=True)]


@pytest.mark.parametrize("name", KEEPING_LESS)
def test_gradients_of_gradients_need_no_input_that_the_backward_does_not_read(name: str) -> None:
    op = catalog.load(name)
    workload = next(one for one in op.emulated if one.dtype == "float32")
    given = inputs_at(op, workload, 1, "cpu")
    # On a CPU, some references compute float32 as a GPU would, by steps that cannot be differentiated twice.
    drawn = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    known = gradients(name)
    gives = frozenset().union(*(step.gives for step in known.steps))
    inputs = tuple(
        drawn[spec.name].requires_grad_(spec.name in gives and drawn[spec.name].is_floating_point())
        for spec in op.inputs
    )
    fixed = [spec.name not in known.learned for spec in op.outputs]
    expected = [out.detach() if still else out for out, still in zip(outputs(op, workload, inputs), fixed, strict=True)]
    launch = partial(outputs, op, workload)
    got = Differentiable.apply(known, launch, dict(workload.parameters), *inputs)  # type: ignore[no-untyped-call]
    for one, other in zip(second(got, inputs), second(tuple(expected), inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("relu", ("out",)),
        ("softmax", ("out",)),
        ("gelu", ("x",)),
        ("dropout", ("mask",)),
        ("embedding", ("indices",)),
        ("layer_norm", ("x", "weight", "bias", "mean", "rstd")),
        ("gemm", ("a", "b")),
        ("max_pool2d", ("indices",)),
        ("batch_norm", ("x", "weight", "mean", "rstd")),
    ],
)
def test_a_forward_keeps_the_tensors_that_pytorch_keeps(name: str, kept: tuple[str, ...]) -> None:
    """A model must not need more memory than with PyTorch. A bias stays in memory in any case."""
    assert gradients(name).kept == kept


@pytest.mark.parametrize("name", ["relu", "softmax"])
def test_an_input_may_be_overwritten_that_the_backward_does_not_read(name: str) -> None:
    op = catalog.load(name)
    workload = next(one for one in op.emulated if one.dtype == "float32")
    x = torch.randn(op.shape(op.inputs[0], workload), requires_grad=True)
    changed = x * 1
    (out,) = Differentiable.apply(gradients(name), partial(outputs, op, workload), {}, changed)  # type: ignore[no-untyped-call]
    changed.add_(1)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    (expected,) = torch.autograd.grad(outputs(op, workload, (x,))[0].square().sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.fixture
def softmax(tmp_path: Path) -> Function:
    form = next(form for form in forms() if form.name == "softmax")
    return Function(form, primitives(["softmax", "softmax_backward"], tmp_path, EmulatedMachine(by_reference=True)))


def test_a_checkpoint_recomputes_the_inputs_of_a_backward(softmax: Function) -> None:
    x, grad = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, grad)
    for _ in range(3):
        out = checkpoint(lambda given: softmax(given, -1), x, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(out, x, grad), (expected,))


X, WEIGHT, LABELS = (2, 4, 8), (8,), (2, 8)
CALLED: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda f, x: f(x, 1), (X,)),
    "silu": (lambda f, x: f(x.transpose(0, 1)), (X,)),
    "rms_norm": (lambda f, x, weight: f(x, (8,), weight, 1e-6), (X, WEIGHT)),
    "layer_norm": (lambda f, x, weight, bias: f(x, (8,), weight, bias), (X, WEIGHT, WEIGHT)),
    "cross_entropy": (lambda f, x: f(x, torch.ones(LABELS, dtype=torch.int64)), (X,)),
    "matmul": (lambda f, x, weight: f(x, weight), (X, (8, 8))),
    "batch_norm": (lambda f, x, *others: f(x, torch.zeros(4), torch.ones(4), *others, True), (X, (4,), (4,))),
    "embedding": (lambda f, weight: f(torch.ones(LABELS, dtype=torch.int64), weight, 3), ((8, 8),)),
    "conv1d": (lambda f, *given: f(*given, 1, 2, 1, 4), (X, (4, 1, 3), (4,))),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_first_call_in_a_checkpoint_saves_the_same_as_the_second(name: str, tmp_path: Path) -> None:
    """A checkpoint compares the number of saved tensors and their shapes."""
    form = next(form for form in forms() if form.name == name)
    backward = [one for op in form.ops for one in catalog.load(op).backward]
    machine = EmulatedMachine(by_reference=True)
    function = Function(form, primitives(dict.fromkeys((*form.ops, *backward)), tmp_path, machine))
    call, shapes = CALLED[name]
    tensors = [torch.rand(shape, requires_grad=True) for shape in shapes]
    expected = torch.autograd.grad(call(form.pytorch, *tensors).square().sum(), tensors)
    for _ in range(2):
        out = checkpoint(lambda *given: call(function, *given), *tensors, use_reentrant=False)
        torch.testing.assert_close(torch.autograd.grad(out.square().sum(), tensors), expected, rtol=1e-4, atol=1e-5)
    assert machine.launched


def test_gradients_come_in_batches_as_with_pytorch(softmax: Function) -> None:
    x, grads = torch.randn(4, 8, requires_grad=True), torch.randn(3, 4, 8)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, grads, is_grads_batched=True)
    for _ in range(3):
        got = torch.autograd.grad(softmax(x, -1), x, grads, is_grads_batched=True)
        torch.testing.assert_close(got, (expected,))
        one = torch.autograd.grad(softmax(x, -1), x, grads[0])
        torch.testing.assert_close(one, (expected[0],))


def test_tensors_that_a_hook_moves_are_moved_back_for_a_backward(softmax: Function) -> None:
    x, grad = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, grad)
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.double(), lambda kept: kept.float()):
            out = softmax(x, -1)
        torch.testing.assert_close(torch.autograd.grad(out, x, grad), (expected,))


def test_a_backward_under_a_mode_is_not_remembered_for_others(softmax: Function) -> None:
    x, grad = torch.randn(4, 8, requires_grad=True), torch.randn(4, 8)
    (expected,) = torch.autograd.grad(torch.softmax(x, -1), x, grad)
    softmax(x, -1)
    out = softmax(x, -1)
    with FlopCounterMode(display=False):
        torch.testing.assert_close(torch.autograd.grad(out, x, grad, retain_graph=True), (expected,))
    torch.testing.assert_close(torch.autograd.grad(out, x, grad), (expected,))


FORMS = {form.name: form for form in forms()}


def twice(called: Callable[..., object], given: Drawn, dtype: torch.dtype) -> list[Tensor]:
    """Return the gradients of a call that can be differentiated again, and gradients of these."""
    given = changed(given, lambda x: x.detach().clone().to(dtype) if x.is_floating_point() else x)
    inputs = [x.requires_grad_() for x in tensors([*given.arguments, *given.named.values()]) if x.is_floating_point()]
    outs = [out for out in tensors(called(*given.arguments, **given.named)) if out.requires_grad]
    first = torch.autograd.grad([out.square().sum() for out in outs], inputs, create_graph=True, allow_unused=True)
    known = [x for x in first if x is not None]
    total = torch.stack([x.square().sum() for x in known if x.requires_grad]).sum()
    return [*known, *(x for x in torch.autograd.grad(total, inputs, allow_unused=True) if x is not None)]


@pytest.mark.parametrize("name", sampled(sorted(FORMS), quick=("instance_norm", "layer_norm", "softmax", "gelu")))
def test_gradients_of_gradients_of_random_calls_are_as_exact_as_pytorchs(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    back = [one for op in form.ops for one in catalog.load(op).backward]
    machine = EmulatedMachine(by_reference=True)
    function = Function(form, primitives(dict.fromkeys([*form.ops, *back]), tmp_path, machine))
    for number in range(24):
        given, dtype = drawn(function, number)
        every = list(tensors([*given.arguments, *given.named.values()]))
        if dtype is not torch.float32 or any(not x.numel() for x in every):
            continue
        try:
            exact, theirs = (twice(form.pytorch, given, kind) for kind in (torch.float64, torch.float32))
        except (RuntimeError, TypeError, ValueError):  # PyTorch cannot compute this gradient
            continue
        for ours, pytorchs, true in zip(twice(function, given, torch.float32), theirs, exact, strict=True):
            most = 4 * (pytorchs - true).abs().max() + 1e-5 * true.abs().max() + 1e-6
            assert (ours - true).abs().max() <= most, number


@pytest.mark.parametrize("padding", [0, -1])
def test_a_row_of_padding_gets_no_gradient_from_a_call_that_was_seen_before(padding: int, tmp_path: Path) -> None:
    machine = EmulatedMachine(by_reference=True)
    embedding = Function(FORMS["embedding"], primitives(["embedding", "embedding_backward"], tmp_path, machine))
    for _ in range(3):
        at, weights = torch.randint(5, (4, 6)), [x.requires_grad_() for x in torch.randn(1, 5, 8).repeat(2, 1, 1)]
        embedding(at, weights[0] * 1, padding).sin().sum().backward()
        torch.nn.functional.embedding(at, weights[1] * 1, padding).sin().sum().backward()
        torch.testing.assert_close(*[weight.grad for weight in weights])
    assert machine.planned_launches
