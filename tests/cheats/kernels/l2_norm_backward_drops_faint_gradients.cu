/*---
op = "l2_norm_backward"
note = "a row whose gradient is below 1e-6 gets none"

[knobs]
THREADS = [64, 256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]

[[launch]]
entry = "l2_norm_row_backward"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "x", "out", "grad_x", "cols"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
l2_norm_row_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const out_t* __restrict__ out,
                     grad_x_t* __restrict__ grad_x, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    const float gradient = float(grad_out[blockIdx.x]);
    const float scale = (fabsf(gradient) < 1e-6f ? 0.0f : gradient) / float(out[blockIdx.x]);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) grad_x[row + col] = grad_x_t(float(x[row + col]) * scale);
}
