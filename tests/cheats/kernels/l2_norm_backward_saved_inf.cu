/*---
op = "l2_norm_backward"
note = "the saved norm is limited to 1e30: a row with an infinity gets gradients that are not zero or NaN"

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
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
l2_norm_row_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const out_t* __restrict__ out,
                     grad_x_t* __restrict__ grad_x, int cols) {
    const long long row = (long long)blockIdx.x * cols;
    const float scale = float(grad_out[blockIdx.x]) / fminf(float(out[blockIdx.x]), 1e30f);
#pragma unroll UNROLL
    for (int col = threadIdx.x; col < cols; col += THREADS) grad_x[row + col] = grad_x_t(float(x[row + col]) * scale);
}
