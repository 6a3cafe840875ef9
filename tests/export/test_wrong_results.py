"""Calls that once gave wrong results, raised, or filled the memory: gradients, strides and free parameters."""

from pathlib import Path

import numpy as np
import pytest
import torch
from emulated_machine import EmulatedMachine, primitives

from evolve.export.families import forms
from evolve.export.package import defaults
from evolve.export.template.dispatch import Primitive
from evolve.export.template.free import free_for_sizes
from evolve.export.template.functions import Function
from evolve.export.template.manifest import ExportedEntry
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload

ADAMW = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}
FORMS = {form.name: form for form in forms()}
FORWARD = [op for op in map(catalog.load, catalog.names()) if "_backward" not in op.name]
EVERY = list(map(catalog.load, catalog.names()))


def on_pytorch(op: Op) -> Primitive:
    return Primitive(op, ExportedEntry("", (), (), dict(op.parameters), (), ()), Path())


def smallest(op: Op) -> Workload:
    return min((w for w in op.emulated if w.dtype == op.emulated[0].dtype), key=op.nbytes)


@pytest.mark.parametrize("op", [op for op in FORWARD if op.baseline], ids=lambda op: op.name)
def test_a_call_that_pytorch_runs_drops_no_gradient(op: Op) -> None:
    workload = smallest(op)
    inputs = inputs_at(op, workload, 0, "cpu")
    learned = tuple(x.requires_grad_() if x.dtype in (torch.float32, torch.bfloat16) else x for x in inputs.values())
    reference = op.reference(*learned, **dict(workload.parameters))
    expected = reference if isinstance(reference, torch.Tensor) else reference[0]
    out = on_pytorch(op)(learned, dict(workload.parameters))[0]
    assert out.requires_grad == expected.requires_grad


@pytest.mark.parametrize("op", EVERY, ids=lambda op: op.name)
def test_pytorch_computes_the_same_for_strided_inputs(op: Op) -> None:
    workload = smallest(op)
    inputs = tuple(inputs_at(op, workload, 0, "cpu").values())
    strided = tuple(torch.stack([x, x], -1)[..., 0] if x.dim() else x for x in inputs)
    with torch.no_grad():
        expected = on_pytorch(op)(inputs, dict(workload.parameters))
        for out, exact in zip(on_pytorch(op)(strided, dict(workload.parameters)), expected, strict=True):
            torch.testing.assert_close(out, exact, equal_nan=True)


def test_cross_entropy_needs_no_label_smoothing() -> None:
    op = next(op for op in FORWARD if op.name == "cross_entropy")
    assert defaults(op) == {"ignore_index": -100, "label_smoothing": 0.0}


def test_a_dim_given_as_a_tensor_is_read_at_every_call(tmp_path: Path) -> None:
    softmax = function(tmp_path, "softmax")
    x = torch.randn(4, 4)
    for dim in (0, 1, 0, 1):
        torch.testing.assert_close(softmax(x, torch.tensor(dim)), torch.softmax(x, dim))


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("sum", (0, None)),
        ("max", (0, None)),
        ("sort", (0, None)),
        ("argmax", (True,)),
        ("log_softmax", (1.0,)),
        ("sum", ([1.0],)),
        ("cumsum", (np.float32(1.0),)),
        ("cumsum", (None,)),
    ],
)
def test_flags_and_dims_of_another_type_raise_pytorchs_error(
    tmp_path: Path, name: str, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(TypeError):
        function(tmp_path, name)(torch.randn(3, 4), *arguments)


@pytest.mark.parametrize(
    "momentum", [pytest.param("a", id="text"), pytest.param(torch.ones(2), id="a tensor of several elements")]
)
def test_a_number_of_another_type_raises_pytorchs_error(tmp_path: Path, momentum: object) -> None:
    with pytest.raises(TypeError):
        function(tmp_path, "batch_norm")(torch.randn(3, 4, 2), *torch.ones(4, 4), False, momentum)


@pytest.mark.parametrize("dropout", [None, "a", torch.ones(2)], ids=["none", "text", "tensor"])
def test_a_layer_made_of_several_refuses_the_same_arguments_as_pytorch(tmp_path: Path, dropout: object) -> None:
    layer = torch.nn.RNN(4, 8, num_layers=2)
    given = (
        torch.randn(5, 3, 4),
        torch.zeros(2, 3, 8),
        list(layer.parameters()),
        True,
        2,
        dropout,
        False,
        False,
        False,
    )
    with pytest.raises(TypeError):
        function(tmp_path, "rnn_tanh")(*given)


@pytest.mark.parametrize("groups", [1, True])
def test_a_convolution_refuses_the_same_arguments_as_pytorch(tmp_path: Path, groups: int) -> None:
    """One case has a bias of integers, with channels last in memory; the other has a flag as number of groups."""
    x, weight = (torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last) for _ in range(2))
    bias = None if groups is True else torch.ones(2, dtype=torch.int64)
    with pytest.raises((RuntimeError, TypeError)):
        function(tmp_path, "conv2d")(x, weight, bias, 1, 0, 1, groups)


