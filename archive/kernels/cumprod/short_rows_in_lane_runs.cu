/*---
op = "cumprod"
note = "16-bit types, a warp per short row and no barrier: a lane's packs are neighbours, exchanged through shared memory, so that one scan by shuffles, in float64, serves the whole row; values are multiplied in float32, scaled where the products are small, and in float64 only where they leave the range"
when = "cols % 8 == 0 and cols >= 256 and cols <= 2048"
dtypes = ["bfloat16", "float16"]
specialize = ["run", "count"]

[knobs]
WARPS = [8, 2, 4]
HELD = [768, 1024]

[let]
count = "cols // 8"
run = "ceil_div(count, 32)"

[[launch]]
entry = "cumprod_short_row"
grid = ["ceil_div(rows, WARPS)"]
block = ["32 * WARPS"]
args = ["x", "out", "rows"]
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

extern "C" __global__ void __launch_bounds__(32 * WARPS, HELD / (32 * WARPS))
cumprod_short_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    __shared__ uint4 packs[WARPS][32 * run + 4 * run];
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const uint4* from = reinterpret_cast<const uint4*>(x) + row * count;
    uint4* to = reinterpret_cast<uint4*>(out) + row * count;
    uint4* const kept = packs[threadIdx.x / 32];
    Pack own[run];
#pragma unroll
    for (int i = 0; i < run; ++i) {
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) own[i].values[j] = x_t(1.0f);
        if (32 * i + lane < count) own[i].raw = from[32 * i + lane];
    }
#pragma unroll
    for (int i = 0; i < run; ++i) kept[place(32 * i + lane)] = own[i].raw;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < run; ++i) own[i].raw = kept[place(run * lane + i)];
    const Product all = product(own);
    const double before = __shfl_up_sync(0xffffffffu, scanned(all.all, lane), 1);
    multiply(own, lane > 0 ? before : 1.0, all);
#pragma unroll
    for (int i = 0; i < run; ++i) kept[place(run * lane + i)] = own[i].raw;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < run; ++i) {
        if (32 * i + lane < count) to[32 * i + lane] = kept[place(32 * i + lane)];
    }
}
