"""Places of NaN and infinities: in a few elements, in some rows, and in one of several tensors alone."""

import hashlib
import math
import random
from collections.abc import Sequence

import torch

FEW_NAN, SHARE_OF_NAN = 2, 64
SHARE_AT_THE_END = 0.5  # share of rows in which a value that is not finite is at the last place
FEW_ROWS = 2  # number of rows up to which the last row may have the value at another place than the last
SEEDS_ALIKE = 1024  # number of consecutive seeds that begin with the same tensor; see `stand_alone`
OTHER_SIGN = 4  # seeds whose difference is this draw infinities of the other sign; see `_in_turn`
SHARE_NOT_FINITE = 0.25  # share of the rows, or of the elements of a vector, with a value that is not finite
# Up to this many rows, places of special values are drawn on the host: on a GPU, each small operation takes longer
# than drawing all of them. Transfers of so few numbers do not wait for the GPU.
MOST_ON_HOST = 4096


def sprinkle(tensor: torch.Tensor, value: float, generator: torch.Generator) -> None:
    """Set a few elements of a tensor, or one in 64 of a vector, to NaN or an infinity, with alternating signs.

    Two elements of a tensor always have both signs.
    """
    flat = tensor.view(-1)
    count = FEW_NAN if tensor.ndim > 1 else 1 + len(flat) // SHARE_OF_NAN
    places = torch.randint(len(flat), (count,), generator=generator, device=flat.device)
    places[1:2] = (places[:1] + 1 + places[1:2] % max(1, len(flat) - 1)) % len(flat)  # never at one place: both signs
    flat[places[2::2]], flat[places[3::2]] = value, -value
    flat[places[:1]], flat[places[1:2]] = value, -value


def stand_alone(tensors: Sequence[torch.Tensor], value: float, generator: torch.Generator) -> None:
    """Put the value into each of these tensors in one of the last rows, where the other tensors have finite numbers.

    A kernel that loses the value in one tensor would otherwise be right because of another tensor. If there are no more
    rows than tensors, this is done for half of all seeds. The value is at the last place of the last row, and of all
    these rows if there are many. With few rows, it is at the last place for about half of the seeds.
    """
    count, rows, seed = len(tensors), len(tensors[0]), generator.initial_seed()
    if rows <= count and seed % SEEDS_ALIKE < SEEDS_ALIKE // 2:
        return
    chance = random.Random(seed)
    for back in range(min(count, rows)):
        at_the_end = (rows > FEW_ROWS or seed % 2) if back == 0 else rows >= 2 * count
        for index, tensor in enumerate(tensors):
            row = tensor[rows - 1 - back].reshape(-1)
            row.copy_((row.float() if row.element_size() == 1 else row).nan_to_num(1.0, 1.0, 1.0))
            if (seed // SEEDS_ALIKE + back) % count == index:
                last = row.numel() - 1
                place = last if at_the_end or chance.random() < SHARE_AT_THE_END else chance.randint(0, last)
                row[place : place + 1] = math.copysign(value, chance.random() - 0.5)


def for_rows(count: int, generator: torch.Generator) -> torch.Generator:
    """Return a generator for one number per row: if there are few rows, one on the host that follows from this one."""
    if count > MOST_ON_HOST or generator.device.type == "cpu":
        return generator
    state = generator.get_state().numpy().tobytes()  # a GPU's generator keeps it on the host, with its progress
    return torch.Generator().manual_seed(int.from_bytes(hashlib.blake2b(state, digest_size=7).digest()))


def _in_turn(count: int, value: float, seed: int, generator: torch.Generator) -> torch.Tensor:
    """Return the value for every other row of the first dim, and its negative for the other rows.

    The seed chooses the sign in a single row, so that two draws have both signs.
    """
    rows = torch.arange(count, device=generator.device)
    first = torch.randint(2, (1,), generator=generator, device=generator.device)
    if count == 1:
        first = torch.full_like(first, seed // OTHER_SIGN)
    return torch.where((rows + first) % 2 > 0, value, -value)


def put(rows: torch.Tensor, chosen: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> None:
    """Write one value to a place of each chosen row."""
    chosen, at, values = (one.to(rows.device, non_blocking=True) for one in (chosen, at, values))
    rows.scatter_(1, at, torch.where(chosen, values.to(rows.dtype), rows.gather(1, at)))


def scatter(tensor: torch.Tensor, value: float, generator: torch.Generator) -> None:
    """Write the value, or its negative, to random places of at least two rows of the first dim.

    In about half of these rows, it is the last place, which kernels may treat differently. The last row is among these
    rows, except in half of the draws of a few rows: it has the value in every tensor, so that one tensor hides the
    others. In half of those draws, it has the value at the first place, from which a running result must pass the value
    on to the end.
    """
    rows = tensor.view(len(tensor) if tensor.ndim else 1, -1)
    count, last, seed, own = len(rows), rows.shape[1] - 1, generator.initial_seed(), for_rows(len(rows), generator)
    values = _in_turn(count, value, seed, own)
    chosen = some_rows(count, own)
    places = torch.randint(rows.shape[1], (count, 1), generator=own, device=own.device)
    places[torch.rand((count, 1), generator=own, device=own.device) < SHARE_AT_THE_END] = last
    if count > FEW_ROWS or seed % 2:
        places[-1], chosen[-1] = last, True
    elif seed % 4:
        places[-1], chosen[-1] = 0, True
    put(rows, chosen, places, values.reshape(-1, 1))


def some_rows(count: int, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    chosen = torch.empty((count, 1), dtype=torch.bool, device=device).bernoulli_(SHARE_NOT_FINITE, generator=generator)
    one = torch.randint(max(1, count - 1), (1,), generator=generator, device=device)
    chosen[one] = chosen[(one + 1) % count] = True  # neighbours: in one of them, infinities are negative
    return chosen
