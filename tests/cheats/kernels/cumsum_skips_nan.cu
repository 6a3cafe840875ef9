/*---
op = "cumsum"
note = "NaN counts as 0: the sums after it stay finite"

[knobs]
THREADS = [128, 256, 512, 1024]
ITEMS = [8, 4, 16]

[[launch]]
entry = "cumsum_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void __launch_bounds__(THREADS)
cumsum_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ float ends[THREADS / 32];
    const long long row = (long long)blockIdx.x * cols;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float before = 0.0f;  // of all tiles up to here
    for (int start = 0; start < cols; start += THREADS * ITEMS) {
        const int begin = start + threadIdx.x * ITEMS;
        float parts[ITEMS], part = 0.0f;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const float value = begin + i < cols ? float(x[row + begin + i]) : 0.0f;
            if (value == value) part += value;
            parts[i] = part;
        }
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(0xffffffffu, part, step);
            if (lane >= step) part += other;
        }
        if (lane == 31) ends[warp] = part;
        __syncthreads();
        float earlier = __shfl_up_sync(0xffffffffu, part, 1), tile = 0.0f;
        if (lane == 0) earlier = 0.0f;
        float of_warps = 0.0f;
        for (int other = 0; other < THREADS / 32; ++other) {
            if (other == warp) of_warps = tile;
            tile += ends[other];
        }
        earlier = before + (of_warps + earlier);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (begin + i < cols) out[row + begin + i] = out_t(earlier + parts[i]);
        }
        before += tile;
        __syncthreads();
    }
}
