"""Mean and variance of rows as PyTorch computes them on a GPU. On a CPU, PyTorch's float32 errors would be smaller."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_ops.distributions import few_bits
from reference_ops.op import Arrange, Tensors

Sets = Callable[[torch.Tensor, Mapping[str, Any]], torch.Tensor]
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


def constant_sets(
    name: str, save: Callable[[Tensors, torch.Generator], None], sets: Sets = lambda x, _: x
) -> Mapping[str, Arrange]:
    """Return an arrangement in which a quarter of the sets that share statistics are constant, half of these zero.

    Padding and dead channels are such sets: they have no variance, but gradients. `sets` returns a view of the tensor
    with sets in its first dim, and `save` computes the forward's results. A single set does not become constant.
    """

    def arrange(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
        every = sets(inputs[name], known)
        count = len(every)
        rank = torch.randperm(count, generator=generator, device=every.device).view(-1, *[1] * (every.ndim - 1))
        values = few_bits(torch.empty_like(rank, dtype=every.dtype).normal_(generator=generator))
        constant = values.masked_fill_(rank % 2 == 0, 0)
        every.copy_(torch.where(rank < min(max(1, count // 4), count - 1), constant, every))
        save(inputs, generator)

    return {f"constant_sets_in_{name}": arrange}


def drawn_eps(generator: torch.Generator) -> float:
    """Return the eps of a forward, which its backward is not told: it follows from the seed.

    A backward that computes rstd again, with the usual eps, would otherwise be right.
    """
    return float(10 ** random.Random(generator.initial_seed()).uniform(SMALLEST_EPS, LARGEST_EPS))
