/*---
op = "sort_backward"
note = "a cluster of blocks per long row, whose shared memory together holds the row: each block reads a part of the gradients and indices, several loads in flight, and puts each gradient into the block that has its place; each block then writes its part by the widest stores"
when = "cols * itemsize(grad_values) > 32768 and cols * itemsize(grad_values) <= 860000 and cols < 1073741824 and rows < 268435456"
specialize = ["cols", "vec", "wide", "part"]
require = ["part * itemsize(grad_values) <= 225000"]

[knobs]
SIZE = [4, 8]
THREADS = [512, 256, 1024]
LOADS = [8, 4]

[let]
full = "16 // itemsize(grad_values)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
wide = "min(2, vec)"
part = "ceil_div(ceil_div(cols, SIZE), full) * full"

[[launch]]
entry = "put_back"
grid = ["rows * SIZE"]
block = ["THREADS"]
shared = "part * itemsize(grad_values)"
args = ["grad_values", "indices", "grad_x"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern __shared__ uint4 memory[];
template <int BYTES> struct Raw;
template <> struct Raw<2> { using type = unsigned short; };
template <> struct Raw<4> { using type = unsigned; };
template <> struct Raw<8> { using type = uint2; };
template <> struct Raw<16> { using type = uint4; };
using Value = Raw<sizeof(grad_values_t)>::type;
using Values = Raw<sizeof(Value) * wide>::type;
using Places = Raw<8 * wide>::type;

// Into the block of the cluster that has this place of the row.
__device__ __forceinline__ void put(unsigned base, unsigned place, Value value) {
    const unsigned rank = place / part, own = base + (place - rank * part) * unsigned(sizeof(Value));
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
    if constexpr (sizeof(Value) == 2) {
        asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(there), "h"((unsigned short)value) : "memory");
    } else {
        asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"((unsigned)value) : "memory");
    }
}

__device__ __forceinline__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __cluster_dims__(SIZE, 1, 1) __launch_bounds__(THREADS)
put_back(const grad_values_t* __restrict__ grad_values, const long long* __restrict__ indices,
         grad_x_t* __restrict__ grad_x) {
    const int rank = blockIdx.x % SIZE, first = rank * part, end = min(cols, first + part);
    const long long row = (long long)(blockIdx.x / SIZE) * cols;
    const Value* values = reinterpret_cast<const Value*>(grad_values) + row;
    const unsigned base = (unsigned)__cvta_generic_to_shared(memory);
    meet();  // the other blocks run, so that their shared memory may be written
    for (int begin = first + threadIdx.x * wide; begin < end; begin += THREADS * wide * LOADS) {
        union {
            Places raw;
            uint2 at[wide];
        } places[LOADS];
        union {
            Values raw;
            Value at[wide];
        } grads[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * THREADS * wide;
            if (at >= end) continue;
            places[l].raw = __ldcs(reinterpret_cast<const Places*>(indices + row + at));
            grads[l].raw = __ldcs(reinterpret_cast<const Values*>(values + at));
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * THREADS * wide >= end) continue;
            // The upper halves of the indices are zero; were they not used, each lower half would be loaded by itself.
#pragma unroll
            for (int e = 0; e < wide; ++e) put(base, places[l].at[e].x | places[l].at[e].y, grads[l].at[e]);
        }
    }
    meet();
    using Word = Raw<sizeof(Value) * vec>::type;
    for (int at = threadIdx.x * vec; first + at < end; at += THREADS * vec) {
        *reinterpret_cast<Word*>(grad_x + row + first + at) =
            *reinterpret_cast<const Word*>(reinterpret_cast<const Value*>(memory) + at);
    }
}
