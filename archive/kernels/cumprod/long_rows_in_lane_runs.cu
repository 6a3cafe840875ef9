/*---
op = "cumprod"
note = "16-bit types, a block per row: a lane's packs are neighbours, exchanged through its warp's shared memory, so that one scan by shuffles, in float64, serves all packs of a warp; values are multiplied in float32, scaled where the products are small, and in float64 only where they leave the range; longer rows in tiles, the next one loaded meanwhile"
when = "cols % 8 == 0 and cols >= 256"
dtypes = ["bfloat16", "float16"]
specialize = ["run", "threads", "count", "more"]

[knobs]
THREADS = [256, 128, 512]
RUN = [4, 2]
HELD = [768, 1024]

[let]
count = "cols // 8"
run = "RUN"
threads = "min(THREADS, 32 * ceil_div(count, 32 * RUN))"
more = "min(1, ceil_div(count, threads * run) - 1)"

[[launch]]
entry = "cumprod_row"
grid = ["rows"]
block = ["threads"]
args = ["x", "out"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(x_t);

union Pack {
    uint4 raw;  // as packs are on their way, so that their values are not taken apart
    x_t values[WIDTH];
};

// Where a warp keeps a pack: neither neighbours nor the lanes' own packs meet at a bank.
__device__ __forceinline__ int place(int pack) { return pack + pack / 8; }

// Products up to and including each lane's own.
__device__ __forceinline__ double scanned(double value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value *= other;
    }
    return value;
}

// What a lane's packs are multiplied to, and the least and the greatest product on the way, without their signs. The
// least is zero where float32 lost more than digits at its end; so the sign and the NaN of a zero are left to float64.
struct Product { double all; float least, most; };

__device__ __forceinline__ Product product(const Pack (&own)[run]) {
    float all = 1.0f, least = INFINITY, most = 0.0f;
#pragma unroll
    for (int i = 0; i < run * WIDTH; ++i) {
        all *= float(own[i / WIDTH].values[i % WIDTH]);
        least = fminf(least, fabsf(all)), most = fmaxf(most, fabsf(all));
    }
    if (least > 1.2e-38f && most < 3e38f && all == all) return {double(all), least, most};
    double exact = 1.0;
#pragma unroll 1
    for (int i = 0; i < run; ++i) {
        Pack pack = own[0];
#pragma unroll
        for (int other = 1; other < run; ++other) pack = i == other ? own[other] : pack;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) exact *= double(float(pack.values[j]));
    }
    return {exact, 0.0f, INFINITY};
}

// Replaces each value by the product up to it, given that of all before the lane's packs.
__device__ __forceinline__ void multiply(Pack (&own)[run], double before, const Product& product) {
    const bool small = fabs(before) * product.least < 1.2e-38;
    const float scale = small ? 0x1p64f : 1.0f, back = small ? 0x1p-64f : 1.0f;
    float all = float(before * scale);
    const float size = fabsf(all);
    // In float32's range throughout, or too small throughout for any result but zero.
    const bool plain = size > 1.2e-38f && size * product.least > 1.2e-38f && size * product.most < 3e38f;
    if (plain || fabs(before) * product.most < 1e-46) {
#pragma unroll
        for (int i = 0; i < run * WIDTH; ++i) {
            x_t& value = own[i / WIDTH].values[i % WIDTH];
            value = x_t((all *= float(value)) * back);
        }
        return;
    }
    double exact = before;
#pragma unroll
    for (int i = 0; i < run * WIDTH; ++i) {
        x_t& value = own[i / WIDTH].values[i % WIDTH];
        value = x_t(float(exact *= double(float(value))));
    }
}

constexpr int BLOCK_WARPS = threads / 32;

extern "C" __global__ void __launch_bounds__(threads, threads < 64 ? 16 : HELD / threads)
cumprod_row(const x_t* __restrict__ x, out_t* __restrict__ out) {
    __shared__ uint4 packs[BLOCK_WARPS][32 * run + 4 * run];
    __shared__ double ends[2][BLOCK_WARPS];  // of the warps, this tile's and the last one's in turn
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint4* from = reinterpret_cast<const uint4*>(x) + (long long)blockIdx.x * count;
    uint4* to = reinterpret_cast<uint4*>(out) + (long long)blockIdx.x * count;
    uint4* const kept = packs[warp];
    uint4 next[run];
    const auto load = [&](int start) {
#pragma unroll
        for (int i = 0; i < run; ++i) {
            const int at = start + warp * 32 * run + 32 * i + lane;
            Pack none;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) none.values[j] = x_t(1.0f);
            next[i] = at < count ? from[at] : none.raw;
        }
    };
    load(0);
    double before = 1.0;  // of all tiles up to here
    for (int start = 0, turn = 0; start < count; start += threads * run, turn ^= 1) {
#pragma unroll
        for (int i = 0; i < run; ++i) kept[place(32 * i + lane)] = next[i];
        if constexpr (more > 0) {
            if (start + threads * run < count) load(start + threads * run);
        }
        __syncwarp();
        Pack own[run];
#pragma unroll
        for (int i = 0; i < run; ++i) own[i].raw = kept[place(run * lane + i)];
        const Product all = product(own);
        const double upto = scanned(all.all, lane);
        if (lane == 31) ends[turn][warp] = upto;
        __syncthreads();
        const double of_warps = scanned(lane < BLOCK_WARPS ? ends[turn][lane] : 1.0, lane);
        const double earlier = __shfl_sync(0xffffffffu, of_warps, warp > 0 ? warp - 1 : 0);
        const double in_warp = __shfl_up_sync(0xffffffffu, upto, 1);
        multiply(own, before * ((warp > 0 ? earlier : 1.0) * (lane > 0 ? in_warp : 1.0)), all);
#pragma unroll
        for (int i = 0; i < run; ++i) kept[place(run * lane + i)] = own[i].raw;
        __syncwarp();
#pragma unroll
        for (int i = 0; i < run; ++i) {
            const int at = start + warp * 32 * run + 32 * i + lane;
            if (at < count) to[at] = kept[place(32 * i + lane)];
        }
        before *= __shfl_sync(0xffffffffu, of_warps, 31);
        __syncwarp();
    }
}
