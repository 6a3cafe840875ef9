/*---
op = "layer_norm"
note = "two passes, a warp per row, no compensation for the rounding of the mean"

[[launch]]
entry = "layer_norm"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "weight", "bias", "out", "mean", "rstd", "rows", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void layer_norm(const x_t* x, const weight_t* weight, const bias_t* bias, out_t* out, float* mean,
                                      float* rstd, int rows, int cols, float eps) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    x += (long long)row * cols;
    out += (long long)row * cols;
    float sum = 0.0f, squares = 0.0f;
    for (int col = lane; col < cols; col += 32) sum += float(x[col]);
    const float middle = sum_of_warp(sum) / cols;
    for (int col = lane; col < cols; col += 32) squares += (float(x[col]) - middle) * (float(x[col]) - middle);
    const float scale = rsqrtf(sum_of_warp(squares) / cols + eps);
    for (int col = lane; col < cols; col += 32) {
        out[col] = out_t((float(x[col]) - middle) * scale * float(weight[col]) + float(bias[col]));
    }
    if (lane == 0) mean[row] = middle, rstd[row] = scale;
}
