/*---
op = "quantise_rows_fp8"
note = "a group of threads per row, from 8 to 1024; the widest loads the row allows, the row stays in registers while its largest magnitude is found, and is written as wide; longer rows are read again in pieces"
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
entry = "quantise_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["x", "quantised", "scales", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

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

constexpr float LARGEST = 448.0f, LEAST = 1e-10f;

template <int OF> __device__ __forceinline__ float most_of(float most) {
#pragma unroll
    for (int step = OF / 2; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    return most;
}

extern "C" __global__ void __launch_bounds__(threads * groups)
quantise_rows(const x_t* __restrict__ x, quantised_t* __restrict__ quantised, float* __restrict__ scales, int rows) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    Pack<x_t> held[pieces];
    float most = LEAST;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) most = fmaxf(most, fabsf(float(held[i].at[e])));
        }
    }
    most = most_of<LANES>(most);
    if constexpr (WARPS > 1) {
        __shared__ float mosts[groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
        if (lane == 0) mosts[group][threadIdx.x % threads / 32] = most;
        __syncthreads();
        most = most_of<32>(lane < WARPS ? mosts[group][lane] : LEAST);
    }
    const float factor = __fdiv_rn(LARGEST, most);
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= cols) continue;
            Pack<quantised_t> result;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float value = fminf(fmaxf(float(held[i].at[e]) * factor, -LARGEST), LARGEST);
                result.at[e] = quantised_t(value);
            }
            *reinterpret_cast<Pack<quantised_t>*>(quantised + row * cols + at) = result;
        }
    }
    if (inside && threadIdx.x % threads == 0) scales[row] = __fdiv_rn(most, LARGEST);
}
