"""Arguments of a random call: tensors of any layout, sizes and options, drawn from one generator, and their copies."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The last layouts are supported by few kernels or none.
DTYPES = (*[torch.float32] * 8, *[torch.bfloat16] * 4, torch.float16, torch.float64)
RARELY = 24  # one tensor in this many is empty; one in this many has another dtype than the rest of its call
SIZES = (1, 2, 3, 5, 8, 16, 17, 33)


@dataclass(frozen=True)
class Drawn:
    """The arguments of one call."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


def call(*arguments: Any, **named: Any) -> Drawn:
    return Drawn(arguments, named)


@dataclass
class Draw:
    """A source of random arguments."""

    rng: random.Random
    dtype: torch.dtype

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        """Return a tensor with any layout in memory."""
        other = self.dtype if self.rng.randrange(RARELY) else self.rng.choice(DTYPES)
        x = torch.empty(shape).uniform_(low, high, generator=self._generator()).to(dtype or other)
        return self._strided(x, self.rng.randrange(10))

    def integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self._generator())

    def distinct(self, *shape: int) -> Tensor:
        """Return a tensor of different numbers, so that positions are unique."""
        count = 1
        for size in shape:
            count *= size
        order = torch.randperm(count, generator=self._generator())
        numbers = (order.float() - count / 2).to(self.dtype if count <= 256 else torch.float32)
        return self._strided(numbers.view(shape), self.rng.randrange(1, 10))

    def shape(self, least: int = 1, most: int = 4) -> list[int]:
        rank = self.rng.randint(least, most)
        shape = [self.rng.choice(SIZES if rank < 3 else SIZES[:5]) for _ in range(rank)]
        if rank and not self.rng.randrange(RARELY):
            shape[self.rng.randrange(rank)] = 0
        return shape

    def dim(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def _strided(self, x: Tensor, kind: int) -> Tensor:
        """Return a tensor in one of several layouts. In the first, elements share memory."""
        if not x.dim() or not x.numel():
            return x
        dim = self.rng.randrange(x.dim())
        size: int = x.shape[dim]
        order = self.rng.sample(range(x.dim()), x.dim())
        ways: list[Callable[[], Tensor]] = [
            lambda: x.narrow(dim, 0, 1).expand(x.shape),
            lambda: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),  # begins at an odd address
            lambda: torch.cat([x, x])[x.shape[0] :],
            lambda: x.repeat_interleave(2, dim).unflatten(dim, (size, 2)).select(dim + 1, 1),
            lambda: x.transpose(0, dim).contiguous().transpose(0, dim),
            lambda: x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() > 2 else x,  # has its channels last
            lambda: x.permute(order).contiguous().permute(sorted(range(x.dim()), key=order.__getitem__)),
        ]
        return ways[kind]() if kind < len(ways) else x

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.rng.randrange(2**31))


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors(one)


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments in which each tensor is replaced by another one."""
    if isinstance(value, Tensor):
        return function(value)
    return type(value)(mapped(one, function) for one in value) if isinstance(value, tuple | list) else value


def changed(drawn: Drawn, function: Callable[[Tensor], Tensor]) -> Drawn:
    named = {name: mapped(value, function) for name, value in drawn.named.items()}
    return Drawn(mapped(drawn.arguments, function), named)


def learning(drawn: Drawn, rng: random.Random | None = None) -> Drawn:
    """Return the same call with floating-point arguments that require gradients, with the same strides.

    With a source of random numbers, one argument in four does not require gradients.
    """

    def asks(x: Tensor) -> Tensor:
        return x.detach().requires_grad_(x.is_floating_point() and not (rng and not rng.randrange(4)))

    return changed(drawn, asks)


def copied(drawn: Drawn) -> Drawn:
    """Return the same call with copies of the tensors that have the same layout in memory."""
    return changed(drawn, lambda x: placed(x, x.device))


def erased(x: Tensor) -> Tensor:
    """Overwrite a tensor's memory with zeros; several elements may share an address."""
    torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage()).zero_()
    return x


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a tensor on a device, with the same strides and offset."""
    whole = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())
    return whole.to(device, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())


def overwritten(ours: list[Tensor], theirs: list[Tensor], arguments: list[Tensor]) -> None:
    """Overwrite results in place, except those that are a view of an argument with PyTorch, too."""
    places = {x.untyped_storage().data_ptr() for x in arguments}
    for out, exact in zip(ours, theirs, strict=True):
        if exact.untyped_storage().data_ptr() not in places:
            with suppress(RuntimeError):  # elements of some results share an address
                out.zero_()


def emptied(first: Tensor, x: Tensor) -> Tensor:
    """Return the first tensor without rows, and other arguments unchanged."""
    return x[:0] if x is first else x
