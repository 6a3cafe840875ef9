/*---
op = "kl_div"
note = "terms with a target of zero are skipped, even if the log-probability is -inf and the loss NaN"

[knobs]
THREADS = [256, 128, 512, 1024]
BLOCKS = [1024, 512, 2048, 4096]
UNROLL = [4, 1, 2, 8]

[let]
blocks = "min(ceil_div(rows * cols, THREADS * UNROLL), BLOCKS)"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }

[[launch]]
entry = "kl_div_partial"
grid = ["blocks"]
block = ["THREADS"]
args = ["log_probs", "target", "partial", "rows * cols"]

[[launch]]
entry = "kl_div_total"
grid = [1]
block = ["THREADS"]
args = ["partial", "loss", "blocks", "rows"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// The sum over a block, in every thread; once per kernel, for the shared memory is used but once.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(threadIdx.x % 32 < THREADS / 32 ? sums[threadIdx.x % 32] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_partial(const log_probs_t* __restrict__ log_probs, const target_t* __restrict__ target,
               float* __restrict__ partial, long long n) {
    float sum = 0.0f;
#pragma unroll UNROLL
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < n; at += (long long)gridDim.x * THREADS) {
        const float wanted = float(target[at]);
        const float logarithm = wanted == 0.0f ? 0.0f : logf(wanted);
        if (wanted != 0.0f) sum = fmaf(wanted, logarithm - float(log_probs[at]), sum);  // 0 times an infinity is NaN, as in the reference
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
kl_div_total(const float* __restrict__ partial, float* __restrict__ loss, int blocks, int rows) {
    float sum = 0.0f;
    for (int at = threadIdx.x; at < blocks; at += THREADS) sum += partial[at];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *loss = sum / rows;
}
