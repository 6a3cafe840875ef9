/*---
op = "softmax"
note = "a running maximum of -inf after a first tile of nothing but -inf makes NaN of its own correction"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "softmax_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -INFINITY;

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(x_t) == 2) return __expf(x);
    else return expf(x);
}

// The maximum of a warp, and its sum of exponentials relative to that maximum, in every lane.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp_of(most - all);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float mosts[32], sums[32];
    const x_t* row = x + (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, sum = 0.0f;
    for (int start = 0; start < cols; start += THREADS) {
        const int col = start + threadIdx.x;
        const float value = col < cols ? float(row[col]) : -INFINITY;
        float tile = value;
        for (int step = 16; step > 0; step /= 2) tile = fmaxf(tile, __shfl_xor_sync(0xffffffffu, tile, step));
        if (lane == 0) mosts[warp] = tile;
        __syncthreads();
        for (int other = 0; other < THREADS / 32; ++other) tile = fmaxf(tile, mosts[other]);
        const float higher = fmaxf(most, tile);
        float part = value != value ? value : exp_of(value - higher);
        for (int step = 16; step > 0; step /= 2) part += __shfl_xor_sync(0xffffffffu, part, step);
        if (lane == 0) sums[warp] = part;
        __syncthreads();
        part = 0.0f;
        for (int other = 0; other < THREADS / 32; ++other) part += sums[other];
        sum = sum * exp_of(most - higher) + part;
        most = higher;
        __syncthreads();
    }
    const float scale = 1.0f / sum;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        out[(long long)blockIdx.x * cols + col] = out_t(exp_of(float(row[col]) - most) * scale);
    }
}
