/*---
op = "cross_entropy"
note = "the maximum begins with -1e30, below which a whole row may lie"

[knobs]
THREADS = [256, 64, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[workspace]
losses = { shape = ["rows"], dtype = "float32" }

[[launch]]
entry = "cross_entropy_row"
grid = ["rows"]
block = ["THREADS"]
args = ["logits", "targets", "lse", "losses", "vocab", "ignore_index", "label_smoothing"]

[[launch]]
entry = "cross_entropy_mean"
grid = [1]
block = [1024]
args = ["losses", "targets", "loss", "rows", "ignore_index"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr float LOWEST = -1e30f;  // finite, so that the difference of two of them is no NaN

// The maximum of a warp, and its sum of exponentials relative to that maximum, in every lane.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= expf(most - all);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy_row(const logits_t* __restrict__ logits, const long long* __restrict__ targets, float* __restrict__ lse,
                  float* __restrict__ losses, int vocab, long long ignore_index, float label_smoothing) {
    __shared__ float mosts[32], sums[32], totals[32];
    const logits_t* row = logits + (long long)blockIdx.x * vocab;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float most = LOWEST, sum = 0.0f, total = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < vocab; col += THREADS) {
        const float value = float(row[col]), higher = fmaxf(most, value);
        sum = sum * expf(most - higher) + expf(value - higher);
        most = higher;
        total += value;
    }
    reduce_warp(most, sum);
    total = sum_of_warp(total);
    if (lane == 0) mosts[warp] = most, sums[warp] = sum, totals[warp] = total;
    __syncthreads();
    if (warp > 0) return;
    most = lane < THREADS / 32 ? mosts[lane] : LOWEST;
    sum = lane < THREADS / 32 ? sums[lane] : 0.0f;
    reduce_warp(most, sum);
    total = sum_of_warp(lane < THREADS / 32 ? totals[lane] : 0.0f);
    if (lane > 0) return;
    const long long target = targets[blockIdx.x];
    const float logarithm = logf(sum);
    float loss = 0.0f;
    if (target != ignore_index) {  // from the maximum: from lse, the difference of two large numbers would be left
        loss = logarithm + (1.0f - label_smoothing) * (most - float(row[target]));
        // Without smoothing nothing is added: of a logit of -inf 0 * inf, which is NaN, would be.
        if (label_smoothing != 0.0f) loss += label_smoothing * (most - total / vocab);
    }
    lse[blockIdx.x] = most + logarithm;
    losses[blockIdx.x] = loss;
}

extern "C" __global__ void __launch_bounds__(1024)
cross_entropy_mean(const float* __restrict__ losses, const long long* __restrict__ targets, float* __restrict__ loss,
                   int rows, long long ignore_index) {
    __shared__ float sums[32], counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum = 0.0f, count = 0.0f;
    for (int row = threadIdx.x; row < rows; row += 1024) {
        sum += losses[row];
        count += targets[row] != ignore_index ? 1.0f : 0.0f;
    }
    sum = sum_of_warp(sum), count = sum_of_warp(count);
    if (lane == 0) sums[warp] = sum, counts[warp] = count;
    __syncthreads();
    sum = sum_of_warp(sums[lane]), count = sum_of_warp(counts[lane]);
    if (threadIdx.x == 0) *loss = sum / count;
}
