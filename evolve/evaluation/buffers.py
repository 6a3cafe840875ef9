"""Buffers of a kernel's run, with red zones around them, and a bound on the memory that an evaluation needs."""

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from evolve.devices.device import Fenced
from reference_ops.op import Op, Workload

LEAST_ALIGNMENT, USUAL_ALIGNMENT = 16, 512  # what kernels may rely on, and what PyTorch's allocator gives
GAP_BYTES = 4096  # minimum before and after every tensor
# The first two read as NaN or as a huge number in every float type, so that a stray read shows in the output. The
# others are an ordinary number and zero, as memory holds in real use: a kernel must not take them for its results.
POISONS = (0xFF, 0x7E, 0x3F, 0x00)
BY_CHANCE = 1 / 32  # share of one-byte elements that may equal the poison by chance
NOISE_BYTES = 2**14
SPARE_BYTES, GPU_SPARE_BYTES = 2**16, 2**26  # after all buffers: a write with a wrong stride is found there
FENCED_BYTES = 2**24  # size of the largest workload whose inputs end at inaccessible memory
OWN_SEGMENT_BYTES = 2**25  # PyTorch's allocator does not share a segment of this size
Layout = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


@dataclass(frozen=True)
class Buffer:
    """A tensor between two red zones, which hold random bytes."""

    tensor: torch.Tensor
    before: torch.Tensor
    behind: torch.Tensor
    noise: torch.Tensor

    @cached_property
    def zones(self) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
        """Each red zone with the bytes that it must hold."""
        return tuple((zone, self.noise[: len(zone)]) for zone in (self.before, self.behind))

    def damage(self) -> str:
        """Return where the kernel wrote outside the tensor, or an empty string."""
        for side, (zone, noise) in zip(("before", "behind"), self.zones, strict=True):
            wrong = (zone != noise).nonzero().flatten()
            if len(wrong):
                nearest = len(zone) - int(wrong[-1]) if side == "before" else int(wrong[0]) + 1
                return f"{len(wrong)} bytes {side} the buffer were overwritten, the nearest {nearest} bytes {side} it"
        return ""


