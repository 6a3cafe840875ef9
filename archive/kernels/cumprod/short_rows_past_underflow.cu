/*---
op = "cumprod"
note = "a warp per short row, several rows a block and no barrier: a lane has a few 16-byte packs, whose products are scanned in float64 by shuffles; 16-bit values are multiplied in float32, and in float64 only where that leaves the range: not where all that follow are zero, as soon in most rows"
when = "cols * itemsize(x) % 512 == 0 and cols * itemsize(x) <= 4096"
specialize = ["packs"]

[knobs]
WARPS = [8, 2, 4]

[let]
packs = "cols * itemsize(x) // 512"

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

// Products up to and including each lane's own.
__device__ __forceinline__ double scanned(double value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value *= other;
    }
    return value;
}

// What a pack is multiplied to, and the least and the greatest product on the way, without their signs. The least is
// zero where float32 lost more than digits at its end; so the sign and the NaN of a zero are left to float64.
struct Product { double all; float least, most; };

__device__ __forceinline__ Product product(const Pack& pack) {
    if constexpr (sizeof(x_t) == 2) {
        float all = float(pack.values[0]), least = fabsf(all), most = least;
#pragma unroll
        for (int j = 1; j < WIDTH; ++j) {
            all *= float(pack.values[j]);
            least = fminf(least, fabsf(all)), most = fmaxf(most, fabsf(all));
        }
        if (least > 1.2e-38f && most < 3e38f && all == all) return {double(all), least, most};
    }
    double all = 1.0;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) all *= double(float(pack.values[j]));
    return {all, 0.0f, INFINITY};
}

// The products up to each value, given that of all before the pack.
__device__ __forceinline__ uint4 products(const Pack& pack, double before, float least, float most) {
    Pack result;
    if constexpr (sizeof(x_t) == 2) {
        float all = float(before);
        const float size = fabsf(all);
        // In float32's range throughout, or too small throughout for any result but zero.
        if ((size * least > 1.2e-38f && size * most < 3e38f && size > 1.2e-38f) || fabs(before) * most < 1e-46) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) result.values[j] = x_t(all *= float(pack.values[j]));
            return result.raw;
        }
    }
    double all = before;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.values[j] = x_t(float(all *= double(float(pack.values[j]))));
    return result.raw;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
cumprod_short_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const uint4* from = reinterpret_cast<const uint4*>(x) + row * 32 * packs;
    uint4* to = reinterpret_cast<uint4*>(out) + row * 32 * packs;
    Pack own[packs];
    double upto[packs];
    float least[packs], most[packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) own[i].raw = from[32 * i + lane];
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const Product all = product(own[i]);
        least[i] = all.least, most[i] = all.most;
        upto[i] = scanned(all.all, lane);
    }
    double before = 1.0;  // of all runs up to here
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const double in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
        to[32 * i + lane] = products(own[i], before * (lane > 0 ? in_run : 1.0), least[i], most[i]);
        before *= __shfl_sync(0xffffffffu, upto[i], 31);
    }
}
