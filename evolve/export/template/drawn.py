"""Arguments of a random call: tensors of any layout, sizes and options, drawn from one generator, and their copies."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float32, torch.bfloat16)
SIZES = (1, 2, 3, 5, 8, 16, 17, 33)


@dataclass(frozen=True)
class Drawn:
    """The arguments of one call."""

    arguments: tuple[Any, ...]
    named: dict[str, Any]


@dataclass
class Draw:
    """A source of random arguments."""

    rng: random.Random
    dtype: torch.dtype

    def tensor(self, *shape: int, dtype: torch.dtype | None = None, low: float = -2.0, high: float = 2.0) -> Tensor:
        """Return a tensor that may lie in memory in any way."""
        x = torch.empty(shape).uniform_(low, high, generator=self._generator()).to(dtype or self.dtype)
        return self._strided(x)

    def integers(self, most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=self._generator())

    def distinct(self, *shape: int) -> Tensor:
        """Return different numbers, so that positions are determined."""
        count = 1
        for size in shape:
            count *= size
        order = torch.randperm(count, generator=self._generator())
        return self._strided((order.float() - count / 2).to(self.dtype if count <= 256 else torch.float32).view(shape))

    def shape(self, least: int = 1, most: int = 4) -> list[int]:
        rank = self.rng.randint(least, most)
        return [self.rng.choice(SIZES if rank < 3 else SIZES[:5]) for _ in range(rank)]

    def dim(self, rank: int) -> int:
        return self.rng.randrange(-rank, rank)

    def choice(self, options: Sequence[Any]) -> Any:
        return self.rng.choice(options)

    def _strided(self, x: Tensor) -> Tensor:
        kind = self.rng.randrange(6)
        if kind == 0 and x.dim() > 1:
            return x.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == 1 and x.dim():
            return torch.stack([x, x], -1)[..., 0]
        if kind == 2 and x.dim():
            return torch.cat([x, x], 0)[x.shape[0] :]
        if kind == 3:
            return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape)
        return x

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
    """Return arguments with another tensor in place of each."""
    if isinstance(value, Tensor):
        return function(value)
    return type(value)(mapped(one, function) for one in value) if isinstance(value, tuple | list) else value


def changed(drawn: Drawn, function: Callable[[Tensor], Tensor]) -> Drawn:
    named = {name: mapped(value, function) for name, value in drawn.named.items()}
    return Drawn(mapped(drawn.arguments, function), named)


def learning(drawn: Drawn) -> Drawn:
    """Return the same call with floating-point arguments that ask for gradients, with the same strides."""
    return changed(drawn, lambda x: x.detach().requires_grad_(x.is_floating_point()))


def copied(drawn: Drawn) -> Drawn:
    return changed(drawn, lambda x: x.clone(memory_format=torch.preserve_format))


def erased(x: Tensor) -> Tensor:
    """Overwrite a tensor's memory with zeros; several elements may share a place."""
    torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage()).zero_()
    return x


def placed(x: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device as it lies in memory: with its strides and its offset."""
    whole = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return whole.to(device, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())
