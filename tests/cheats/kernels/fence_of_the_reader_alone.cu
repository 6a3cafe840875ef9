/*---
op = "sum_columns"
note = "the block that reads calls a fence, those that write do not; 32 columns each have a counter"
[workspace]
parts = { shape = [16, "cols"], dtype = "float32" }
arrived = { shape = ["ceil_div(cols, 32)"], dtype = "int32", zero = true }

[[launch]]
entry = "sum_columns"
grid = ["ceil_div(cols, 32)", 16]
block = [32, 8]
args = ["x", "parts", "arrived", "out", "rows", "cols"]
---*/
// caught: unsafe
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sum_columns(const x_t* __restrict__ x, float* parts, int* arrived, out_t* out, int rows,
                                       int cols) {
    __shared__ float sums[8][32];
    __shared__ int before;
    const int col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (col < cols) {
        for (int row = blockIdx.y * 8 + threadIdx.y; row < rows; row += 16 * 8) sum += float(x[(long long)row * cols + col]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && col < cols) {
        for (int other = 1; other < 8; ++other) sum += sums[other][threadIdx.x];
        parts[blockIdx.y * cols + col] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) before = atomicAdd(&arrived[blockIdx.x], 1);
    __syncthreads();
    if (before != 15) return;
    __threadfence();
    if (threadIdx.y > 0 || col >= cols) return;
    sum = 0.0f;
    for (int part = 0; part < 16; ++part) sum += __ldcg(&parts[part * cols + col]);
    out[col] = out_t(sum);
}
