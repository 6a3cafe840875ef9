"""Ops and their backwards: names of tensors match, and gradients agree with autograd."""

from typing import Any

import pytest
import torch
from each import each
from torch.utils._python_dispatch import TorchDispatchMode

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Number, Op, Tensors, Workload

OPS = [catalog.load(name) for name in catalog.names()]
PAIRS = {name: (op, catalog.load(name)) for op in OPS for name in op.backward}
GRADIENT = "grad_"
pairs = each(PAIRS)


def named(op: Op) -> set[str]:
    return {spec.name for spec in (*op.inputs, *op.outputs)}


@pairs
def test_inputs_and_outputs_of_a_backward_are_named_after_those_of_the_forward(op: Op, backward: Op) -> None:
    gradients = {f"{GRADIENT}{spec.name}" for spec in op.outputs}
    assert {spec.name for spec in backward.inputs} <= named(op) | gradients
    assert {spec.name for spec in backward.outputs} <= {f"{GRADIENT}{spec.name}" for spec in op.inputs}
    # Dims count too: some cannot be read from the shapes of the backward's inputs.
    assert set(backward.parameters) <= {*op.parameters, *op.dims}


@pairs
def test_a_backward_agrees_with_autograd(op: Op, backward: Op) -> None:
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    _agrees(op, backward, workload, inputs_at(op, workload, 0, "cpu"))


@each({name: PAIRS[name] for name in ("cumprod_backward", "l2_norm_backward", "softmax_backward", "relu_backward")})
def test_a_backward_agrees_with_autograd_where_inputs_are_zero(op: Op, backward: Op) -> None:
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    inputs = inputs_at(op, workload, 0, "cpu")
    rows = inputs["x"].view(-1, inputs["x"].shape[-1] if inputs["x"].ndim > 1 else 64)
    rows[::2, 1::3] = 0
    rows[1] = 0
    _agrees(op, backward, workload, inputs)


def test_a_batch_with_only_ignored_rows_has_no_gradient() -> None:
    op, backward = PAIRS["cross_entropy_backward"]
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    inputs = inputs_at(op, workload, 0, "cpu", "all_ignored")
    _agrees(op, backward, workload, inputs)


def test_a_row_of_scores_that_is_entirely_masked_has_a_gradient_of_zero() -> None:
    op, backward = PAIRS["masked_softmax_backward"]
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    inputs = inputs_at(op, workload, 0, "cpu")
    inputs["mask"][:, ::2] = True
    _agrees(op, backward, workload, inputs)


def _agrees(op: Op, backward: Op, workload: Workload, given_inputs: Tensors) -> None:
    torch.manual_seed(0)
    inputs = {name: _leaf(values) for name, values in given_inputs.items()}
    outputs = dict(zip((spec.name for spec in op.outputs), op.call(inputs, workload), strict=True))
    given = {f"{GRADIENT}{name}": torch.randn_like(values) for name, values in outputs.items() if values.requires_grad}
    taken = {spec.name for spec in backward.inputs}
    used = [name for name in outputs if f"{GRADIENT}{name}" in taken]
    wanted = [spec.name.removeprefix(GRADIENT) for spec in backward.outputs]
    expected = torch.autograd.grad(
        [outputs[name] for name in used],
        [inputs[name] for name in wanted],
        [given[f"{GRADIENT}{name}"] for name in used],
    )
    known: Tensors = {**inputs, **outputs, **given}
    told = {**op.sizes(workload), **dict(workload.parameters)}
    parameters = {name: told[name] for name in backward.parameters}
    found = _backward(backward, {spec.name: known[spec.name].detach() for spec in backward.inputs}, parameters)
    for name, ours, autograds in zip(wanted, found, expected, strict=True):
        assert torch.allclose(ours, autograds, rtol=1e-9, atol=1e-9), name


def _leaf(values: torch.Tensor) -> torch.Tensor:
    return values.double().requires_grad_() if values.is_floating_point() else values


def _backward(backward: Op, inputs: Tensors, parameters: dict[str, Number]) -> tuple[torch.Tensor, ...]:
    found = backward.reference(*inputs.values(), **parameters)
    return (found,) if isinstance(found, torch.Tensor) else tuple(found)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_the_gradient_of_a_pool_to_one_element_is_computed_as_autograd_does(rank: int) -> None:
    forward, backward = (catalog.load(f"adaptive_avg_pool{rank}d{suffix}") for suffix in ("", "_backward"))
    x = torch.rand(2, 3, *range(4, 4 + rank), requires_grad=True)
    sizes = dict(zip("dhw"[-rank:] if rank > 1 else "l", x.shape[2:], strict=True))
    out = forward.reference(x, **{f"o{axis}": 1 for axis in sizes})
    assert backward.baseline
    assert isinstance(out, torch.Tensor)
    with _Called() as by_autograd:
        torch.autograd.grad(out.sum(), x)
    with _Called() as by_baseline:
        backward.baseline(torch.ones_like(out), **sizes)
    kernels = {"aten::_adaptive_avg_pool2d_backward", "aten::_adaptive_avg_pool3d_backward", "aten::div"}
    assert by_autograd.names & kernels == by_baseline.names & kernels == {"aten::div"}


class _Called(TorchDispatchMode):
    """Context manager that collects the names of the operators that PyTorch calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))
