import itertools
import math
import mmap
import random

import torch
from each import each

from evolve.devices.emulated.device import fenced
from evolve.evaluation.buffers import (
    FENCED_BYTES,
    GAP_BYTES,
    LEAST_ALIGNMENT,
    POISONS,
    SPARE_BYTES,
    Arena,
    Buffer,
    Layout,
    damaged,
    is_poison,
    unwritten,
)

LAYOUT = {"x": ((3, 5), torch.float32), "out": ((7,), torch.bfloat16), "index": ((2,), torch.int64)}


def test_buffers_have_the_requested_shapes_and_do_not_overlap() -> None:
    buffers = Arena("cpu").poisoned(LAYOUT, POISONS[0], random.Random(1))
    spans = sorted((b.tensor.data_ptr(), b.tensor.data_ptr() + b.tensor.nbytes) for b in buffers.values())
    assert {name: (tuple(b.tensor.shape), b.tensor.dtype) for name, b in buffers.items()} == LAYOUT
    assert all(end + GAP_BYTES < start for (_, end), (start, _) in itertools.pairwise(spans))


def test_buffers_are_aligned_to_16_bytes_and_not_always_to_more() -> None:
    starts = [
        buffer.tensor.data_ptr()
        for seed in range(20)
        for buffer in Arena("cpu").poisoned(LAYOUT, POISONS[0], random.Random(seed)).values()
    ]
    assert all(start % 16 == 0 for start in starts)
    assert any(start % 32 for start in starts)


@each({f"poison {poison:#x}": poison for poison in POISONS})
def test_every_byte_starts_as_poison(poison: int) -> None:
    buffers = Arena("cpu").poisoned(LAYOUT, poison, random.Random(1))
    assert not bool(damaged(buffers.values()))
    assert all(int(is_poison(b.tensor, poison).sum()) == b.tensor.numel() for b in buffers.values())


def read_as_numbers(poison: int) -> list[float]:
    raw = torch.full((8,), poison, dtype=torch.uint8)
    return [float(raw.view(dtype)[0]) for dtype in (torch.float32, torch.float16, torch.bfloat16)]


@each({f"poison {poison:#x}": poison for poison in POISONS[:2]})
def test_two_kinds_of_poison_read_as_nan_or_huge_numbers(poison: int) -> None:
    assert all(math.isnan(value) or value > 1e4 for value in read_as_numbers(poison))


def test_one_kind_of_poison_looks_like_a_result() -> None:
    assert all(0.5 < value < 2 for value in read_as_numbers(POISONS[2]))


WRITES = ((-1, "before"), (-GAP_BYTES, "before"), (0, "behind"), (900, "behind"))


@each({f"{name} at {offset}": (name, offset, side) for name in LAYOUT for offset, side in WRITES})
def test_a_write_outside_a_buffer_is_found_and_located(name: str, offset: int, side: str) -> None:
    buffer = Arena("cpu").poisoned(LAYOUT, POISONS[0], random.Random(4))[name]
    zone = buffer.before if side == "before" else buffer.behind
    zone[offset] = 7
    assert bool(damaged([buffer]))
    distance = -offset if side == "before" else offset + 1
    assert f"the nearest {distance} bytes {side} it" in buffer.damage()


def test_a_new_layout_overwrites_everything_from_an_earlier_one() -> None:
    arena = Arena("cpu")
    for buffer in arena.poisoned(LAYOUT, POISONS[0], random.Random(1)).values():
        buffer.tensor.fill_(1)
    again = arena.poisoned(LAYOUT, POISONS[1], random.Random(2))
    assert not bool(damaged(again.values()))
    assert all(int(is_poison(b.tensor, POISONS[1]).sum()) == b.tensor.numel() for b in again.values())


@each({f"poison {poison:#x}": poison for poison in POISONS})
def test_a_write_past_all_buffers_or_to_an_unused_one_is_found(poison: int) -> None:
    arena = Arena("cpu")
    *buffers, unused = arena.poisoned(LAYOUT, poison, random.Random(4)).values()
    assert not bool(arena.strayed([unused]))
    unused.tensor.view(-1)[-1] = 5
    assert bool(arena.strayed([unused]))
    assert not bool(arena.strayed())
    end = max(buffer.behind.data_ptr() + len(buffer.behind) for buffer in (*buffers, unused))
    memory = arena._memory
    memory[end - memory.data_ptr() + SPARE_BYTES - 600] = 7
    assert bool(arena.strayed())


def test_a_single_element_of_a_strided_tensor_can_be_tested_for_poison() -> None:
    assert not is_poison(torch.full((8,), 2.0)[3::7], POISONS[0]).any()


def test_an_element_counts_as_written_if_the_right_result_equals_the_poison() -> None:
    right = torch.tensor([0x7E, 0x7E, 5, 6], dtype=torch.uint8).view(torch.float16)
    assert unwritten(torch.full((4,), 0x7E, dtype=torch.uint8).view(torch.float16), right, 0x7E) == 1


def test_bytes_that_equal_the_poison_by_chance_were_written() -> None:
    right = torch.zeros(1024, dtype=torch.int8)
    wrong = torch.arange(1024).to(torch.int8)  # contains each value four times
    assert unwritten(wrong, right, 0x7E) == 0
    assert unwritten(torch.full((1024,), 0x7E, dtype=torch.int8), right, 0x7E) == 1024


def at_fences(names: set[str], layout: Layout = LAYOUT) -> dict[str, Buffer]:
    return Arena("cpu", fenced).beside_fences(layout, names, POISONS[1], random.Random(1))


def test_buffers_beside_fences_end_less_than_16_bytes_before_a_fence() -> None:
    buffers = at_fences({"x", "index"})
    assert {name: (tuple(b.tensor.shape), b.tensor.dtype) for name, b in buffers.items()} == LAYOUT
    for name in ("x", "index"):
        end = buffers[name].tensor.data_ptr() + buffers[name].tensor.nbytes
        assert end + len(buffers[name].behind) == -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        assert len(buffers[name].behind) < LEAST_ALIGNMENT
        assert buffers[name].tensor.data_ptr() % LEAST_ALIGNMENT == 0


def test_a_write_before_a_buffer_beside_a_fence_is_found() -> None:
    buffers = at_fences({"x"})
    assert not bool(damaged(buffers.values()))
    buffers["x"].before[-1] += 1
    assert "1 bytes before it" in buffers["x"].damage()


def test_two_layouts_of_one_arena_may_differ_in_size() -> None:
    arena = Arena("cpu", fenced)
    for rows in (3, 3000, 5):
        layout = {"x": ((rows, 5), torch.float32), "out": ((rows,), torch.float32)}
        x = arena.beside_fences(layout, {"x"}, POISONS[1], random.Random(1))["x"].tensor
        assert x.shape == (rows, 5)
        assert bool(is_poison(x, POISONS[1]).all())


def test_a_large_workload_and_a_device_without_fences_use_ordinary_buffers() -> None:
    large = {"x": ((FENCED_BYTES,), torch.uint8), "out": ((1,), torch.uint8)}
    assert len(at_fences({"x"}, large)["x"].behind) >= GAP_BYTES
    plain = Arena("cpu").beside_fences(LAYOUT, {"x"}, POISONS[1], random.Random(1))
    assert len(plain["x"].behind) >= GAP_BYTES
