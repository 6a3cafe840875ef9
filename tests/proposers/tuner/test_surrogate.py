"""Surrogate model: a Gaussian process over knob settings, tested without a CUDA kernel."""

import math

import torch

from evolve.proposers.tuner.surrogate import (
    Covariance,
    Posterior,
    correlation,
    distances,
    expected_improvement,
    fit_covariance,
    posterior,
)

LEVELS = torch.linspace(0, 1, 6, dtype=torch.float64)
SETTINGS = torch.cartesian_prod(LEVELS, LEVELS)
SIZES = (False, False)


def wavy(settings: torch.Tensor) -> torch.Tensor:
    """Return values that depend only on the first knob."""
    return torch.sin(3 * settings[:, 0])


def covariance_from(seen: torch.Tensor) -> Covariance:
    return fit_covariance(distances(SETTINGS[seen], SETTINGS[seen], SIZES), wavy(SETTINGS[seen]))


def posterior_from(seen: torch.Tensor, covariance: Covariance) -> Posterior:
    cross = correlation(distances(SETTINGS, SETTINGS[seen], SIZES), covariance)
    return posterior(cross, seen, wavy(SETTINGS[seen]), covariance.noise)


def test_a_knob_without_effect_gets_a_longer_length_scale() -> None:
    first, second = covariance_from(torch.arange(0, 36, 2)).lengths
    assert first < second


def test_the_mean_passes_through_observations_and_interpolates_between_them() -> None:
    seen = torch.arange(0, 36, 2)
    found = posterior_from(seen, covariance_from(seen))
    assert torch.allclose(found.mean, wavy(SETTINGS), atol=0.1)
    assert torch.allclose(found.mean[seen], wavy(SETTINGS[seen]), atol=0.03)


def test_the_deviation_grows_with_the_distance_from_observations() -> None:
    found = posterior_from(torch.tensor([0]), Covariance((1.0, 1.0)))
    assert found.deviation[0] < found.deviation[1] < found.deviation[35]


def test_values_of_a_categorical_knob_are_far_apart_even_if_neighbours() -> None:
    ends = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    assert distances(ends, ends, [True])[0, 0, 1] > 0.5
    assert distances(ends, ends, [True])[0, 0, 0] == 0.0


def test_the_expected_improvement_is_the_mean_of_random_draws() -> None:
    one = Posterior(torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))
    drawn = 1.0 + 0.5 * torch.randn(400_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean = float((0.8 - drawn).clamp_min(0).mean())
    assert math.isclose(float(expected_improvement(one, 0.8)), mean, rel_tol=0.01)


def test_a_sample_of_five_hundred_observations_is_enough_to_fit_length_scales() -> None:
    settings = torch.rand(500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    covariance = fit_covariance(distances(settings, settings, SIZES), wavy(settings))
    assert covariance.lengths[0] < covariance.lengths[1]
