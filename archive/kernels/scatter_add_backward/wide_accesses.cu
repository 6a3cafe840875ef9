/*---
op = "scatter_add_backward"
note = "a group of threads per row of the result, from 8 to 1024; the widest accesses the row allows, all of a thread's loads in flight at once"
specialize = ["dim", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "pieces * max(1, vec * itemsize(grad_out) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [4, 2, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, dim % 2)) + 2 * (1 - min(1, dim % 4)) + 4 * (1 - min(1, dim % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(dim, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(dim, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"

[[launch]]
entry = "gather_rows"
grid = ["ceil_div(count, groups)"]
block = ["threads * groups"]
args = ["grad_out", "indices", "grad_src", "count"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

__device__ __forceinline__ int place(int chunk, int i) {
    return ((chunk * pieces + i) * threads + threadIdx.x % threads) * vec;
}

// What lies beyond the row is zero.
template <class T>
__device__ __forceinline__ void fetch(Pack<T> (&to)[pieces], const T* __restrict__ row, int chunk, bool inside) {
#pragma unroll
    for (int i = 0; i < pieces; ++i) {
        const int at = place(chunk, i);
        if (inside && at < dim) to[i] = *reinterpret_cast<const Pack<T>*>(row + at);
        else to[i] = Pack<T>{};
    }
}

extern "C" __global__ void __launch_bounds__(threads * groups)
gather_rows(const grad_out_t* __restrict__ grad_out, const long long* __restrict__ indices,
            grad_src_t* __restrict__ grad_src, int count) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < count;
    const grad_out_t* from = grad_out + (inside ? indices[row] : 0) * dim;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Pack<grad_out_t> held[pieces];
        fetch(held, from, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (inside && at < dim) *reinterpret_cast<Pack<grad_out_t>*>(grad_src + row * dim + at) = held[i];
        }
    }
}
