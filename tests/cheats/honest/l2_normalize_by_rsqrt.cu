/*---
op = "l2_normalize"
note = "a warp per row; one reciprocal root of the sum of squares, not below 1e-24"

[[launch]]
entry = "l2_normalize"
grid = ["ceil_div(rows, 4)"]
block = [128]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sum_of_warp(float sum) {
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void l2_normalize(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const x_t* from = x + (long long)row * cols;
    float sum = 0.0f;
    for (int col = lane; col < cols; col += 32) sum = fmaf(float(from[col]), float(from[col]), sum);
    sum = sum_of_warp(sum);
    const float scale = rsqrtf(sum < 1e-24f ? 1e-24f : sum);  // a choice, since fmaxf would drop NaN
    for (int col = lane; col < cols; col += 32) out[(long long)row * cols + col] = out_t(float(from[col]) * scale);
}
