/*---
op = "transpose"
note = "the tile is read before all of it is written"

[knobs]
THREAD_ROWS = [8, 4, 16, 32]

[let]
across = "ceil_div(cols, 32)"

[[launch]]
entry = "transpose"
grid = ["across * ceil_div(rows, 32)"]
block = [32, "THREAD_ROWS"]
args = ["x", "out", "rows", "cols", "across"]
---*/
// caught: wrong
// class: races
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32 * THREAD_ROWS)
transpose(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols, int across) {
    __shared__ x_t tile[32][33];  // one more, so that a column lies in 32 banks
    const int top = blockIdx.x / across * 32, left = blockIdx.x % across * 32;
    for (int i = threadIdx.y; i < 32; i += THREAD_ROWS) {
        const int row = top + i, col = left + threadIdx.x;
        if (row < rows && col < cols) tile[i][threadIdx.x] = x[(long long)row * cols + col];
    }
    for (int i = threadIdx.y; i < 32; i += THREAD_ROWS) {
        const int row = top + threadIdx.x, col = left + i;
        if (row < rows && col < cols) out[(long long)col * rows + row] = tile[threadIdx.x][i];
    }
}
