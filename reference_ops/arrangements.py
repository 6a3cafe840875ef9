"""Arrangements: extreme forms of masks, indices, lengths and orders, each of which every evaluation tests.

Random indices are spread evenly and random masks have no long runs. In practice, all indices may be the same, and a
mask may begin with thousands of hidden keys. An op's file names the arrangements of its inputs; see `Op.arranged`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from reference_ops.distributions import FARTHEST, fill
from reference_ops.op import ENDS_WITH_NAN, RUNS_OF_MINUS_INF, Arrange, Tensors
from reference_ops.special_values import sprinkle

ALL_LAST = "all_last"  # end of the name of an arrangement in which every index is the last one
FAINT_BITS, FAINT_BITS_IN_FLOAT16 = 20, 9  # a faint factor is scaled by 2**-20, a huge one by 2**20
WIDEST_BITS, WIDEST_BITS_IN_FLOAT16 = 14, 6  # range of scales along a sum of products: from 2**-14 to 2**14
UNUSED_RUN = 64  # length of the runs of unused elements
SHARE_OF_BLOCK = 3  # a block hides one key in three


def of_mask(name: str, *, hides: bool) -> Mapping[str, Arrange]:
    """Return masks by prefix, suffix and block, all and none.

    With `hides`, true hides an element; otherwise it keeps it.
    """

    def runs(begins: Callable[[torch.Tensor, int], torch.Tensor]) -> Arrange:
        def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
            mask = inputs[name]
            size = mask.shape[-1]
            at = torch.arange(size, device=mask.device)
            cut = _cuts(mask.shape[:-1], size, generator, mask.device).unsqueeze(-1)
            hidden = begins(at, size) if size < 2 else begins(at - cut, size)
            mask.copy_((hidden if hides else ~hidden).expand_as(mask))

        return arrange

    def alike(*, hidden: bool) -> Arrange:
        def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
            inputs[name].fill_(hidden == hides)

        return arrange

    return {
        f"{name}_of_prefix": runs(lambda beyond, _: beyond < 0),
        f"{name}_of_suffix": runs(lambda beyond, _: beyond >= 0),
        f"{name}_of_block": runs(lambda beyond, size: (beyond < 0) & (beyond >= -size // SHARE_OF_BLOCK)),
        f"{name}_hides_nothing": alike(hidden=False),
        f"{name}_hides_everything": alike(hidden=True),
    }


def _cuts(shape: tuple[int, ...], size: int, generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Return a place from 1 to the last in each row.

    In every other row it is the last place, so that a prefix leaves one element.
    """
    if size < 2:
        return torch.zeros(shape, dtype=torch.int64, device=device)
    cuts = torch.randint(1, size, (math.prod(shape),), generator=generator, device=device)
    cuts[::2] = size - 1
    return cuts.view(shape)


