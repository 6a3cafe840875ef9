/*---
op = "log_softmax"
note = "the maximum begins with -1e20, below which a whole row may lie"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "log_softmax_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -1e20f;  // finite, so that the difference of two of them is no NaN

// The maximum of a warp, and its sum of exponentials relative to that maximum, in every lane.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= expf(most - all);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

extern "C" __global__ void __launch_bounds__(THREADS)
log_softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float mosts[32], sums[32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = float(x[row + col]), higher = fmaxf(most, value);
        sum = sum * expf(most - higher) + expf(value - higher);
        most = higher;
    }
    reduce_warp(most, sum);
    if (lane == 0) mosts[warp] = most, sums[warp] = sum;
    __syncthreads();
    most = lane < THREADS / 32 ? mosts[lane] : LOWEST;
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    reduce_warp(most, sum);
    const float logarithm = logf(sum);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        out[row + col] = out_t(float(x[row + col]) - most - logarithm);
    }
}
