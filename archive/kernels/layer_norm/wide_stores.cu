/*---
op = "layer_norm"
note = "a group of threads per row, from 8 to 1024; 16-byte loads or as wide as the row allows, the row stays in registers through mean, variance and result; longer rows are read again in pieces; results are stored in accesses as wide as the loads"
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
entry = "layer_norm_rows"
grid = ["ceil_div(rows, groups)"]
block = ["threads * groups"]
args = ["x", "weight", "bias", "out", "mean", "rstd", "rows", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int LANES = threads < 32 ? threads : 32, WARPS = (threads + 31) / 32;

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

// In one access: the compiler may split the store of a struct.
template <class T> __device__ __forceinline__ void write(void* to, const T& from) {
    if constexpr (sizeof(T) == 16) __stcs(static_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&from));
    else if constexpr (sizeof(T) == 8) __stcs(static_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&from));
    else *static_cast<T*>(to) = from;
}

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
    write(to, result);
}

// The sum over the threads of a row, in each of them; each USE has its own shared memory.
template <int USE, class T> __device__ __forceinline__ T sum_of_row(T sum) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if constexpr (WARPS > 1) {
        __shared__ T sums[groups][WARPS];
        const int lane = threadIdx.x % 32, group = threadIdx.x / threads;
        if (lane == 0) sums[group][threadIdx.x % threads / 32] = sum;
        __syncthreads();
        sum = lane < WARPS ? sums[group][lane] : T(0);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(threads * groups)
layer_norm_rows(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
                out_t* __restrict__ out, float* __restrict__ mean, float* __restrict__ rstd, int rows, float eps) {
    const long long row = (long long)blockIdx.x * groups + threadIdx.x / threads;
    const bool inside = row < rows;
    Pack<x_t> held[pieces];
    float sum = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) sum += float(held[i].at[e]);
        }
    }
    const float rough = sum_of_row<0>(sum) / cols;
    float rest = 0.0f, squares = 0.0f;
#pragma unroll 1
    for (int chunk = chunks - 1; chunk >= 0; --chunk) {
        if (chunk < chunks - 1) fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            if (place(chunk, i) >= cols) continue;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float off = float(held[i].at[e]) - rough;
                rest += off;
                squares = fmaf(off, off, squares);
            }
        }
    }
    rest = sum_of_row<1>(rest) / cols;  // where a row lies far from zero, as much as a result's last digits
    const float variance = sum_of_row<2>(squares) / cols - rest * rest;
    const float scale = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);  // unlike fmaxf, this keeps NaN
    if (inside && threadIdx.x % threads == 0) mean[row] = rough, rstd[row] = scale;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        if (chunk > 0) fetch(held, x + row * cols, chunk, inside);
#pragma unroll
        for (int i = 0; i < pieces; ++i) {
            const int at = place(chunk, i);
            if (!inside || at >= cols) continue;
            const Pack<weight_t> gain = *reinterpret_cast<const Pack<weight_t>*>(weight + at);
            const Pack<bias_t> shift = *reinterpret_cast<const Pack<bias_t>*>(bias + at);
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                result[e] = (float(held[i].at[e]) - rough - rest) * scale * float(gain.at[e]) + float(shift.at[e]);
            }
            store(out + row * cols + at, result);
        }
    }
}
