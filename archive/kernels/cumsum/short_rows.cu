/*---
op = "cumsum"
note = "a warp per short row, several rows a block and no barrier: a lane has a few 16-byte packs, the parent's runs, and what the runs before add up to comes by shuffles"
when = "cols * itemsize(x) % 512 == 0 and cols * itemsize(x) <= 4096"
specialize = ["packs"]

[knobs]
WARPS = [8, 2, 4, 16]

[let]
packs = "cols * itemsize(x) // 512"

[[launch]]
entry = "cumsum_short_row"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(x_t);

struct alignas(16) Pack {
    x_t values[WIDTH];
};

// Sums up to and including each lane's own.
__device__ __forceinline__ float scanned(float value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value += other;
    }
    return value;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
cumsum_short_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const Pack* from = reinterpret_cast<const Pack*>(x) + row * 32 * packs;
    Pack* to = reinterpret_cast<Pack*>(out) + row * 32 * packs;
    Pack own[packs];
    float upto[packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) own[i] = from[32 * i + lane];
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) part += float(own[i].values[j]);
        upto[i] = scanned(part, lane);
    }
    float before = 0.0f;  // of all runs up to here
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const float in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
        float sum = before + (lane > 0 ? in_run : 0.0f);
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            sum += float(own[i].values[j]);
            own[i].values[j] = x_t(sum);
        }
        to[32 * i + lane] = own[i];
        before += __shfl_sync(0xffffffffu, upto[i], 31);
    }
}
