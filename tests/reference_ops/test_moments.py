"""Moments as PyTorch computes them on a GPU."""

import pytest
import torch

from reference_ops import catalog
from reference_ops.inputs import inputs_at
from reference_ops.normalization._moments import moments_as_on_a_gpu


@pytest.mark.parametrize("cols", [1, 31, 128, 129, 1000])
def test_moments_of_rows_of_any_length_are_right(cols: int) -> None:
    rows = torch.randn(5, cols)
    mean, variance = moments_as_on_a_gpu(rows)
    assert torch.allclose(mean, rows.mean(1, keepdim=True), atol=1e-6)
    assert torch.allclose(variance, rows.var(1, correction=0, keepdim=True), rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_row() -> None:
    rows = torch.randn(3, 200)
    rows[1, 150] = torch.nan
    mean, variance = moments_as_on_a_gpu(rows)
    assert mean.isnan().flatten().tolist() == [False, True, False]
    assert variance.isnan().flatten().tolist() == [False, True, False]


def test_batch_norm_on_a_cpu_computes_the_same_as_pytorch() -> None:
    op = catalog.load("batch_norm")
    for workload in op.emulated:
        inputs = inputs_at(op, workload, 1, "cpu")
        rounding = 4 * torch.finfo(inputs["x"].dtype).eps
        for ours, theirs in zip(op.call(inputs, workload), op.call_baseline(inputs, workload), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=rounding + 1e-5, atol=rounding + 1e-5)
