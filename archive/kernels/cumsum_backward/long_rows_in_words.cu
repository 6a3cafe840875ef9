/*---
op = "cumsum_backward"
note = "one block per row, from its end, in tiles of 1024 16-byte packs: each warp scans packs side by side, one barrier a tile, and the next tile is loaded meanwhile, as whole words"
when = "cols * itemsize(grad_out) % 16 == 0"

[knobs]
THREADS = [512, 128, 256, 1024]

[[launch]]
entry = "sum_row"
grid = ["rows"]
block = ["THREADS"]
args = ["grad_out", "grad_x", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(grad_out_t);
constexpr int WARPS = THREADS / 32;
constexpr int PACKS = 32 / WARPS;  // of each thread; so a tile has 32 runs of 32 packs, one for each lane

union Pack {
    uint4 raw;  // as packs are on their way, so that their values are not taken apart
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

__device__ __forceinline__ void load(uint4* packs, const uint4* row, int start, int count) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int at = start + i * THREADS + threadIdx.x;
        if (at < count) {
            packs[i] = row[count - 1 - at];
        } else {
            Pack none;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) none.values[j] = grad_out_t(0.0f);
            packs[i] = none.raw;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sum_row(const grad_out_t* __restrict__ grad_out, grad_x_t* __restrict__ grad_x, int cols) {
    __shared__ float ends[2][32];  // of the runs, this tile's and the last one's in turn
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = cols / WIDTH;
    const uint4* from = reinterpret_cast<const uint4*>(grad_out + (long long)blockIdx.x * cols);
    uint4* to = reinterpret_cast<uint4*>(grad_x + (long long)blockIdx.x * cols);
    float before = 0.0f;  // of all tiles up to here
    uint4 next[PACKS];
    load(next, from, 0, count);
    for (int start = 0, turn = 0; start < count; start += 1024, turn ^= 1) {
        Pack own[PACKS];
        float upto[PACKS], part[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; ++i) own[i].raw = next[i];
        if (start + 1024 < count) load(next, from, start + 1024, count);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            part[i] = 0.0f;
#pragma unroll
            for (int j = WIDTH - 1; j >= 0; --j) part[i] += float(own[i].values[j]);
            upto[i] = scanned(part[i], lane);
            if (lane == 31) ends[turn][i * WARPS + warp] = upto[i];
        }
        __syncthreads();
        const float runs = scanned(ends[turn][lane], lane);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int run = i * WARPS + warp;
            const float earlier = __shfl_sync(0xffffffffu, runs, run > 0 ? run - 1 : 0);
            const float in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
            float sum = before + ((run > 0 ? earlier : 0.0f) + (lane > 0 ? in_run : 0.0f));
#pragma unroll
            for (int j = WIDTH - 1; j >= 0; --j) {
                sum += float(own[i].values[j]);
                own[i].values[j] = grad_out_t(sum);
            }
            const int at = start + i * THREADS + threadIdx.x;
            if (at < count) __stcs(to + count - 1 - at, own[i].raw);
        }
        before += __shfl_sync(0xffffffffu, runs, 31);
    }
}
