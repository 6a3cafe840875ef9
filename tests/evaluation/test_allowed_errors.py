"""Allowed errors: norms in float32 as on a GPU are as good as norms in float64."""

import math

import pytest
import torch

from evolve.evaluation.allowed_errors import norms


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-30, 1e-20, 1e-12, 1.0, 1e15, 1e25, 1e37])
def test_quick_norms_have_no_limits_of_size(scale: float) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1)).mul_(scale)
    assert norms([values], quick=True) == pytest.approx(norms([values], quick=False), rel=1e-5, abs=0)


def test_the_small_errors_beside_large_ones_do_not_matter_to_a_quick_norm() -> None:
    values = torch.full((1000,), 1e-24)
    values[0] = 1e-10
    assert norms([values], quick=True) == pytest.approx(norms([values], quick=False), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_quick_norm_of_a_value_that_is_not_finite_is_not_finite(bad: float) -> None:
    assert not math.isfinite(norms([torch.tensor([1.0, bad])], quick=True)[0])


def test_other_values_are_transferred_unchanged() -> None:
    assert norms([torch.ones(4)], torch.tensor(7.0), quick=True) == [2.0, 7.0]


@pytest.mark.gpu
def test_quick_norms_of_many_values_are_as_exact_on_a_gpu() -> None:
    values = torch.randn(2**27, device="cuda")
    assert norms([values]) == pytest.approx(norms([values], quick=False), rel=1e-5)
