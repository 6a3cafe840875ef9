/*---
op = "max"
note = "a group of threads per row, from 8 to 1024; the widest loads the row allows, several of them in flight; a thread meets its columns in order, and of equal values the lower index wins among threads"
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
entry = "max_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["x", "values", "indices", "rows"]
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

struct Best {
    float value;
    int index;
};

// NaN is greater than every number.
__device__ __forceinline__ bool is_greater(float a, float b) { return !(a <= b) && b == b; }

// Of equal values the first.
__device__ __forceinline__ Best better(Best a, Best b) {
    return is_greater(b.value, a.value) || (!is_greater(a.value, b.value) && b.index < a.index) ? b : a;
}

template <int OF> __device__ __forceinline__ Best best_of(Best best) {
#pragma unroll
    for (int step = OF / 2; step > 0; step /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
        best = better(best, {value, __shfl_xor_sync(0xffffffffu, best.index, step)});
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(threads * groups)
max_rows(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int rows) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    const Best none = {-INFINITY, 0};  // in a row of nothing but -inf the first counts
    Best best = none;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        Pack<x_t> held[pieces];
        fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (at >= cols) continue;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float value = float(held[i].at[e]);
                if (is_greater(value, best.value)) best = {value, at + e};
            }
        }
    }
    best = best_of<LANES>(best);
    if constexpr (WARPS > 1) {
        __shared__ Best bests[groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
        if (lane == 0) bests[group][threadIdx.x % threads / 32] = best;
        __syncthreads();
        best = best_of<32>(lane < WARPS ? bests[group][lane] : none);
    }
    if (inside && threadIdx.x % threads == 0) {
        values[row] = x[row * cols + best.index];
        indices[row] = best.index;
    }
}
