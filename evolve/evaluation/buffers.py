"""Buffers that show what a kernel did to them: poisoned, and with a guarded zone on both sides."""

import math
import random
from dataclasses import dataclass

import torch

GUARD_BYTES = 4096
ALIGNMENT = 16
# Both read as NaN or as a huge number in every float type, so that a stray read shows in the output.
POISONS = (0xFF, 0x7E)


@dataclass(frozen=True)
class Buffer:
    """A tensor somewhere inside a larger allocation whose other bytes are all `guard`."""

    tensor: torch.Tensor
    allocation: torch.Tensor
    start: int
    guard: int

    def damage(self) -> str:
        """Where the kernel wrote outside the tensor, or nothing."""
        end = self.start + self.tensor.nbytes
        for side, zone in (("before", self.allocation[: self.start]), ("behind", self.allocation[end:])):
            wrong = zone != self.guard
            if bool(wrong.any()):
                positions = wrong.nonzero().flatten()
                nearest = self.start - int(positions[-1]) if side == "before" else int(positions[0]) + 1
                return (
                    f"{len(positions)} bytes {side} the buffer were overwritten, the nearest {nearest} bytes {side} it"
                )
        return ""

    def poisoned(self) -> torch.Tensor:
        """Which elements still hold nothing but poison."""
        raw = self.tensor.reshape(-1).view(torch.uint8).reshape(-1, self.tensor.element_size())
        return (raw == self.guard).all(dim=1)


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: str, poison: int, rng: random.Random) -> Buffer:
    """A buffer full of poison, aligned to 16 bytes but otherwise at an arbitrary offset."""
    nbytes = math.prod(shape) * dtype.itemsize
    start = GUARD_BYTES + ALIGNMENT * rng.randrange(GUARD_BYTES // ALIGNMENT)
    allocation = torch.full((start + nbytes + GUARD_BYTES,), poison, dtype=torch.uint8, device=device)
    tensor = allocation[start : start + nbytes].view(dtype).reshape(shape)
    return Buffer(tensor, allocation, start, poison)


def filled(values: torch.Tensor, poison: int, rng: random.Random) -> Buffer:
    """A buffer that holds a copy of these values."""
    buffer = poisoned(tuple(values.shape), values.dtype, str(values.device), poison, rng)
    buffer.tensor.copy_(values)
    return buffer