def of_indices(name: str, bound: str | Callable[[Tensors], int]) -> Mapping[str, Arrange]:
    """Return indices below `bound`, a size or parameter by name: all first, all last, one hub, sorted and reversed."""

    def limit(inputs: Tensors, known: Mapping[str, Any]) -> int:
        return int(known[bound]) if isinstance(bound, str) else bound(inputs)

    def first(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].zero_()

    def last(inputs: Tensors, _: torch.Generator, known: Mapping[str, Any]) -> None:
        inputs[name].fill_(limit(inputs, known) - 1)

    def hub(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
        """Set nine indices of ten to one index, and the others to any index."""
        indices = inputs[name]
        chosen = torch.randint(limit(inputs, known), (1,), generator=generator, device=indices.device)
        astray = torch.empty_like(indices, dtype=torch.bool).bernoulli_(0.1, generator=generator)
        indices.copy_(torch.where(astray, indices, chosen))

    def ascending(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].copy_(inputs[name].sort(-1).values)

    def descending(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].copy_(inputs[name].sort(-1, descending=True).values)

    return {
        f"{name}_all_first": first,
        f"{name}_{ALL_LAST}": last,
        f"{name}_one_hub": hub,
        f"{name}_ascending": ascending,
        f"{name}_descending": descending,
    }


def of_order(name: str) -> Mapping[str, Arrange]:
    """Return rows in ascending and in descending order, with the largest value last and first, and half in order."""

    def ordered(*, descending: bool) -> Arrange:
        def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
            inputs[name].copy_(inputs[name].sort(-1, descending=descending).values)

        return arrange

    def half(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        """Sort the first half of each row in ascending order, and the second half in descending order."""
        rows = inputs[name].view(-1, inputs[name].shape[-1])
        middle = rows.shape[1] // 2
        rows[:, :middle] = rows[:, :middle].sort(-1).values
        rows[:, middle:] = rows[:, middle:].sort(-1, descending=True).values

    return {
        f"{name}_ascending": ordered(descending=False),
        f"{name}_descending": ordered(descending=True),
        f"{name}_half_in_order": half,
    }


def of_permutation(name: str) -> Mapping[str, Arrange]:
    """Return permutations: those of `of_order`, and a permutation that reverses only the second half."""

    def half(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        size = inputs[name].shape[-1]
        at = torch.arange(size, device=inputs[name].device)
        inputs[name].copy_(torch.where(at < size // 2, at, size + size // 2 - 1 - at).expand_as(inputs[name]))

    return {**of_order(name), f"{name}_half_in_place": half}


def far_below(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which all numbers are far below zero. As rows of a sum, they would hide other rows."""

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        fill(inputs[name], "far_below", generator)

    return {f"{name}_far_below": arrange}


def many_nan(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which a quarter of all elements is NaN, for searches that find one of several NaN."""

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        chosen = torch.empty_like(inputs[name], dtype=torch.bool).bernoulli_(0.25, generator=generator)
        inputs[name].masked_fill_(chosen, math.nan)
        inputs[name].view(-1)[1::2].neg_()  # the sign bit of NaN has no meaning

    return {f"many_NaN_in_{name}": arrange}


def last_bits(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement of numbers that differ only in their last six bits, for searches that compare fewer."""

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        most = 1 + 2**6 * torch.finfo(inputs[name].dtype).eps
        inputs[name].uniform_(1, most, generator=generator)

    return {f"{name}_in_the_last_bits": arrange}


def runs_of_minus_inf(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which rows begin or end with runs of -inf that fill tiles, as padding does.

    A run is half of a row or more, but at least one number at the other end remains. Every row has a run, unless there
    is only one row.
    """

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        rows = inputs[name].view(-1, inputs[name].shape[-1])
        size = rows.shape[1]
        cuts = torch.randint(size // 2, max(size, 2), (len(rows), 1), generator=generator, device=rows.device)
        at = torch.arange(size, device=rows.device).expand_as(rows)
        first = int(generator.initial_seed() % 2)
        for turn, places in ((first, at), (1 - first, at.flip(-1))):
            rows[turn::2].masked_fill_(places[turn::2] < cuts[turn::2].clamp(max=size - 1), -math.inf)

    return {f"{name}_{RUNS_OF_MINUS_INF}": arrange}


def planes_of_minus_inf(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which every other plane after the first two dims, or the only plane, is entirely -inf.

    A single row of -inf fills no window of two dims, and two neighbouring rows of -inf are rare.
    """

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].flatten(0, 1)[::2] = -math.inf

    return {f"planes_of_minus_inf_in_{name}": arrange}


def sprinkled(name: str, share: float = 0.25, **values: float) -> Mapping[str, Arrange]:
    """Return arrangements in which a share of all elements has one value. Keywords name the arrangements."""

    def of(value: float) -> Arrange:
        def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
            chosen = torch.empty_like(inputs[name], dtype=torch.bool).bernoulli_(share, generator=generator)
            inputs[name].masked_fill_(chosen, value)

        return arrange

    return {f"{word}_in_{name}": of(value) for word, value in values.items()}


def mostly_zero(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which most elements are zero, as gradients behind a rectifier or dropout."""
    return sprinkled(name, 0.7, zeros=0.0)


def crowded(name: str, share: float = 0.25) -> Mapping[str, Arrange]:
    """Return an arrangement in which a share of all elements is NaN or infinite, so that most windows hold several."""

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        drawn = torch.empty(inputs[name].shape, device=generator.device).uniform_(generator=generator)
        for part, value in ((1, math.nan), (2 / 3, math.inf), (1 / 3, -math.inf)):
            inputs[name].masked_fill_((drawn < share * part).to(inputs[name].device), value)

    return {f"{name}_crowded_with_specials": arrange}


def far_from_zero(name: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which all numbers are equally far from zero, for variances that must not cancel."""

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        sign = 1 - 2 * torch.randint(2, (1,), generator=generator, device=generator.device)
        inputs[name].add_((FARTHEST * sign).to(inputs[name].device))

    return {f"{name}_far_from_zero": arrange}


def filled(**values: float) -> Arrange:
    """Return an arrangement in which each named tensor holds one value everywhere."""

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        for name, value in values.items():
            inputs[name].fill_(value)

    return arrange


def unused(*names: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which vectors are zero at the same places, as for parameters that are not in use.

    These are a quarter of all elements, half of them in runs.
    """

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        like = inputs[names[0]]
        runs = torch.rand(1 + len(like) // UNUSED_RUN, generator=generator, device=like.device)
        single = torch.rand(like.shape, generator=generator, device=like.device) < 1 / 8
        chosen = single | (runs < 1 / 8).repeat_interleave(UNUSED_RUN)[: len(like)]
        for name in names:
            inputs[name].masked_fill_(chosen, 0)

    return {"unused_elements": arrange}


def then(arrangements: Mapping[str, Arrange], save: Callable[[Tensors], None]) -> Mapping[str, Arrange]:
    """Return the arrangements for a backward: after each arrangement, `save` computes the forward's results."""

    def saved(arrange: Arrange) -> Arrange:
        def arranged(inputs: Tensors, generator: torch.Generator, known: Mapping[str, Any]) -> None:
            arrange(inputs, generator, known)
            save(inputs)

        return arranged

    return {name: saved(arrange) for name, arrange in arrangements.items()}


def nan_in(*names: str) -> Mapping[str, Arrange]:
    """Return arrangements with NaN in only one of these tensors, for inputs that the extremes leave normal."""

    def sprinkled(name: str) -> Arrange:
        def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
            sprinkle(inputs[name], math.nan, generator)

        return arrange

    return {f"NaN_in_{name}": sprinkled(name) for name in names}


def nan_at_the_end(*names: str) -> Mapping[str, Arrange]:
    """Return arrangements in which the very last element of one of these tensors is NaN, for sums over all elements."""

    def of(name: str) -> Arrange:
        def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
            inputs[name].view(-1)[-1:] = math.nan

        return arrange

    return {f"{name}_{ENDS_WITH_NAN}": of(name) for name in names}


def scaled(**factors: float) -> Mapping[str, Arrange]:
    """Return arrangements in which one of these tensors is scaled, as by a faint or negative weight of a loss."""

    def times(name: str, factor: float) -> Arrange:
        def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
            inputs[name].mul_(factor)

        return arrange

    return {f"{name}_scaled": times(name, factor) for name, factor in factors.items()}


def lowered(name: str, by: float = 24.0) -> Mapping[str, Arrange]:
    """Return an arrangement in which a tensor lies so far below zero that its exponentials are faint, but not zero."""

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        inputs[name].sub_(by)

    return {f"{name}_far_below_zero": arrange}


def opposed(**axes: int) -> Mapping[str, Arrange]:
    """Return an arrangement of two factors whose scales differ along the axis that is summed over, and cancel.

    The products are the same as without scales, except where float16 underflows. A kernel that gives each row one
    scale, as for fewer bits, loses most of the products.
    """
    (first, along), (second, across) = axes.items()

    def arrange(inputs: Tensors, generator: torch.Generator, _: Mapping[str, Any]) -> None:
        some, others = inputs[first].movedim(along, -1), inputs[second].movedim(across, -1)
        most = WIDEST_BITS_IN_FLOAT16 if some.dtype == torch.float16 else WIDEST_BITS
        bits = torch.randint(-most, most + 1, some.shape[-1:], generator=generator, device=some.device)
        some.copy_(torch.ldexp(some, bits))
        others.copy_(torch.ldexp(others, -bits))

    return {f"{first}_and_{second}_scaled_apart": arrange}


def faint_beside_huge(faint: str, huge: str) -> Mapping[str, Arrange]:
    """Return an arrangement in which one factor is faint and the other is huge, and their products are as usual.

    Without it, the products of faint weights may be lost without effect, such as those of a recurrent layer, whose
    states are at most 1.
    """

    def arrange(inputs: Tensors, _: torch.Generator, __: Mapping[str, Any]) -> None:
        bits = FAINT_BITS_IN_FLOAT16 if inputs[faint].dtype == torch.float16 else FAINT_BITS
        inputs[faint].mul_(2.0**-bits)
        inputs[huge].mul_(2.0**bits)

    return {f"{faint}_faint_and_{huge}_huge": arrange}
