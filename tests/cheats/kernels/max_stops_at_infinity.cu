/*---
op = "max"
note = "a thread stops at infinity, and misses a NaN behind it"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "max_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "values", "indices", "cols"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

__device__ __forceinline__ Best best_of_warp(Best best) {
    for (int step = 16; step > 0; step /= 2) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, step);
        best = better(best, {value, __shfl_xor_sync(0xffffffffu, best.index, step)});
    }
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_row(const x_t* __restrict__ x, values_t* __restrict__ values, long long* __restrict__ indices, int cols) {
    __shared__ Best bests[32];
    const x_t* row = x + (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32;
    const Best none = {-INFINITY, 0};  // in a row of nothing but -inf the first counts
    Best best = none;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols && best.value != INFINITY; col += THREADS) {  // nothing is larger
        const float value = float(row[col]);
        if (is_greater(value, best.value)) best = {value, col};  // a thread meets its columns in order
    }
    best = best_of_warp(best);
    if (lane == 0) bests[threadIdx.x / 32] = best;
    __syncthreads();
    best = best_of_warp(lane < THREADS / 32 ? bests[lane] : none);
    if (threadIdx.x == 0) {
        values[blockIdx.x] = row[best.index];
        indices[blockIdx.x] = best.index;
    }
}
