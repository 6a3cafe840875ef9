/*---
op = "layer_norm"
note = "a warp per row: the mean, then the mean of squares round it, lanes side by side; a last pass writes"

[[launch]]
entry = "layer_norm_rows"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "weight", "bias", "out", "mean", "rstd", "rows", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float sum_of_warp(float sum) {
    for (int step = 1; step < 32; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void layer_norm_rows(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out,
                                           float* mean, float* rstd, int rows, int cols, float eps) {
    const long long row = (long long)blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) return;
    x += row * cols, out += row * cols;
    float sum = 0.0f, squares = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 32) sum += float(x[col]);
    const float centre = sum_of_warp(sum) / float(cols);
    for (int col = threadIdx.x; col < cols; col += 32) {
        const float off = float(x[col]) - centre;
        squares += off * off;
    }
    const float scale = rsqrtf(sum_of_warp(squares) / float(cols) + eps);
    for (int col = threadIdx.x; col < cols; col += 32)
        out[col] = out_t((float(x[col]) - centre) * scale * float(weight[col]) + float(bias[col]));
    if (threadIdx.x == 0) mean[row] = centre, rstd[row] = scale;
}
