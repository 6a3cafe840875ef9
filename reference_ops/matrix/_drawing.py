"""Operands of products, drawn as in models, and such that sums do not overflow float16."""

import math

import torch

WIDEST = 4.0  # largest float16 weight
DOWN = 2.0**-12  # a power of two keeps integers exact


def like_weights(weight: torch.Tensor) -> None:
    """Divide by about the square root of the number of terms, so that normal inputs give normal results."""
    if weight.dtype == torch.float16:
        weight.clamp_(-WIDEST, WIDEST)
    weight.mul_(2.0 ** -round(math.log2(max(weight.shape)) / 2))


def far_below_one(values: torch.Tensor) -> None:
    """Scale float16 operands down, because sums of products of large rows would overflow."""
    if values.dtype == torch.float16:
        values.mul_(DOWN)
