"""Random indices with repeats, as in texts and graphs."""

import math

import torch

STEPS = 64


def draw_repeats(indices: torch.Tensor, count: int, generator: torch.Generator) -> None:
    """Draw indices below `count`: the lowest occurs about sqrt(count) / 2 times as often as the middle ones."""
    chance = torch.empty(indices.shape, device=indices.device).uniform_(generator=generator)
    indices.copy_(chance.square_().mul_(count)).clamp_(max=count - 1)


def most_repeats(drawn: int, count: int) -> int:
    """Estimate how often the lowest index occurs."""
    return math.ceil(drawn / math.sqrt(count))


def different(drawn: int, count: int) -> int:
    """Estimate how many different indices occur: the sum of their probabilities of occurring, as an integral."""
    roots = [(step + 0.5) / STEPS for step in range(STEPS)]
    share = sum(2 * root * (1 - math.exp(-drawn / (2 * count * root))) for root in roots) / STEPS
    return max(1, int(count * share))
