/*---
op = "sum"
note = "the remainder that each addition loses is summed after Neumaier, and counts only while it is finite"

[[launch]]
entry = "sum_row"
grid = ["ceil_div(rows, 4)"]
block = [32, 4]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ void add(float& sum, float& lost, float value) {
    const float next = sum + value;
    lost += fabsf(sum) >= fabsf(value) ? (sum - next) + value : (value - next) + sum;
    sum = next;
}

extern "C" __global__ void sum_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * 4 + threadIdx.y;
    if (row >= rows) return;
    float sum = 0.0f, lost = 0.0f;
    for (int col = threadIdx.x; col < cols; col += 32) add(sum, lost, float(x[(long long)row * cols + col]));
    for (int step = 16; step > 0; step /= 2) {
        const float rest = __shfl_xor_sync(0xffffffffu, lost, step);
        add(sum, lost, __shfl_xor_sync(0xffffffffu, sum, step));
        lost += rest;
    }
    if (threadIdx.x == 0) out[row] = out_t(isfinite(lost) ? sum + lost : sum);
}
