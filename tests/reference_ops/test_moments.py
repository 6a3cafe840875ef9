"""Moments as PyTorch computes them on a GPU."""

import pytest
import torch

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
