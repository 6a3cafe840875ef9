"""Ops and their backwards: names of tensors match, and gradients agree with autograd."""

import torch
from each import each

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
