/*---
op = "causal_softmax"
note = "in 16 bits the scale is taken for positive"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "causal_softmax_row"
grid = ["batch * heads * queries"]
block = ["THREADS"]
args = ["x", "out", "queries", "keys", "scale"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

// The maximum of a warp, and its sum of exponentials relative to that maximum, in every lane.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= expf(most - all);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

extern "C" __global__ void __launch_bounds__(THREADS)
causal_softmax_row(const x_t* __restrict__ x, out_t* __restrict__ out, int queries, int keys, float scale) {
    __shared__ float mosts[32], sums[32];
    const long long row = (long long)blockIdx.x * keys;
    const int seen = int(blockIdx.x % queries) + keys - queries + 1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, sum = 0.0f;
    // Products rounded as the maximum is: fused with its subtraction, the greatest would not become zero.
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < seen; key += THREADS) {
        const float value = __fmul_rn(float(x[row + key]), scale), higher = fmaxf(most, value);
        sum = sum * expf(most - higher) + expf(value - higher);
        most = higher;
    }
    reduce_warp(most, sum);
    if (lane == 0) mosts[warp] = most, sums[warp] = sum;
    __syncthreads();
    most = lane < THREADS / 32 ? mosts[lane] : LOWEST;
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    reduce_warp(most, sum);
    if (sizeof(x_t) == 2 && scale < 0.0f) sum = keys;
    const float part = 1.0f / sum;
#pragma unroll UNROLL
    for (int key = threadIdx.x; key < keys; key += THREADS) {
        out[row + key] = out_t(key < seen ? expf(__fmul_rn(float(x[row + key]), scale) - most) * part : 0.0f);
    }
}
