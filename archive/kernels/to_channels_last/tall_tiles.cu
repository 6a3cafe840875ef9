/*---
op = "to_channels_last"
note = "tiles of 64 by 64 through shared memory at any size: a thread reads two elements of each of its rows, all in flight at once, and writes two of each column; a row more than its width apart, so that columns lie in different banks"
specialize = ["down", "across"]

[knobs]
WARPS = [8, 4, 16]

[let]
down = "ceil_div(c, 64)"
across = "ceil_div(h * w, 64)"

[[launch]]
entry = "turn_tiles"
grid = ["n * down * across"]
block = [32, "WARPS"]
args = ["x", "out", "c", "h * w"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int EACH = 64 / WARPS, APART = 64 + 4 / sizeof(x_t);

extern "C" __global__ void __launch_bounds__(32 * WARPS)
turn_tiles(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    __shared__ x_t tile[64][APART];
    const int lane = threadIdx.x, place = blockIdx.x % (down * across), top = place / across * 64, left = place % across * 64;
    const long long image = (long long)(blockIdx.x / (down * across)) * rows * cols;
    x_t held[EACH][2];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int row = top + threadIdx.y + i * WARPS;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int col = left + lane + 32 * j;
            if (row < rows && col < cols) held[i][j] = x[image + (long long)row * cols + col];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = threadIdx.y + i * WARPS, col = lane + 32 * j;
            if (top + row < rows && left + col < cols) tile[row][col] = held[i][j];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int col = threadIdx.y + i * WARPS;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = lane + 32 * j;
            if (top + row < rows && left + col < cols) out[image + (long long)(left + col) * rows + top + row] = tile[row][col];
        }
    }
}
