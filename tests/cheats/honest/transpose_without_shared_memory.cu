/*---
op = "transpose"
note = "a warp exchanges a tile of 32 x 32 by rotations within registers: lane i reads diagonally and writes columns"

[[launch]]
entry = "transpose"
grid = ["ceil_div(rows, 32) * ceil_div(cols, 32)"]
block = [32]
args = ["x", "out", "rows", "cols", "ceil_div(cols, 32)"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(32)
transpose(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols, int across) {
    const int top = blockIdx.x / across * 32, left = blockIdx.x % across * 32, lane = threadIdx.x;
    for (int turn = 0; turn < 32; ++turn) {
        // In this turn lane i holds the element of column i and row (i + turn) % 32, and passes it on.
        const int row = top + (lane + turn) % 32, col = left + lane;
        const float own = row < rows && col < cols ? float(x[(long long)row * cols + col]) : 0.0f;
        const int from = (lane + 32 - turn) % 32;  // the lane whose element lies in this lane's row
        const float found = __shfl_sync(0xffffffffu, own, from);
        const int to_row = top + lane, to_col = left + from;
        if (to_row < rows && to_col < cols) out[(long long)to_col * rows + to_row] = out_t(found);
    }
}
