"""Inputs near the drawn ones: each number is changed as by a rounding, which shows what rounding explains."""

import random

import torch

NEAR = 2.0**-20  # largest relative change, 16 roundings of float32


def of_more_bits(values: torch.Tensor) -> torch.Tensor:
    """Return 8-bit floats as float32, because PyTorch has few operations on them, and others unchanged."""
    return values.float() if values.is_floating_point() and values.element_size() == 1 else values


def rounded(values: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return values of 16 or 32 bits as float32 values within `NEAR` of them, and others unchanged.

    The values are not only the next numbers above or below: with two choices for each of a few values, an error may be
    zero in all cases.
    """
    if not (values.is_floating_point() and values.element_size() in {2, 4}):
        return values
    factors = torch.empty_like(values, dtype=torch.float32).uniform_(1 - NEAR, 1 + NEAR, generator=generator)
    return factors.mul_(values)


def perturbed(
    values: torch.Tensor, generator: torch.Generator, chance: random.Random, *, of_16_bits: torch.Tensor, std: float
) -> torch.Tensor:
    """Return the values with a relative change of this standard deviation, as by rounding.

    Equal numbers of 16 bits change alike, because a kernel rounds equal sums alike: in a row with few different
    numbers, such roundings do not cancel. `chance` gives each of these numbers another of the factors each time.
    """
    if not values.is_floating_point():
        return values
    if values.element_size() == 2:
        places = values.view(torch.int16).int().mul_(chance.randrange(1, 2**15, 2)).add_(chance.randrange(2**16))
        changes = of_16_bits[places.bitwise_and_(0xFFFF)]  # an odd factor never moves two numbers to one place
    else:
        changes = factors(values.shape, std, generator)
    return changes.mul_(of_more_bits(values))


def factors(shape: tuple[int, ...], std: float, generator: torch.Generator) -> torch.Tensor:
    """Return float64 factors near 1 with this standard deviation."""
    return torch.empty(shape, dtype=torch.float64, device=generator.device).normal_(1.0, std, generator=generator)
