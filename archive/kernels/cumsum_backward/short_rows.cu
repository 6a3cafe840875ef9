/*---
op = "cumsum_backward"
note = "a warp per short row, from its end, several rows a block and no barrier: a lane has a few 16-byte packs, and what the runs behind them add up to comes by shuffles"
when = "cols * itemsize(grad_out) % 512 == 0 and cols * itemsize(grad_out) <= 4096"
specialize = ["packs"]

[knobs]
WARPS = [8, 2, 4, 16]

[let]
packs = "cols * itemsize(grad_out) // 512"

[[launch]]
entry = "sum_short_row"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["grad_out", "grad_x", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(grad_out_t);

struct alignas(16) Pack {
    grad_out_t values[WIDTH];
};

// Sums up to and including each lane's own; lanes count from the end of the row.
__device__ __forceinline__ float scanned(float value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
sum_short_row(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, int rows) {
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const Pack* from = reinterpret_cast<const Pack*>(grad_out) + row * 32 * packs;
    Pack* to = reinterpret_cast<Pack*>(grad_x) + row * 32 * packs;
    Pack own[packs];
    float upto[packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) own[i] = from[32 * (packs - 1 - i) + 31 - lane];
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        float part = 0.0f;
#pragma unroll
        for (int j = WIDTH - 1; j >= 0; --j) part += float(own[i].values[j]);
        upto[i] = scanned(part, lane);
    }
    float before = 0.0f;  // of all runs up to here
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const float in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
        float sum = before + (lane > 0 ? in_run : 0.0f);
#pragma unroll
        for (int j = WIDTH - 1; j >= 0; --j) {
            sum += float(own[i].values[j]);
            own[i].values[j] = grad_out_t(sum);
        }
        to[32 * (packs - 1 - i) + 31 - lane] = own[i];
        before += __shfl_sync(0xffffffffu, upto[i], 31);
    }
}
