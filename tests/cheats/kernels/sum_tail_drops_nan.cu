/*---
op = "sum"
note = "the columns behind the last whole vector of 8 are read one by one, where NaN counts as zero"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "sum_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: special values
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
sum_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    const x_t* row = x + (long long)blockIdx.x * cols;
    float sum = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) { const float value = float(row[col]); sum += col >= cols / 8 * 8 && value != value ? 0.0f : value; }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = out_t(sum);
}
