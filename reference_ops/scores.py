"""Arrangements of scores, whose exponentials softmaxes and attention add up: far from zero, or some far ahead."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from reference_ops.op import LAST_AHEAD, Arrange, Tensors

# smallest distance of moved scores from zero, and the element of the keys that moves them
MOVED_SCORE, MOVED_KEY = 256.0, 16.0
# Exponentials of such distances are 6e-6 to 2e-9. Of the second kind, a single one does not change 1 in float32.
AHEAD, BELOW_FLOAT32 = (12.0, 20.0), (17.1, 17.5)
FARTHEST_AHEAD = 87.5  # an exponential within a factor of four of float32's largest number
SINK, AHEAD_OF_ALL, SINK_VALUE = 4.0, 17.25, 1 / 64  # score of the last key, distance of the others from it, values
OPPOSED, OPPOSED_IN_FLOAT16 = 2.0**15, 2.0**7  # products of such numbers are far from zero


def last_ahead(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement for softmaxes: the last number of each row is so far ahead that the others matter together.

    It is zero, so that the logarithm of its probability is exact to the last digits. If it came first, a sum in one
    thread would lose the others, one by one.
    """

    def arrange(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
        rows = inputs[name].view(-1, inputs[name].shape[-1])
        ahead = torch.empty_like(rows[:, :1]).uniform_(*AHEAD, generator=generator)
        ahead[::2].uniform_(*BELOW_FLOAT32, generator=generator)
        rows.normal_(std=1 / 32, generator=generator).sub_(ahead)
        rows[:, -1] = 0.0
        rows.div_(known.get("scale") or 1.0)

    return {f"{LAST_AHEAD}{name}": arrange}


def of_scores(queries: str, keys: str) -> Mapping[str, Arrange]:
    """Return arrangements of attention: all keys of a head equal and of the opposite sign, and scores far from zero.

    In the first arrangement, all scores are far below zero. For each query they are equal, and sums of integers, so
    that no rounding matters. In the second, the product of one dim moves the scores of every other query far below zero
    and the other scores far above, so that the weights do not change.
    """

    def opposed(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        every, asked = inputs[keys], inputs[queries]
        size = OPPOSED_IN_FLOAT16 if every.dtype == torch.float16 else OPPOSED
        every.copy_(every[..., :1, :].abs().round_().add_(1).expand_as(every))
        asked.abs_().round_().add_(1).mul_(-size)

    def moved(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        every, asked = inputs[keys], inputs[queries].view(-1, inputs[queries].shape[-1])
        every[..., 0] = MOVED_KEY
        # powers of two, which have few bits
        far = MOVED_SCORE / MOVED_KEY * 2.0 ** math.ceil(math.log2(asked.shape[1]) / 2)
        first = int(generator.initial_seed() % 2)
        asked[first::2, 0], asked[1 - first :: 2, 0] = far, -far

    return {f"{keys}_opposed": opposed, "scores_moved": moved}


def of_keys_ahead(queries: str, keys: str, values: str) -> Mapping[str, Arrange]:
    """Return arrangements of attention in which some keys are far ahead of the others, with the same score everywhere.

    In the first, the second half of the keys is ahead by almost as much as float32's exponential allows. In the second,
    the last key is ahead, like a token that takes the weight of queries without a match. Its values are small, so that
    what the other keys contribute together matters.
    """

    def scored(inputs: Tensors, ahead: float, others: float, first: int) -> None:
        """Give the keys from `first` the score `ahead`, and the others the score `others`."""
        every, asked = inputs[keys].zero_(), inputs[queries].zero_()
        asked[..., 0] = math.sqrt(asked.shape[-1])
        every[..., :first, 0], every[..., first:, 0] = others, ahead

    def half(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        scored(inputs, FARTHEST_AHEAD, 0.0, inputs[keys].shape[-2] // 2)

    def last(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        scored(inputs, SINK, SINK - AHEAD_OF_ALL, inputs[keys].shape[-2] - 1)
        inputs[values].abs_()[..., -1, :] = SINK_VALUE

    return {f"later_{keys}_ahead": half, f"last_{keys}_ahead": last}
