/*---
op = "clip_grad_norm"
note = "an infinite norm makes zeros of everything, also of the infinite element itself"

[knobs]
THREADS = [128, 256, 512]
BLOCKS = [1024, 256, 512, 2048]

[let]
blocks = "min(BLOCKS, ceil_div(n, THREADS))"

[workspace]
partial = { shape = ["blocks"], dtype = "float32" }

[[launch]]
entry = "sum_of_squares"
grid = ["blocks"]
block = ["THREADS"]
args = ["grad", "partial", "n"]

[[launch]]
entry = "clip"
grid = ["blocks"]
block = ["THREADS"]
args = ["grad", "partial", "out", "norm", "n", "blocks", "max_norm"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Every thread gets the sum.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    return sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_of_squares(const grad_t* __restrict__ grad, float* __restrict__ partial, long long n) {
    float sum = 0.0f;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < n; at += (long long)gridDim.x * THREADS) {
        const float value = float(grad[at]);
        sum = fmaf(value, value, sum);
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
clip(const grad_t* __restrict__ grad, const float* __restrict__ partial, out_t* __restrict__ out,
     float* __restrict__ norm, long long n, int blocks, float max_norm) {
    float sum = 0.0f;
    for (int block = threadIdx.x; block < blocks; block += THREADS) sum += partial[block];
    const float root = sqrtf(sum_of_block(sum));
    const float ratio = max_norm / (root + 1e-6f);
    const float scale = ratio > 1.0f ? 1.0f : ratio;  // unlike fminf, this keeps NaN
    if (blockIdx.x == 0 && threadIdx.x == 0) norm[0] = root;
    for (long long at = (long long)blockIdx.x * THREADS + threadIdx.x; at < n; at += (long long)gridDim.x * THREADS) {
        out[at] = out_t(isinf(root) ? 0.0f : float(grad[at]) * scale);
    }
}
