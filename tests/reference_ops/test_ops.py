"""Properties of every op in the catalog."""

import torch
from each import each

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload
from reference_ops.precision import TORCH_DTYPES

OPS = {name: catalog.load(name) for name in catalog.names()}
POINTS = {
    f"{name} {workload.key}": (op, workload) for name, op in OPS.items() for workload in (*op.emulated, *op.awkward)
}
SMALL = [f"{name} {min(op.emulated, key=op.nbytes).key}" for name, op in OPS.items()]


@each(POINTS, quick=SMALL)
def test_outputs_have_the_declared_shapes_and_dtypes(op: Op, workload: Workload) -> None:
    outputs = op.call(inputs_at(op, workload, 0, "cpu"), workload)
    found = [(output.shape, output.dtype) for output in outputs]
    assert found == [(op.shape(spec, workload), TORCH_DTYPES[spec.dtype or workload.dtype]) for spec in op.outputs]


@each(OPS)
def test_the_baseline_agrees_with_the_reference(op: Op) -> None:
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    inputs = inputs_at(op, workload, 0, "cpu")
    for expected, found in zip(op.call(inputs, workload), op.call_baseline(inputs, workload), strict=True):
        torch.testing.assert_close(found, expected)


@each(OPS)
def test_the_reference_is_defined_for_float64(op: Op) -> None:
    outputs = op.call_in_float64(inputs_at(op, op.emulated[0], 0, "cpu"), op.emulated[0])
    for spec, output in zip(op.outputs, outputs, strict=True):
        rounded = TORCH_DTYPES[spec.dtype] if spec.dtype else torch.float64
        assert output.dtype in {rounded, torch.float64 if rounded.is_floating_point else rounded}, spec.name


@each(OPS)
def test_the_reference_does_not_change_its_inputs(op: Op) -> None:
    inputs = inputs_at(op, op.emulated[0], 0, "cpu")
    op.call(inputs, op.emulated[0])
    fresh = inputs_at(op, op.emulated[0], 0, "cpu")
    assert all(torch.equal(inputs[name], fresh[name]) for name in fresh)


@each(OPS)
def test_every_input_changes_with_the_seed(op: Op) -> None:
    """A kernel could ignore an input that is always the same."""
    workload = op.emulated[0]
    first, second = (inputs_at(op, workload, seed, "cpu") for seed in (0, 1))
    assert [name for name in first if torch.equal(first[name], second[name])] == []


@each(OPS)
def test_every_dtype_is_checked_on_both_devices(op: Op) -> None:
    assert {workload.dtype for workload in op.gpu} == {workload.dtype for workload in op.emulated}


@each(OPS)
def test_no_workload_is_declared_twice(op: Op) -> None:
    keys = [workload.key for workload in (*op.gpu, *op.emulated, *op.awkward)]
    assert len(keys) == len(set(keys))


@each(OPS)
def test_every_workload_has_bytes_to_move_and_operations(op: Op) -> None:
    for workload in (*op.gpu, *op.emulated, *op.awkward):
        assert op.least_bytes(workload) > 0
        assert op.flops(op.sizes(workload)) > 0


def test_a_dilation_may_exceed_a_small_image_in_bfloat16() -> None:
    op, known = catalog.load("dilated_conv2d"), {"padding": 7, "dilation": 10}
    dims = {"batch": 7, "channels": 33, "height": 3, "width": 8, "filters": 16, "r": 2, "s": 3}
    workload = Workload("bfloat16", tuple(dims.items()), tuple(known.items()))  # PyTorch alone crashes here
    inputs = inputs_at(op, workload, 0, "cpu")
    (expected,) = op.call({name: values.float() for name, values in inputs.items()}, workload)
    assert torch.equal(op.call(inputs, workload)[0], expected.bfloat16())
