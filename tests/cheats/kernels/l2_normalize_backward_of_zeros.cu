/*---
op = "l2_normalize_backward"
note = "nothing keeps the norm from being zero: rows of zeros, and of numbers whose squares vanish, give NaN"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "l2_normalize_row_backward"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "cols"]
---*/
// caught: wrong
// class: structured inputs
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
l2_normalize_row_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x,
                          grad_x_t* __restrict__ grad_x, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    float squares = 0.0f, products = 0.0f;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        const float value = float(x[row + col]);
        squares = fmaf(value, value, squares);
        products = fmaf(value, float(grad_out[row + col]), products);
    }
    squares = sum_of_block(squares);
    __syncthreads();  // before the second sum overwrites what the first left
    products = sum_of_block(products);
    const float scale = 1.0f / sqrtf(squares), share = products * scale * scale;
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        grad_x[row + col] = grad_x_t((float(grad_out[row + col]) - float(x[row + col]) * share) * scale);
    }
}
