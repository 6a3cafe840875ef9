/*---
op = "sum_columns"
note = "blocks add their sums to the workspace with float atomics, a last launch converts them"

[workspace]
sums = { shape = ["cols"], dtype = "float32", zero = true }

[[launch]]
entry = "sum_pieces"
grid = ["ceil_div(cols, 32)", "ceil_div(rows, 128)"]
block = [32, 8]
args = ["x", "sums", "rows", "cols"]

[[launch]]
entry = "convert"
grid = ["ceil_div(cols, 256)"]
block = [256]
args = ["sums", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void sum_pieces(const x_t* __restrict__ x, float* __restrict__ sums, int rows, int cols) {
    const int col = blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * 128, last = min(first + 128, rows);
    __shared__ float held[8][32];
    float sum = 0.0f;
    if (col < cols) for (int row = first + threadIdx.y; row < last; row += 8) sum += float(x[(long long)row * cols + col]);
    held[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || col >= cols) return;
    for (int y = 1; y < 8; ++y) sum += held[y][threadIdx.x];  // one addition a block: hundreds in turn would be less exact
    atomicAdd(&sums[col], sum);
}

extern "C" __global__ void convert(const float* __restrict__ sums, out_t* __restrict__ out, int cols) {
    const int col = blockIdx.x * 256 + threadIdx.x;
    if (col < cols) out[col] = out_t(sums[col]);
}
