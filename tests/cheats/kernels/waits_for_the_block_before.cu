/*---
op = "cumsum"
note = "each tile waits for the block whose number is one less, but blocks begin in any order"
[let]
tiles = "ceil_div(cols, 128)"

[workspace]
totals = { shape = ["rows * tiles"], dtype = "float32" }
ready = { shape = ["rows * tiles"], dtype = "int32", zero = true }
tickets = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "cumsum"
grid = ["rows * tiles"]
block = [128]
args = ["x", "totals", "ready", "tickets", "out", "cols", "tiles"]
---*/
// caught: unsafe
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void cumsum(const x_t* __restrict__ x, volatile float* totals, volatile int* ready, int* tickets,
                                out_t* out, int cols, int tiles) {
    __shared__ int place;
    __shared__ float before;
    if (threadIdx.x == 0) place = blockIdx.x;
    __syncthreads();
    const int row = place / tiles, tile = place % tiles, col = tile * 128 + threadIdx.x, lane = threadIdx.x % 32;
    float value = col < cols ? float(x[(long long)row * cols + col]) : 0.0f;
    __shared__ float ends[4];
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += other;
    }
    if (lane == 31) ends[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 0; warp < threadIdx.x / 32; ++warp) value += ends[warp];
    if (threadIdx.x == 127) {
        float sum = 0.0f;
        if (tile > 0) {
            while (ready[place - 1] == 0) {}
            __threadfence();
            sum = totals[place - 1];
        }
        before = sum;
        totals[place] = sum + value;
        __threadfence();
        ready[place] = 1;
    }
    __syncthreads();
    if (col < cols) out[(long long)row * cols + col] = out_t(tile > 0 ? before + value : value);
}
