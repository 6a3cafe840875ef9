import math

import torch

from evolve.proposers.tuner.surrogate import Beliefs, Shape, beliefs, distances, expected_gain, fitted, likeness

LEVELS = torch.linspace(0, 1, 6, dtype=torch.float64)
PLACES = torch.cartesian_prod(LEVELS, LEVELS)
SIZES = (False, False)


def wavy(places: torch.Tensor) -> torch.Tensor:
    """The first knob matters, the second not."""
    return torch.sin(3 * places[:, 0])


def shape_of(seen: torch.Tensor) -> Shape:
    return fitted(distances(PLACES[seen], PLACES[seen], SIZES), wavy(PLACES[seen]))


def believed(seen: torch.Tensor, shape: Shape) -> Beliefs:
    cross = likeness(distances(PLACES, PLACES[seen], SIZES), shape)
    return beliefs(cross, seen, wavy(PLACES[seen]), shape.noise)


def test_a_knob_that_does_not_matter_is_given_a_greater_length() -> None:
    seen = torch.arange(0, 36, 2)
    first, second = shape_of(seen).lengths
    assert first < second


def test_what_was_seen_is_believed_and_what_lies_between_is_guessed() -> None:
    seen = torch.arange(0, 36, 2)
    held = believed(seen, shape_of(seen))
    assert torch.allclose(held.mean, wavy(PLACES), atol=0.1)
    assert torch.allclose(held.mean[seen], wavy(PLACES[seen]), atol=0.03)


def test_it_is_surer_near_what_was_seen() -> None:
    held = believed(torch.tensor([0]), Shape((1.0, 1.0)))
    assert held.spread[0] < held.spread[1] < held.spread[35]


def test_two_choices_are_apart_however_near_they_stand() -> None:
    ends = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    assert distances(ends, ends, [True])[0, 0, 1] > 0.5
    assert distances(ends, ends, [True])[0, 0, 0] == 0.0


def test_the_gain_expected_is_the_mean_over_all_that_may_come() -> None:
    held = Beliefs(torch.tensor([1.0], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))
    drawn = 1.0 + 0.5 * torch.randn(400_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mean = float((0.8 - drawn).clamp_min(0).mean())
    assert math.isclose(float(expected_gain(held, 0.8)), mean, rel_tol=0.01)


def test_five_hundred_observations_speak_through_some_of_them() -> None:
    places = torch.rand(500, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    shape = fitted(distances(places, places, SIZES), wavy(places))
    assert shape.lengths[0] < shape.lengths[1]
