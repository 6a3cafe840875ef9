"""Mean and variance of rows as PyTorch computes them on a GPU. On a CPU, PyTorch's float32 errors would be smaller."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_ops.distributions import few_bits
from reference_ops.op import Arrange, Tensors

THREADS = 128  # number of threads of a block, each of which updates its own moments, element by element
SMALLEST_EPS, LARGEST_EPS = -5.0, -3.0  # powers of ten; PyTorch's default is the smallest


def moments_as_on_a_gpu(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and the variance of each row in float32, by Welford's updates and merges of pairs."""
    count, mean, squares = (torch.zeros(len(rows), THREADS) for _ in range(3))
    for part in rows.split(THREADS, 1):
        width = part.shape[1]  # of the last part, which may be smaller than the others
        before = mean[:, :width]
        off, seen = part - before, count[:, :width] + 1
        after = before + off / seen
        count, mean, squares = (
            new if width == THREADS else torch.cat([new, old[:, width:]], 1)  # not in place, for the sake of autograd
            for new, old in ((seen, count), (after, mean), (squares[:, :width] + off * (part - after), squares))
        )
    while mean.shape[1] > 1:
        (count, others), (mean, other_means), (squares, other_squares) = (
            one.chunk(2, 1) for one in (count, mean, squares)
        )
        off, total = other_means - mean, count + others
        share = others / total.clamp(min=1)
        mean = mean + off * share
        squares, count = squares + other_squares + off * off * count * share, total
    return mean, squares / count


def constant_sets(name: str, kept: int, save: Callable[..., None], groups: str = "") -> Mapping[str, Arrange]:
    """Return an arrangement in which a quarter of the sets that share statistics are constant, half of these zero.

    Padding and dead channels are such sets. They have no variance, but gradients. The first dims up to `kept` count the
    sets, or the second dim alone if `kept` is 0; with `groups`, the size of the second is this parameter. `save`
    computes what the forward saved. A single set stays as it is, because the gradient of its weight would be zero.
    """

    def arrange(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
        x = inputs[name]
        sets = x.view(len(x), known[groups], -1) if groups else x.view(*x.shape[:kept or 2], -1)
        size = sets.shape[:kept] if kept else (1, sets.shape[1])
        count = size.numel() if isinstance(size, torch.Size) else size[1]
        order = torch.randperm(count, generator=generator, device=x.device)
        rank = order.view(*size, *[1] * (sets.ndim - len(size)))
        values = few_bits(torch.empty_like(rank, dtype=x.dtype).normal_(generator=generator))
        chosen = rank < min(max(1, count // 4), count - 1)
        sets.copy_(torch.where(chosen, torch.where(rank % 2 == 0, 0, values), sets))
        save(inputs, generator)

    return {f"constant_sets_in_{name}": arrange}


def drawn_eps(generator: torch.Generator) -> float:
    """Return the eps of a forward, which its backward is not told: it follows from the seed.

    A backward that computes rstd again, with the usual eps, would otherwise be right.
    """
    return float(10 ** random.Random(generator.initial_seed()).uniform(SMALLEST_EPS, LARGEST_EPS))
