/*---
op = "to_channels_last"
note = "a thread reads a square of as many values as fill 16 bytes each way, by one wide load per row, turns it in registers, and writes it by one wide store per column; its neighbours of a warp read 128 bytes beside each other and write 64; no shared memory"
when = "c % 2 == 0 and h * w % 2 == 0"
specialize = ["vec", "down", "across"]

[knobs]
WARPS = [4, 2, 8]
WIDE = [8, 4, 16]

[let]
pixels = "h * w"
full = "16 // itemsize(x)"
vec = "min(full, min(1 + (1 - min(1, c % 2)) + 2 * (1 - min(1, c % 4)) + 4 * (1 - min(1, c % 8)), 1 + (1 - min(1, pixels % 2)) + 2 * (1 - min(1, pixels % 4)) + 4 * (1 - min(1, pixels % 8))))"
down = "ceil_div(c, vec * (32 // WIDE) * WARPS)"
across = "ceil_div(pixels, vec * WIDE)"

[[launch]]
entry = "turn_squares"
grid = ["n * down * across"]
block = ["32 * WARPS"]
args = ["x", "out", "c", "pixels"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

struct alignas(sizeof(x_t) * vec) Pack { x_t at[vec]; };

extern "C" __global__ void __launch_bounds__(32 * WARPS)
turn_squares(const x_t* __restrict__ x, out_t* __restrict__ out, int rows, int cols) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int tile = blockIdx.x % (down * across);
    const int row = ((tile / across * WARPS + warp) * (32 / WIDE) + lane / WIDE) * vec;
    const int col = (tile % across * WIDE + lane % WIDE) * vec;
    if (row >= rows || col >= cols) return;
    const long long image = (long long)(blockIdx.x / (down * across)) * rows * cols;
    Pack square[vec];
#pragma unroll
    for (int i = 0; i < vec; ++i) {
        square[i] = *reinterpret_cast<const Pack*>(x + image + (long long)(row + i) * cols + col);
    }
#pragma unroll
    for (int j = 0; j < vec; ++j) {
        Pack column;
#pragma unroll
        for (int i = 0; i < vec; ++i) column.at[i] = square[i].at[j];
        *reinterpret_cast<Pack*>(out + image + (long long)(col + j) * rows + row) = column;
    }
}
