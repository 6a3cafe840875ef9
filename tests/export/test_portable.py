"""Portable ops: which ops a package can hold, and the workload of a call that depends on values or outputs."""

import pytest

from evolve.export.portable import portable
from evolve.export.template.calls import NoKernelError, check_outputs, workload_of
from reference_ops import catalog
from reference_ops.inputs import inputs_at

WITHOUT_META = ("ctc_loss", "ctc_loss_backward", "histogram")
ALL = catalog.names()


@pytest.mark.parametrize("name", [*WITHOUT_META, "upsample_nearest_backward"])
def test_an_op_that_the_meta_device_lacks_or_whose_inputs_lack_a_dim_can_be_exported(name: str) -> None:
    assert portable(catalog.load(name), catalog.locate(name)).op.name == name


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted({*ALL} - {*WITHOUT_META}))
def test_every_op_of_the_catalog_can_be_exported(name: str) -> None:
    assert portable(catalog.load(name), catalog.locate(name)).op.name == name


@pytest.mark.parametrize("name", [*WITHOUT_META, "upsample_nearest_backward"])
def test_a_call_of_such_an_op_has_the_workload_that_it_was_made_at(name: str) -> None:
    op = catalog.load(name)
    for workload in op.emulated:
        inputs = tuple(inputs_at(op, workload, 0, "cpu").values())
        found = workload_of(op, inputs, dict(workload.parameters))
        assert found == workload
        check_outputs(op, found, inputs)


def test_a_call_that_pytorch_refuses_for_its_values_has_no_kernel() -> None:
    op = catalog.load("ctc_loss")
    workload = op.emulated[0]
    inputs = inputs_at(op, workload, 0, "cpu")
    inputs["targets"] = inputs["targets"][:, :0]
    with pytest.raises(NoKernelError, match="the reference refuses inputs of"):
        check_outputs(op, workload, tuple(inputs.values()))
