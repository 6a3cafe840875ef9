"""GPU memory between runs: overwrites free and shared memory, flushes the L2, compares device variables."""

import ctypes
import secrets
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from cupy.cuda import nvrtc, runtime
from cupy.cuda.function import Module
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.api.driver import CUDADriverError

from evolve.devices.cuda.program import current_stream, loaded
from evolve.devices.object_file import Symbol

FLUSH_BYTES = 2**28  # several times the size of any current GPU's L2 cache
THREADS, VECTOR_BYTES = 1024, 16
BLOCKS_PER_SM = 2  # one block fills an SM; the second one reaches SMs that the first wave missed
CANNOT_CHANGE = 1  # the error cudaErrorInvalidValue
LIMIT_BYTES = 2**16  # size of the buffer for printed text, and of the heap, which no kernel may use
NOT_SUPPORTED = 801  # the error of cuCtxResetPersistingL2Cache on GPUs before compute capability 8.0
SOURCE = r"""
#if __CUDA_ARCH__ >= 800
#define POLICY(name) \
    unsigned long long policy; \
    asm("createpolicy.fractional.L2::" name ".b64 %0, 1.0;" : "=l"(policy))
#define LOAD(value, address) \
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" \
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "l"(address), "l"(policy))
#else
#define POLICY(name)
#define LOAD(value, address) value = *(address)
#endif
#define READ_ALL(name) { \
    POLICY(name); \
    uint4 a, b, c, d; \
    for (; i + 3 * step < vectors; i += 4 * step) { \
        LOAD(a, buffer + i); \
        LOAD(b, buffer + i + step); \
        LOAD(c, buffer + i + 2 * step); \
        LOAD(d, buffer + i + 3 * step); \
        found |= ANY(a) | ANY(b) | ANY(c) | ANY(d); \
    } \
    for (; i < vectors; i += step) { \
        LOAD(a, buffer + i); \
        found |= ANY(a); \
    } \
}
#define ANY(value) (value.x | value.y | value.z | value.w)

// The buffer holds zeros. What is found is written back so that the compiler cannot leave out the reading.
extern "C" __global__ void __launch_bounds__(1024) clean(
    unsigned pattern, unsigned shared_vectors, uint4* buffer, unsigned long long vectors, int eviction)
{
    extern __shared__ uint4 shared[];
    unsigned first = (unsigned)__cvta_generic_to_shared(shared);
    for (unsigned i = threadIdx.x; i < shared_vectors; i += blockDim.x)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(first + 16 * i), "r"(pattern) : "memory");
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
    unsigned found = 0;
    if (eviction == 1) READ_ALL("evict_last")
    else if (eviction == 2) READ_ALL("evict_first")
    else READ_ALL("evict_normal")
    if (found) buffer->x = found;
}
"""
# Headers define hundreds of variables, so the GPU compares all of them at once, with one block each.
COMPARE_SOURCE = r"""
struct Variable { unsigned char* now; unsigned char* loaded; unsigned long long bytes; };
extern "C" __global__ void compare(const Variable* variables, unsigned char* changed, int first)
{
    Variable variable = variables[blockIdx.x];
    for (unsigned long long i = threadIdx.x; i < variable.bytes; i += blockDim.x) {
        if (first) variable.loaded[i] = variable.now[i];
        else if (variable.loaded[i] != variable.now[i]) changed[blockIdx.x] = 1;
    }
}
"""
COMPARE_THREADS = 64


class Eviction(IntEnum):
    """Eviction priority of the lines that the flush brings into the L2."""

    NORMAL = 0
    LAST = 1
    FIRST = 2


