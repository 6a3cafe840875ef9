/*---
op = "transpose"
note = "every thread reads one element down a column and writes it, without shared memory"

[[launch]]
entry = "transpose"
grid = ["ceil_div(rows, 16)", "ceil_div(cols, 16)"]
block = [16, 16]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void transpose(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    const int row = blockIdx.x * 16 + threadIdx.x, col = blockIdx.y * 16 + threadIdx.y;
    if (row < rows && col < cols) out[(long long)col * rows + row] = x[(long long)row * cols + col];
}
