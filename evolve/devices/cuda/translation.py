"""Translation of a bound kernel for NVRTC: the source and options, and a check of the plan against the cubin.

Exported packages contain a copy of this module.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from archive.kernel import Bound, BoundLaunch, BoundMap, Pointer, Pointers, Value
from archive.records import Outcome
from evolve.devices.cuda.cubin import EntryPoint
from evolve.devices.device import RejectedError
from evolve.devices.prelude import numbered_source, specialisation

PRELUDE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
typedef long long intptr_t;
typedef unsigned int uint;
#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)  // unlike an intrinsic, a constant expression
#endif
#ifndef NAN
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#endif
#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623157e+308
#define DBL_EPSILON 2.2204460492503131e-16
#endif
#ifndef INT_MAX
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ull
#endif
#ifndef INT8_MAX
#define INT8_MAX 127
#define INT8_MIN (-128)
#define UINT8_MAX 255
#define INT16_MAX 32767
#define INT16_MIN (-32768)
#define UINT16_MAX 65535
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define UINT32_MAX UINT_MAX
#define INT64_MAX LLONG_MAX
#define INT64_MIN LLONG_MIN
#define UINT64_MAX ULLONG_MAX
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define M_SQRT2 1.41421356237309504880
#define M_2_SQRTPI 1.12837916709551257390
#define M_LOG2E 1.44269504088896340736
#define M_LN2 0.69314718055994530942
#endif
// The driver finds this variable by name. The compiler's own variables have no name and lie beside it.
extern "C" __device__ unsigned int evolve_anchor = 0x65766f6c;
template <class T, int N>
struct List {
    T data[N];
    __device__ __forceinline__ T operator[](int i) const { return data[i]; }
};
struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
"""
# Kernels often include these headers; the prelude or NVRTC itself provides their declarations.
EMPTY_HEADERS = (
    "math.h", "cmath", "stdint.h", "cstdint", "float.h", "cfloat", "limits.h", "climits", "limits", "stddef.h",
    "cstddef", "stdio.h", "cstdio", "assert.h", "cassert", "cuda.h", "cuda_runtime.h", "cuda_runtime_api.h",
    "device_launch_parameters.h", "vector_types.h", "vector_functions.h", "type_traits", "algorithm", "utility",
)  # fmt: skip
POINTER_BYTES, MAP_BYTES = 8, 128


def source(bound: Bound) -> str:
    """Return the text that NVRTC compiles. Workloads that share all specialised values share it."""
    return PRELUDE + specialisation(bound) + numbered_source(bound)


def options(arch: str, folders: Iterable[Path]) -> list[str]:
    """Return the options on which the machine code depends. NVRTC looks for headers in these folders."""
    # warnings about a limit that headers redefine, and about an unused specialised value
    quiet = "-diag-suppress=47,177"
    return [f"-arch={arch}", "-std=c++17", "-default-device", quiet, *(f"-I{folder}" for folder in folders)]


def check_launches(bound: Bound, entries: Mapping[str, EntryPoint]) -> None:
    """Raise a RejectedError if a launch of the plan does not fit the cubin's entries."""
    for launch in bound.launches:
        _check_launch(launch, entries, bound.kernel.source)


def _check_launch(launch: BoundLaunch, entries: Mapping[str, EntryPoint], source: str) -> None:
    where = f"launch {launch.index}"
    if launch.entry not in entries:
        found = ", ".join(sorted(entries)) or "none"
        raise RejectedError(
            Outcome.MALFORMED,
            f'{where}: the source has no extern "C" __global__ function `{launch.entry}` (compiled entries: {found})',
        )
    entry = entries[launch.entry]
    if len(launch.args) != len(entry.parameter_bytes):
        message = f"{where}: `{entry.name}` takes {len(entry.parameter_bytes)} arguments, the plan gives"
        raise RejectedError(Outcome.MALFORMED, f"{message} {len(launch.args)}")
    for position, (value, size) in enumerate(zip(launch.args, entry.parameter_bytes, strict=True)):
        if fault := _misfit(value, size, _unsigned(launch.entry, source)) or _copied_map(value, source):
            raise RejectedError(Outcome.MALFORMED, f"{where}: argument {position} of `{entry.name}`: {fault}")
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    if entry.max_threads and threads > entry.max_threads:
        raise RejectedError(
            Outcome.ILLEGAL, f"{where}: {threads} threads, __launch_bounds__ allows {entry.max_threads}"
        )


@lru_cache(maxsize=16)
def _unsigned(entry: str, source: str) -> bool:
    """Return whether the entry has an unsigned parameter. The cubin contains sizes only, so the source is searched."""
    signature = re.search(rf"\b{entry}\s*\(([^)]*)", source)
    return signature is None or re.search(r"\b(?:unsigned|uint32_t|uint)\b", signature[1]) is not None


def _copied_map(value: Value, source: str) -> str:
    """Return a fault if a tensor map is not a `__grid_constant__`: its address would be that of a local copy."""
    if isinstance(value, BoundMap) and "__grid_constant__" not in source:
        return f"the plan gives the tensor map `{value.name}`, but the function takes a copy of it: {_taken(value)}"
    return ""


def _taken(value: BoundMap) -> str:
    return f"take it as `const __grid_constant__ CUtensorMap {value.name}`"


def _misfit(value: Value, size: int, unsigned: bool) -> str:
    given, wanted = _given(value)
    if size not in wanted:
        return f"the plan gives {given}, the function takes {size} bytes"
    if isinstance(value, int) and size == 4 and not -(2**31) <= value < 2 ** (32 if unsigned else 31):
        return f"{value} does not fit in 4 bytes: make the parameter a long long"
    return ""


def _given(value: Value) -> tuple[str, tuple[int, ...]]:
    """Return the kind of an argument, and the number of bytes that it may have."""
    match value:
        case Pointer(name=name):
            return f"the pointer `{name}`", (POINTER_BYTES,)
        case Pointers(names=names):
            return f"a list of {len(names)} pointers", (POINTER_BYTES * len(names),)
        case BoundMap(name=name):
            return f"the tensor map `{name}` ({_taken(value)})", (MAP_BYTES,)
        case float():
            return "a number", (4, 8)
    return "an integer, which has 4 or 8 bytes", (4, 8)
