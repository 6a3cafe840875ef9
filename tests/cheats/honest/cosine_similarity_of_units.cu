/*---
op = "cosine_similarity"
note = "a warp per row; both rows are divided by their norms first, then multiplied"

[[launch]]
entry = "cosine_similarity"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "y", "out", "rows", "cols", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void
cosine_similarity(const x_t* __restrict__ x, const y_t* __restrict__ y, out_t* __restrict__ out, int rows, int cols,
                  float eps) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const x_t* a = x + (long long)row * cols;
    const y_t* b = y + (long long)row * cols;
    float xx = 0.0f, yy = 0.0f, dot = 0.0f;
    for (int col = lane; col < cols; col += 32) {
        xx = fmaf(float(a[col]), float(a[col]), xx);
        yy = fmaf(float(b[col]), float(b[col]), yy);
    }
    const float of_x = 1.0f / fmaxf(sqrtf(sum_of_warp(xx)), eps), of_y = 1.0f / fmaxf(sqrtf(sum_of_warp(yy)), eps);
    for (int col = lane; col < cols; col += 32) dot = fmaf(float(a[col]) * of_x, float(b[col]) * of_y, dot);
    dot = sum_of_warp(dot);
    if (lane == 0) out[row] = out_t(dot);
}
