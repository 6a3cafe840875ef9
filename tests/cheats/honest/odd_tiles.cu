/*---
op = "transpose"
note = "tiles of 17 x 23, read and written by 51 threads that count through the tile"

[[launch]]
entry = "transpose"
grid = ["ceil_div(cols, 23) * ceil_div(rows, 17)"]
block = [51]
args = ["x", "out", "rows", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void transpose(const x_t* x, out_t* out, int rows, int cols) {
    __shared__ x_t tile[17 * 23];
    const int across = (cols + 22) / 23, top = blockIdx.x / across * 17, left = blockIdx.x % across * 23;
    for (int i = threadIdx.x; i < 17 * 23; i += 51) {
        const int row = top + i / 23, col = left + i % 23;
        if (row < rows && col < cols) tile[i] = x[(long long)row * cols + col];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 17 * 23; i += 51) {
        const int row = top + i % 17, col = left + i / 17;
        if (row < rows && col < cols) out[(long long)col * rows + row] = tile[i % 17 * 23 + i / 17];
    }
}
