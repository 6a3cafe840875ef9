"""Detection, in every TF32 op, of products rounded to float16, which has TF32's precision but not its range."""

import pytest
import torch

from evolve.evaluation.truth import Truth
from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import NORMAL, Op, Tensors

# Recurrent ops draw no faint numbers: gates lie between 0 and 1, biases are added, and gradients become small by
# themselves.
IN_TF32 = [op for op in map(catalog.load, catalog.names()) if op.tf32 and catalog.family(op.name) != "recurrent"]
SEED = 6


def in_tf32(values: torch.Tensor) -> torch.Tensor:
    """Round to the nearest TF32 number, which has ten bits after the leading one."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def rounded(inputs: Tensors, *, half: bool) -> Tensors:
    return {name: values.half().float() if half else in_tf32(values) for name, values in inputs.items()}


def faults(op: Op, values: str) -> list[str]:
    """Return the faults found in products of numbers rounded to float16, with PyTorch's TF32 results as baseline."""
    workload = next(workload for workload in op.emulated if workload.dtype == "float32")
    inputs = inputs_at(op, workload, SEED, "cpu", values)
    theirs, expected = op.call(rounded(inputs, half=False), workload), op.call_in_float64(inputs, workload)
    known = Truth(op, workload, values, SEED, inputs, theirs, expected)
    found = op.call(rounded(inputs, half=True), workload)
    return [fault for index, output in enumerate(found) if (fault := known.fault(index, output))]


@pytest.mark.parametrize("op", IN_TF32, ids=lambda op: op.name)
def test_products_rounded_to_float16_are_detected_on_some_inputs(op: Op) -> None:
    assert not faults(op, NORMAL)
    assert any(faults(op, values) for values in op.values)
