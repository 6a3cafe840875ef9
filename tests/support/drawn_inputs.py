"""Inputs of an op drawn from one distribution or arrangement."""

import torch

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.op import Op, Workload


def drawn(op: Op, values: str, workload: Workload | None = None) -> dict[str, torch.Tensor]:
    return inputs_at(op, workload or op.emulated[0], 5, "cpu", values)


def nan_at(op: str, values: str) -> set[str]:
    """Return the inputs that have NaN, but not everywhere."""
    found = drawn(catalog.load(op), values).items()
    return {name for name, tensor in found if bool(tensor.isnan().any()) and not bool(tensor.isnan().all())}
