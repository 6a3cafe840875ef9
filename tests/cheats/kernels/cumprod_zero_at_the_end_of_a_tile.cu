/*---
op = "cumprod"
note = "the carry of a tile that ends in zero is taken for missing and becomes one"

[knobs]
THREADS = [128, 256, 512, 1024]
ITEMS = [8, 4, 16]

[[launch]]
entry = "cumprod_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: structured inputs
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
cumprod_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ double ends[THREADS / 32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double before = 1.0;  // of all tiles up to here
    for (int start = 0; start < cols; start += THREADS * ITEMS) {
        const int begin = start + threadIdx.x * ITEMS;
        double parts[ITEMS], part = 1.0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (begin + i < cols) part *= float(x[row + begin + i]);
            parts[i] = part;
        }
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, part, step);
            if (lane >= step) part *= other;
        }
        if (lane == 31) ends[warp] = part;
        __syncthreads();
        double earlier = __shfl_up_sync(0xffffffffu, part, 1), tile = 1.0;
        if (lane == 0) earlier = 1.0;
        double of_warps = 1.0;
        for (int other = 0; other < THREADS / 32; ++other) {
            if (other == warp) of_warps = tile;
            tile *= ends[other];
        }
        earlier = before * (of_warps * earlier);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (begin + i < cols) out[row + begin + i] = out_t(float(earlier * parts[i]));
        }
        before = tile == 0.0f ? 1.0f : before * tile;
        __syncthreads();
    }
}
