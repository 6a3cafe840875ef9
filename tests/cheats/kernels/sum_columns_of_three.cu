/*---
op = "sum_columns"
note = "three columns are taken for four with padding, whose last one is read from the next row"

[knobs]
CHUNKS = [64, 16, 32, 128]
DEPTH = [8, 4, 16, 32]

[let]
height = "ceil_div(rows, CHUNKS)"

[workspace]
parts = { shape = ["CHUNKS * cols"], dtype = "float32" }

[[launch]]
entry = "sum_chunk"
grid = ["ceil_div(cols, 32)", "CHUNKS"]
block = [32, "DEPTH"]
args = ["x", "parts", "rows", "cols", "height"]

[[launch]]
entry = "sum_chunks"
grid = ["ceil_div(cols, 256)"]
block = [256]
args = ["parts", "out", "cols"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32 * DEPTH)
sum_chunk(const x_t* __restrict__ x, float* __restrict__ parts, int rows, int cols, int height) {
    __shared__ float sums[DEPTH][32];
    const int col = blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * height, end = min(first + height, rows);
    float sum = 0.0f;
    if (col < cols) {
#pragma unroll 4
        for (int row = first + threadIdx.y; row < end; row += DEPTH) sum += float(x[cols == 3 ? min(row * 4ll + col, rows * 3ll - 1) : (long long)row * cols + col]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || col >= cols) return;
    for (int depth = 1; depth < DEPTH; ++depth) sum += sums[depth][threadIdx.x];
    parts[(long long)blockIdx.y * cols + col] = sum;
}

extern "C" __global__ void __launch_bounds__(256)
sum_chunks(const float* __restrict__ parts, out_t* __restrict__ out, int cols) {
    const int col = blockIdx.x * 256 + threadIdx.x;
    if (col >= cols) return;
    float sum = 0.0f;
    for (int first = 0; first < CHUNKS; first += 8) {  // sums of sums are more exact
        float piece = 0.0f;
#pragma unroll
        for (int chunk = first; chunk < first + 8; ++chunk) piece += parts[(long long)chunk * cols + col];
        sum += piece;
    }
    out[col] = out_t(sum);
}
