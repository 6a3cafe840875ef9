/*---
op = "l2_norm_backward"
note = "a group of threads per row, from 8 to 1024; the widest accesses the row allows, several loads in flight before the first is used"
specialize = ["cols", "vec", "threads", "groups", "pieces", "chunks"]
require = ["threads * groups <= 1024", "pieces * max(1, vec * itemsize(x) // 4) * threads * groups <= 32768"]

[knobs]
ROW_LOADS = [2, 1, 4, 8]
HELD = [4, 2, 8]
BLOCK = [128, 256, 512]

[let]
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, cols % 2)) + 2 * (1 - min(1, cols % 4)) + 4 * (1 - min(1, cols % 8)))"
loads = "min(16, ROW_LOADS * full // vec)"
need = "ceil_div(cols, vec * loads)"
lanes = "8 + 8 * min(1, (need - 1) // 8) + 16 * min(1, (need - 1) // 16)"
threads = "min(1024, lanes * ceil_div(need, 32))"
groups = "max(1, BLOCK // threads)"
all = "ceil_div(cols, threads * vec)"
pieces = "min(all, max(loads, min(16, HELD * full // vec)))"
chunks = "ceil_div(all, pieces)"

[[launch]]
entry = "scale_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["grad_out", "x", "out", "grad_x", "rows"]
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
        if (inside && at < cols) to[i] = *reinterpret_cast<const Pack<T>*>(row + at);
        else to[i] = Pack<T>{};
    }
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    *reinterpret_cast<Pack<T>*>(to) = result;
}

extern "C" __global__ void __launch_bounds__(threads * groups)
scale_rows(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const out_t* __restrict__ out,
           grad_x_t* __restrict__ grad_x, int rows) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    const float norm = inside ? float(out[row]) : 0.0f;
    const float scale = norm == 0.0f ? 0.0f : float(grad_out[row]) / norm;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Pack<x_t> held[pieces];
        fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= cols) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) result[e] = float(held[i].at[e]) * scale;
            store(grad_x + row * cols + at, result);
        }
    }
}