class Arena:
    """One allocation for all tensors of a run, laid out anew each time. It never holds results of a reference.

    `fenced`, which a device may offer, allocates memory after which any access faults.
    """

    def __init__(self, device: str, fenced: Fenced | None = None) -> None:
        self._fenced, self._fences = fenced, dict[int, torch.Tensor]()
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._noise = torch.empty(NOISE_BYTES, dtype=torch.uint8, device=device)
        self._spare, self._poison = self._memory, POISONS[0]

    def poisoned(
        self, layout: Layout, poison: int, rng: random.Random, alignment: int = LEAST_ALIGNMENT
    ) -> dict[str, Buffer]:
        """Return a buffer for each tensor. Offsets are random but aligned, and the order is random."""
        sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in layout.items()}
        names = rng.sample(list(layout), len(layout))
        starts, at = {}, 0
        for name in names:
            at += -at % alignment + 2 * GAP_BYTES + alignment * rng.randrange(GAP_BYTES // alignment)
            starts[name], at = at, at + sizes[name]
        end_of_all, spare = at + 2 * GAP_BYTES, GPU_SPARE_BYTES if self._memory.is_cuda else SPARE_BYTES
        end_of_all += -end_of_all % USUAL_ALIGNMENT
        whole = self._of(end_of_all + spare)[: end_of_all + spare]
        memory, self._spare, self._poison = whole[:end_of_all], whole[end_of_all:], poison
        whole.fill_(poison)
        noise = self._noise.random_(0, 256, generator=torch.Generator(memory.device).manual_seed(rng.getrandbits(32)))
        ends = [0, *(starts[name] + sizes[name] for name in names)]
        buffers = {}
        for index, name in enumerate(names):
            start, end = starts[name], ends[index + 1]
            follows = starts[names[index + 1]] if index + 1 < len(names) else len(memory)
            shape, dtype = layout[name]
            # Each of two neighbours gets half of the gap between them as its zone.
            before = memory[(ends[index] + start) // 2 : start]
            behind = memory[end : (end + follows) // 2 if index + 1 < len(names) else follows]
            for zone in (before, behind):
                zone.copy_(noise[: len(zone)])
            buffers[name] = Buffer(memory[start:end].view(dtype).reshape(shape), before, behind, noise)
        return buffers

    def beside_fences(self, layout: Layout, names: Iterable[str], poison: int, rng: random.Random) -> dict[str, Buffer]:
        """Return buffers as `poisoned` does, but where the device can, a read beyond one of these tensors faults."""
        names = set(names)
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in layout.values()]
        if not self._fenced or sum(sizes) > FENCED_BYTES:
            return self.poisoned(layout, poison, rng)
        buffers = self.poisoned({name: held for name, held in layout.items() if name not in names}, poison, rng)
        for number, name in enumerate(name for name in layout if name in names):
            if (memory := self._fence(number, sizes[list(layout).index(name)])) is None:
                return self.poisoned(layout, poison, rng)
            buffers[name] = self._at_the_end(memory, *layout[name], poison)
        return buffers

    def _fence(self, number: int, nbytes: int) -> torch.Tensor | None:
        """Return memory that ends at a fence, for the tensor of this number the same memory as before."""
        held, needed = self._fences.get(number), nbytes + GAP_BYTES + LEAST_ALIGNMENT
        if (held is None or len(held) < needed) and self._fenced:
            held = self._fenced(needed)
            if held is not None:
                self._fences[number] = held
        return held

    def _at_the_end(self, memory: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, poison: int) -> Buffer:
        nbytes = math.prod(shape) * dtype.itemsize
        # the start is aligned, so the end may be a few bytes before the fence
        end = len(memory) - -nbytes % LEAST_ALIGNMENT
        start = end - nbytes
        before, behind = memory[start - GAP_BYTES : start], memory[end:]
        memory[start:end].fill_(poison)
        for zone in (before, behind):
            zone.copy_(self._noise[: len(zone)])
        return Buffer(memory[start:end].view(dtype).reshape(shape), before, behind, self._noise)

    def release(self) -> None:
        """Free the memory. The next run allocates it again."""
        on_gpu = self._memory.is_cuda
        self._memory = self._spare = torch.empty(0, dtype=torch.uint8, device=self._memory.device)
        if on_gpu:
            torch.cuda.empty_cache()  # returns it in one piece, so that memory is not fragmented

    def strayed(self, unused: Iterable[Buffer] = ()) -> torch.Tensor:
        """Return, as a tensor, whether an unused buffer or the memory after all buffers has changed."""
        found = [bits(values) for values in (self._spare, *(buffer.tensor for buffer in unused))]
        changed = [(words != _word(self._poison, words.dtype)).any() for words in found]
        return torch.stack(changed).any() if len(changed) > 1 else changed[0]

    def _of(self, nbytes: int) -> torch.Tensor:
        if len(self._memory) < nbytes:
            device = self._memory.device
            self._memory = torch.empty(0, dtype=torch.uint8, device=device)  # free the old memory before allocating
            if self._memory.is_cuda:
                torch.cuda.empty_cache()  # take it from the driver, not from memory that PyTorch has used
                nbytes = max(nbytes, OWN_SEGMENT_BYTES)
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
        return self._memory


def damaged(buffers: Iterable[Buffer]) -> torch.Tensor:
    """Return, as a tensor, whether any zone was written to. The caller can fetch it together with other results."""
    zones = [both for buffer in buffers for both in buffer.zones]
    return (torch.cat([zone for zone, _ in zones]) != torch.cat([noise for _, noise in zones])).any()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes as integers of the greatest width that fits its size and alignment."""
    flat = tensor.view(-1) if tensor.is_contiguous() and tensor.numel() > 1 else _raw(tensor)
    nbytes = flat.numel() * flat.element_size()
    width = next(width for width in (8, 4, 2, 1) if nbytes % width == 0 and flat.data_ptr() % width == 0)
    return flat.view({8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[width])


def _word(poison: int, dtype: torch.dtype) -> int:
    """Return the integer of this dtype whose bytes are all poison."""
    return int.from_bytes(bytes([poison]) * dtype.itemsize, "little", signed=dtype.is_signed)


def is_poison(values: torch.Tensor, poison: int) -> torch.Tensor:
    """Return for each element whether it holds only poison."""
    return (_raw(values).reshape(-1, values.element_size()) == poison).all(dim=1)


def unwritten(values: torch.Tensor, right: torch.Tensor, poison: int) -> int:
    """Return the number of elements that still hold poison where the right result differs.

    Elements of one byte may hold any value by chance, so only a large share of them is evidence.
    """
    if values.shape != right.shape:
        return 0
    count = int((is_poison(values, poison) & ~is_poison(right, poison)).sum())
    by_chance = values.numel() * BY_CHANCE if values.element_size() == 1 else 0
    return count if count > by_chance else 0


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes. A single element counts as contiguous, but keeps the stride of its former tensor."""
    flat = tensor.contiguous().reshape(-1)
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


HUGE_BYTES = 2**31  # workloads with more bytes are judged with the least memory
# Bytes held per byte of inputs and outputs: buffers, copies, and all of these in float64.
INPUTS_HELD, OUTPUTS_HELD = 7, 16
# the same for a huge workload: its buffers, an output, and the reference in float64
LEAST_INPUTS_HELD, LEAST_OUTPUTS_HELD = 3, 6


def is_huge(op: Op, workload: Workload) -> bool:
    """Return whether the buffers of this workload must be freed before its outputs are judged."""
    return op.nbytes(workload) > HUGE_BYTES


def bytes_held(op: Op, workload: Workload) -> int:
    """Return the largest amount of memory that an evaluation may need.

    It is needed when an output's errors must be explained. Errors of huge outputs are explained only if memory is left.
    """
    huge = is_huge(op, workload)
    of_inputs, of_outputs = (LEAST_INPUTS_HELD, LEAST_OUTPUTS_HELD) if huge else (INPUTS_HELD, OUTPUTS_HELD)
    return of_inputs * op.bytes_of(op.inputs, workload) + of_outputs * op.bytes_of(op.outputs, workload)
