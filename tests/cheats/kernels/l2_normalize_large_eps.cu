/*---
op = "l2_normalize"
note = "norms below 1e-4 count as 1e-4, where PyTorch allows them down to 1e-12"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "l2_normalize_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// In every thread.
__device__ __forceinline__ float sum_of_block(float sum) {
    __shared__ float sums[32];
    const int lane = threadIdx.x % 32;
    sum = sum_of_warp(sum);
    if (lane == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    return sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS)
l2_normalize_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = float(x[row + col]);
        sum = fmaf(value, value, sum);
    }
    const float norm = sqrtf(sum_of_block(sum));
    const float scale = 1.0f / (norm < 1e-4f ? 1e-4f : norm);  // unlike fmaxf, this keeps NaN
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) out[row + col] = out_t(float(x[row + col]) * scale);
}
