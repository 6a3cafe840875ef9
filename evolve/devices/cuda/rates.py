"""Rates of a GPU, and the costs of a launch and of a grid barrier on it, measured once before its first evaluation."""

import ctypes
from collections.abc import Callable
from dataclasses import replace

import torch
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.api.driver import CUDADriverError

from archive.records import DeviceInfo
from evolve.devices.cuda import memory

COPY_BYTES = 2**31
MATRIX = 8192
REPEATS = 5
# the buffer's size as a fraction of the L2, so that it stays there, and the number of reads
L2_SHARE, L2_ROUNDS = 8, 128
VECTOR_BYTES = 16
THREADS = 256
LAUNCHES, BARRIERS = 64, 256
HEAD_START_CYCLES = 2_000_000  # about 1 ms, in which the host enqueues all launches
SOURCE = r"""
#define LOAD(value, index) \
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" \
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(buffer + ((index) & mask)))
#define ANY(value) (value.x | value.y | value.z | value.w)

// Reads `total` vectors from a buffer of mask + 1, round and round. It holds zeros, so nothing is ever written.
extern "C" __global__ void __launch_bounds__(256) read_l2(
    const uint4* buffer, unsigned mask, unsigned total, unsigned* found)
{
    unsigned all = 0, step = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    uint4 a, b, c, d;
    for (; i + 3 * step < total; i += 4 * step) {
        LOAD(a, i);
        LOAD(b, i + step);
        LOAD(c, i + 2 * step);
        LOAD(d, i + 3 * step);
        all |= ANY(a) | ANY(b) | ANY(c) | ANY(d);
    }
    for (; i < total; i += step) {
        LOAD(a, i);
        all |= ANY(a);
    }
    if (all) *found = all;
}

extern "C" __global__ void nothing() {}

// The counter must be 0 at first. The launch is cooperative, so all blocks are resident.
extern "C" __global__ void meet(unsigned* counter, int barriers)
{
    for (unsigned round = 1; round <= barriers; ++round) {
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(counter, 1);
            while (*(volatile unsigned*)counter < round * gridDim.x) {}
            __threadfence();
        }
        __syncthreads();
    }
}
"""


def measured(facts: DeviceInfo) -> DeviceInfo:
    """Return the device with its rates and costs."""
    tflops = matrix_tflops()  # measured first, because the other measurements raise the clocks
    return replace(
        facts,
        copy_gb_s=copy_gb_s(),
        tflops=tflops,
        l2_gb_s=l2_gb_s(facts),
        launch_us=launch_us(facts),
        grid_barrier_us=grid_barrier_us(facts),
    )


def kept(facts: DeviceInfo, known: DeviceInfo) -> DeviceInfo:
    """Return the device with the rates that another process has measured on it."""
    return replace(
        facts,
        copy_gb_s=known.copy_gb_s,
        tflops=known.tflops,
        l2_gb_s=known.l2_gb_s,
        launch_us=known.launch_us,
        grid_barrier_us=known.grid_barrier_us,
    )


def copy_gb_s() -> float:
    """Measure the rate of a device-to-device copy, in bytes read plus bytes written."""
    free, _ = torch.cuda.mem_get_info()
    nbytes = min(COPY_BYTES, free // 4)
    source = torch.zeros(nbytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return round(2 * nbytes / _best_seconds(lambda: target.copy_(source)) / 1e9, 1)


def matrix_tflops() -> tuple[tuple[str, float], ...]:
    """Measure matrix products on random data.

    TF32 is off for `float32`, as by default in PyTorch, and on for `tf32`.
    """
    rates = [("tf32", _tf32_tflops())]
    for dtype, size in ((torch.bfloat16, MATRIX), (torch.float16, MATRIX), (torch.float32, MATRIX // 4)):
        a = torch.randn(size, size, device="cuda").to(dtype)
        seconds = _best_seconds(lambda a=a: a @ a)  # type: ignore[misc]
        rates.append((str(dtype).removeprefix("torch."), round(2 * size**3 / seconds / 1e12, 1)))
    return tuple(rates)


def l2_gb_s(facts: DeviceInfo) -> float:
    """Measure how fast all multiprocessors together read from the L2, bypassing the L1; 0 if its size is unknown."""
    most = facts.l2_bytes // L2_SHARE // VECTOR_BYTES
    if not most:
        return 0.0
    vectors = 1 << most.bit_length() - 1  # a power of two
    buffer = torch.zeros(vectors * VECTOR_BYTES, dtype=torch.uint8, device="cuda")
    found = torch.zeros(1, dtype=torch.int32, device="cuda")
    read = memory.function(SOURCE, "read_l2", facts.arch)
    blocks = facts.sms * driver.occupancyMaxActiveBlocksPerMultiprocessor(read.ptr, THREADS, 0)

    def seconds(rounds: int) -> float:
        values = (_pointer(buffer), ctypes.c_uint32(vectors - 1), ctypes.c_uint32(vectors * rounds), _pointer(found))
        return _best_seconds(lambda: memory.launch(read, blocks, THREADS, values))

    # The difference excludes the launch, and the first round, which may read from memory.
    spent = seconds(1 + L2_ROUNDS) - seconds(1)
    return round(vectors * VECTOR_BYTES * L2_ROUNDS / spent / 1e9, 1) if spent > 0 else 0.0


def launch_us(facts: DeviceInfo) -> float:
    """Measure the time that a launch of one idle block per multiprocessor adds to a stream that always has work."""
    nothing = memory.function(SOURCE, "nothing", facts.arch)

    def launches(count: int) -> None:
        for _ in range(count):
            memory.launch(nothing, facts.sms, THREADS, ())

    return _each_us(launches, LAUNCHES)


def grid_barrier_us(facts: DeviceInfo) -> float:
    """Measure a barrier of a grid with one block on each multiprocessor. It uses a counter, as prompts describe."""
    meet = memory.function(SOURCE, "meet", facts.arch)
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")

    def barriers(count: int) -> None:
        counter.zero_()
        values = (_pointer(counter), ctypes.c_int32(count))
        memory.launch(meet, facts.sms, THREADS, values, cooperative=True)

    try:
        return _each_us(barriers, BARRIERS)
    except CUDADriverError:  # a GPU without cooperative launches
        return 0.0


def _each_us(repeat: Callable[[int], None], count: int) -> float:
    """Return the time per call of `count` further calls."""
    spent = _best_seconds(lambda: repeat(1 + count), HEAD_START_CYCLES)
    spent -= _best_seconds(lambda: repeat(1), HEAD_START_CYCLES)
    return round(max(0.0, spent) * 1e6 / count, 2)


def _pointer(tensor: torch.Tensor) -> ctypes.c_uint64:
    return ctypes.c_uint64(tensor.data_ptr())


def _tf32_tflops() -> float:
    a = torch.randn(MATRIX, MATRIX, device="cuda")
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return round(2 * MATRIX**3 / _best_seconds(lambda: a @ a) / 1e12, 1)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _best_seconds(call: Callable[[], object], head_start_cycles: int = 0) -> float:
    call()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if head_start_cycles:
            torch.cuda._sleep(head_start_cycles)  # noqa: SLF001 - PyTorch's own tests time with it
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return min(times)
