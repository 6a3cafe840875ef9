/*---
op = "gemv"
note = "a warp makes a few rows of the matrix, by 16-byte loads of which several rows' are in flight at once, each added to a sum of its own; x comes from the caches"
specialize = ["k", "vec"]
require = ["WARPS <= 16"]

[knobs]
WARPS = [8, 4, 16]
OF_WEIGHT = [2, 1, 4]
LOADS = [4, 2, 8]

[let]
vec = "min(16 // itemsize(a), 1 + (1 - min(1, k % 2)) + 2 * (1 - min(1, k % 4)) + 4 * (1 - min(1, k % 8)))"

[[launch]]
entry = "multiply"
grid = ["ceil_div(n, WARPS * OF_WEIGHT)"]
block = ["32 * WARPS"]
args = ["a", "x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

template <class T> __device__ __forceinline__ void widen(float (&to)[vec], const Pack<T>& from) {
#pragma unroll
    for (int e = 0; e < vec; ++e) to[e] = float(from.at[e]);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
multiply(const a_t* __restrict__ matrix, const x_t* __restrict__ x, out_t* __restrict__ out, int n) {
    const int lane = threadIdx.x % 32, first = (blockIdx.x * WARPS + threadIdx.x / 32) * OF_WEIGHT;
    float sums[LOADS][OF_WEIGHT] = {};  // short sums are more exact than long ones
    for (int begin = lane * vec; begin < k; begin += 32 * vec * LOADS) {
        Pack<a_t> held[LOADS][OF_WEIGHT];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * 32 * vec;
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) {  // beyond the last row the last again, for a sum that is not stored
                if (at < k) held[l][j] = *reinterpret_cast<const Pack<a_t>*>(matrix + (long long)min(first + j, n - 1) * k + at);
                else held[l][j] = Pack<a_t>{};
            }
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            const int at = begin + l * 32 * vec;
            if (at >= k) continue;
            float values[OF_WEIGHT][vec];
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) widen(values[j], held[l][j]);
            const Pack<x_t> other = *reinterpret_cast<const Pack<x_t>*>(x + at);
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) {
                float some = 0.0f;
#pragma unroll
                for (int e = 0; e < vec; ++e) some = fmaf(values[j][e], float(other.at[e]), some);
                sums[l][j] += some;
            }
        }
    }
#pragma unroll
    for (int half = LOADS / 2; half > 0; half /= 2) {
#pragma unroll
        for (int l = 0; l < half; ++l) {
#pragma unroll
            for (int j = 0; j < OF_WEIGHT; ++j) sums[l][j] += sums[l + half][j];
        }
    }
#pragma unroll
    for (int j = 0; j < OF_WEIGHT; ++j) {
        float sum = sums[0][j];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (lane == 0 && first + j < n) out[first + j] = out_t(sum);
    }
}