@pytest.mark.parametrize("name", ["avg_pool2d", "max_pool2d"])
@pytest.mark.parametrize("stride", [0, (0, 0)])
def test_a_pooling_without_a_stride_is_refused(tmp_path: Path, name: str, stride: object) -> None:
    with pytest.raises(RuntimeError, match="stride should not be zero"):
        function(tmp_path, name)(torch.randn(2, 3, 8, 8), 2, stride)


def test_a_padding_outside_the_weight_raises_pytorchs_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="Padding_idx must be within"):
        function(tmp_path, "embedding")(torch.tensor([0]), torch.randn(1, 5), padding_idx=1)


@pytest.mark.parametrize("name", ["adaptive_avg_pool2d", "adaptive_avg_pool3d", "interpolate"])
def test_one_size_for_several_dims_raises_pytorchs_error(tmp_path: Path, name: str) -> None:
    image = torch.randn(2, 3, *[6] * (3 if name.endswith("3d") else 2))
    with pytest.raises((RuntimeError, ValueError)):
        function(tmp_path, name)(image, (2,))


def test_a_number_in_place_of_a_flag_raises_pytorchs_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        function(tmp_path, "grid_sample")(torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2), align_corners=0)


def test_a_third_state_of_an_lstm_cell_raises_pytorchs_error(tmp_path: Path) -> None:
    weights = (torch.randn(32, 4), torch.randn(32, 8), torch.zeros(32), torch.zeros(32))
    with pytest.raises(RuntimeError, match="two hidden states"):
        function(tmp_path, "lstm_cell")(torch.randn(3, 4), (torch.zeros(3, 8),) * 3, *weights)


def function(folder: Path, name: str) -> Function:
    return Function(FORMS[name], primitives(FORMS[name].ops, folder, EmulatedMachine(by_reference=True)))


@pytest.fixture(scope="module")
def adamw(tmp_path_factory: pytest.TempPathFactory) -> tuple[Primitive, EmulatedMachine]:
    machine = EmulatedMachine()
    return primitives(["adamw"], tmp_path_factory.mktemp("adamw"), machine)["adamw"], machine


@pytest.mark.parametrize("step", [1, 2, 1000, 1001, 1_000_000])
def test_a_kernel_accepts_every_step_and_learning_rate(adamw: tuple[Primitive, EmulatedMachine], step: int) -> None:
    op, machine = adamw
    inputs = tuple(inputs_at(op.op, op.op.emulated[0], step, "cpu").values())
    before = len(machine.launched)
    parameters = {**ADAMW, "lr": 1e-3 / step, "step": step}
    for out, exact in zip(op(inputs, parameters), op.op.reference(*inputs, **parameters), strict=True):
        torch.testing.assert_close(out, exact, rtol=1e-5, atol=1e-6)
    assert len(machine.launched) == before + 1


def test_steps_share_one_decision(adamw: tuple[Primitive, EmulatedMachine]) -> None:
    op, _ = adamw
    inputs = tuple(torch.rand(64) for _ in range(4))
    for step in range(1, 6):
        op(inputs, {**ADAMW, "step": step})
    assert len([key for key in op._decisions if key[0][0][0] == (64,)]) == 1  # type: ignore[index]


@pytest.mark.parametrize("name", ["conv1d", "conv_transpose2d", "topk"])
def test_a_parameter_on_which_a_size_depends_is_part_of_a_decision(name: str) -> None:
    assert not free_for_sizes(catalog.load(name))


def test_two_dilations_of_one_shape_are_two_decisions(tmp_path: Path) -> None:
    op = primitives(["conv1d"], tmp_path, EmulatedMachine())["conv1d"]
    x, weight = torch.randn(1, 3, 8), torch.randn(1, 3, 3)
    for dilation in (1, 2):
        parameters = {"stride": 2, "padding": 0, "dilation": dilation}
        torch.testing.assert_close(op((x, weight), parameters), op.pytorch((x, weight), parameters))
        # the kernel was measured only with dilation 1
        assert bool(op.explain((x, weight), parameters).kernel) == (dilation == 1)


def test_a_combination_that_no_kernel_was_tested_with_is_left_to_pytorch(
    adamw: tuple[Primitive, EmulatedMachine],
) -> None:
    op, _ = adamw
    inputs = tuple(torch.rand(64) for _ in range(4))
    explanation = op.explain(inputs, {**ADAMW, "lr": 10.0, "step": 1})
    assert not explanation.kernel
    assert "no kernel was tested with the combination" in explanation.reason


def test_the_first_result_of_a_call_is_not_a_view(tmp_path: Path) -> None:
    relu = Function(FORMS["relu"], primitives(["relu"], tmp_path, EmulatedMachine()))
    for _ in range(3):
        assert not relu(torch.randn(4, 6, 8)).detach_()._is_view()
