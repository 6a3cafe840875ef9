// Everything that CUDA declares for kernels without an #include, for the host's C++ compiler.
#pragma once
#include "../runtime/runtime.h"

// CUDA's own headers, as a host compiler includes them. The runtime's API is left out: kernels cannot use it.
#define __CUDA_RUNTIME_API_H__
#include "cuda_fp16.h"
#include "cuda_bf16.h"
#ifdef EVOLVE_FP8  // seldom needed, and a fifth of the compile time
#include "cuda_fp8.h"
#endif
#include "math_constants.h"

#undef __forceinline__
#undef __noinline__
#undef __align__
#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __launch_bounds__
#undef __grid_constant__
#undef __inline_hint__
#undef __builtin_align__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __builtin_align__(bytes) __attribute__((aligned(bytes)))
#define __device__
#define __host__
#define __global__
#define __constant__
#define __managed__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __inline_hint__ inline
// Thread-local even if one OS thread runs all blocks: this distinguishes shared memory from variables that keep state.
#define __shared__ static __thread
#ifndef __restrict__
#define __restrict__ __restrict
#endif

#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#define EVOLVE_EMULATED 1

using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
using intptr_t = long long;
using uintptr_t = unsigned long long;
using uint = unsigned int;
using ushort = unsigned short;
using uchar = unsigned char;
using ulong = unsigned long;
namespace std {
using ::size_t;
using ::ptrdiff_t;
using ::int8_t;
using ::uint8_t;
using ::int16_t;
using ::uint16_t;
using ::int32_t;
using ::uint32_t;
using ::int64_t;
using ::uint64_t;
using ::uintptr_t;
}  // namespace std

#include "constants.h"

extern EVOLVE_LOCAL const uint3 threadIdx, blockIdx;
extern EVOLVE_LOCAL const dim3 blockDim, gridDim;
constexpr int warpSize = 32;

// A list of pointers that is passed to a kernel by value.
template <class T, int N> struct List {
    T data[N];
    T operator[](int index) const { return data[index]; }
};

// A tensor map that is passed to a kernel by value; only the runtime reads its content.
struct alignas(64) CUtensorMap_st {
    unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;

#include "integers.h"
#include "maths.h"
#include "half_maths.h"
#include "memory.h"
#include "barriers.h"
#include "warp.h"
#include "atomics.h"
#include "ptx.h"
#include "entries.h"
