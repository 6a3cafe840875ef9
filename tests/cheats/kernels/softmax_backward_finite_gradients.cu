/*---
op = "softmax_backward"
note = "infinite gradients count as zero"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "softmax_backward_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "out", "grad_x", "cols"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ double sum_of_warp(double sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Keeps NaN.
__device__ __forceinline__ float finite(float x) { return isinf(x) ? 0.0f : x; }

extern "C" __global__ void __launch_bounds__(THREADS)
softmax_backward_row(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
                     grad_x_t* __restrict__ grad_x, int cols) {
    __shared__ double sums[32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double sum = 0.0;  // where the gradient is about as large, little but its rounding would be left
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        sum += double(finite(float(grad_out[row + col]))) * double(float(out[row + col]));
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    sum = sum_of_warp(lane < THREADS / 32 ? sums[lane] : 0.0);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        grad_x[row + col] = grad_x_t(float(out[row + col]) * float(finite(float(grad_out[row + col])) - sum));
    }
}