class Cleaner:
    """Overwrites shared memory and flushes the L2 with a kernel of the evaluator."""

    def __init__(self, arch: str, sms: int, shared_bytes: int) -> None:
        self._function = function(SOURCE, "clean", arch)
        driver.funcSetAttribute(
            self._function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
        )
        self._blocks, self._shared_bytes = BLOCKS_PER_SM * sms, shared_bytes
        self._buffer = torch.zeros(0, dtype=torch.uint8, device="cuda")

    def poison_shared(self) -> None:
        """Fill the shared memory of every SM with garbage that differs from call to call."""
        self._launch(0, Eviction.NORMAL)

    def poison_shared_and_flush(self, eviction: Eviction = Eviction.NORMAL) -> None:
        """Fill shared memory with garbage, and the L2 with clean lines of an unused buffer."""
        if not len(self._buffer):
            self._buffer = torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self._launch(FLUSH_BYTES // VECTOR_BYTES, eviction)

    def _launch(self, vectors: int, eviction: Eviction) -> None:
        values = (
            ctypes.c_uint32(pattern()),
            ctypes.c_uint32(self._shared_bytes // VECTOR_BYTES),
            ctypes.c_uint64(self._buffer.data_ptr()),
            ctypes.c_uint64(vectors),
            ctypes.c_int32(eviction),
        )
        launch(self._function, self._blocks, THREADS, values, self._shared_bytes)


def pattern() -> int:
    """Return four random bytes that read as NaN in every float type, even where they fill only part of a value."""
    return 0x7FF07FF0 | secrets.randbits(32) & 0x800F800F or pattern()


class FreeMemory:
    """Free memory in the cache of PyTorch's allocator, which may hold results of the reference.

    Large blocks can be gigabytes, so they are overwritten again only after one of them was allocated or freed.
    """

    def __init__(self) -> None:
        self._erased: object = None

    def erase(self) -> None:
        torch.cuda.synchronize()  # kernels that used freed memory may still be running, even on other streams
        stream = current_stream()
        device = torch.cuda.current_device()
        pool = torch.cuda.memory_stats_as_nested_dict()["allocation"]["large_pool"]
        now = device, pool["allocated"], pool["freed"]
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != device or (segment["segment_type"] == "large" and now == self._erased):
                continue
            for block in segment["blocks"]:
                if block["state"] == "inactive":
                    runtime.memsetAsync(block["address"], 0xFF, block["size"], stream)
        self._erased = now


class VariableWatch:
    """Addresses of variables and copies of their values. It must be created before the first launch."""

    def __init__(self, module: Module, variables: tuple[Symbol, ...], arch: str) -> None:
        found = _placed(module, variables)
        self._names = [variable.name for variable, _ in found]
        self._copies = torch.empty(sum(v.size for v, _ in found), dtype=torch.uint8, device="cuda")
        rows, at = [], self._copies.data_ptr()
        for variable, address in found:
            rows.append([address, at, variable.size])
            at += variable.size
        self._table = torch.tensor(rows, dtype=torch.int64, device="cuda")
        self._changed = torch.zeros(len(rows), dtype=torch.uint8, device="cuda")
        self._compare = function(COMPARE_SOURCE, "compare", arch)
        self._launch(first=True)

    def changed(self) -> list[str]:
        """Return the names of the variables that have changed."""
        self._launch(first=False)
        return [name for name, changed in zip(self._names, self._changed.tolist(), strict=True) if changed]

    def _launch(self, *, first: bool) -> None:
        if not self._names:
            return
        pointers = (self._table, self._changed)
        values = (*(ctypes.c_uint64(tensor.data_ptr()) for tensor in pointers), ctypes.c_int32(first))
        launch(self._compare, len(self._names), COMPARE_THREADS, values)


def _placed(module: Module, variables: tuple[Symbol, ...]) -> list[tuple[Symbol, int]]:
    """Return each variable with its address.

    The driver does not find variables that the compiler has named, such as the text of a printf. Their addresses are
    computed from those of other variables in the section.
    """
    addresses = {variable: _address(module, variable) for variable in variables}
    begins = {_section(variable): address - variable.at for variable, address in addresses.items() if address}
    placed = ((v, address or v.at + begins.get(_section(v), -v.at)) for v, address in addresses.items())
    return [(variable, address) for variable, address in placed if address]


def _section(variable: Symbol) -> str:
    return variable.section.name if variable.section else ""


def _address(module: Module, variable: Symbol) -> int:
    try:
        address: int = module.get_global_var(variable.name)
    except CUDADriverError:
        return 0
    return address


def reset_persisting_lines() -> None:
    """Reset L2 lines that a kernel marked as persisting. This takes effect at once, not in stream order."""
    status = _driver().cuCtxResetPersistingL2Cache()
    if status != NOT_SUPPORTED:
        driver.check_status(status)


@cache
def bound_limits() -> None:
    """Limit printed text and the heap, once per process.

    The driver refuses the limit on text after a kernel that can print, such as one of PyTorch's that checks indices. A
    worker therefore sets the limits before any kernel runs.
    """
    try:
        runtime.deviceSetLimit(runtime.cudaLimitPrintfFifoSize, LIMIT_BYTES)
    except runtime.CUDARuntimeError as error:
        if error.status != CANNOT_CHANGE:
            raise
    runtime.deviceSetLimit(runtime.cudaLimitMallocHeapSize, LIMIT_BYTES)


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def function(source: str, name: str, arch: str) -> Any:
    """Return one of the evaluator's own kernels, compiled and loaded once per process."""
    return loaded(compiled(source, arch)).get_function(name)


def compiled(source: str, arch: str) -> bytes:
    program = nvrtc.createProgram(source, "own.cu", (), ())
    try:
        nvrtc.compileProgram(program, [f"-arch={arch}", "-std=c++17"])
        image: bytes = nvrtc.getCUBIN(program)
        return image + b"\0"  # CuPy drops the last byte of the image
    finally:
        nvrtc.destroyProgram(program)


def launch(
    function: Any, blocks: int, threads: int, values: tuple[Any, ...], shared: int = 0, *, cooperative: bool = False
) -> None:
    """Enqueue a function on PyTorch's current stream; `values` are ctypes values."""
    addresses = (ctypes.c_void_p * max(1, len(values)))(*map(ctypes.addressof, values))
    sizes = (blocks, 1, 1, threads, 1, 1, shared, current_stream())
    if cooperative:
        driver.launchCooperativeKernel(function.ptr, *sizes, ctypes.addressof(addresses))
    else:
        driver.launchKernel(function.ptr, *sizes, ctypes.addressof(addresses), 0)
