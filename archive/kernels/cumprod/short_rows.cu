/*---
op = "cumprod"
note = "a warp per short row, several rows a block and no barrier: a lane has a few 16-byte packs, whose products are scanned in float64 by shuffles; 16-bit values are multiplied in float32 inside a pack, and again in float64 only where that leaves the range"
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

struct alignas(16) Pack { x_t values[WIDTH]; };

// Products up to and including each lane's own.
__device__ __forceinline__ double scanned(double value, int lane) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, value, step);
        if (lane >= step) value *= other;
    }
    return value;
}

// Whether float32 lost nothing but digits at its end; not so for zero, whose sign and whose NaN are left to float64.
__device__ __forceinline__ bool in_range(float least, float most) { return least > 1e-36f && most < 1e38f; }

__device__ __forceinline__ double product(const Pack& pack) {
    if constexpr (sizeof(x_t) == 2) {
        float all = float(pack.values[0]), least = fabsf(all), most = least;
#pragma unroll
        for (int j = 1; j < WIDTH; ++j) {
            all *= float(pack.values[j]);
            least = fminf(least, fabsf(all)), most = fmaxf(most, fabsf(all));
        }
        if (in_range(least, most) && all == all) return double(all);
    }
    double all = 1.0;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) all *= double(float(pack.values[j]));
    return all;
}

// The products up to each value, given that of all before the pack.
__device__ __forceinline__ Pack products(const Pack& pack, double before) {
    Pack result;
    if constexpr (sizeof(x_t) == 2) {
        float all = float(before), least = fabsf(all), most = least;
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            all *= float(pack.values[j]);
            least = fminf(least, fabsf(all)), most = fmaxf(most, fabsf(all));
            result.values[j] = x_t(all);
        }
        if (in_range(least, most) && all == all) return result;
    }
    double all = before;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) result.values[j] = x_t(float(all *= double(float(pack.values[j]))));
    return result;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
cumprod_short_row(const x_t* __restrict__ x, out_t* __restrict__ out, int rows) {
    const int lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= rows) return;  // the whole warp leaves
    const Pack* from = reinterpret_cast<const Pack*>(x) + row * 32 * packs;
    Pack* to = reinterpret_cast<Pack*>(out) + row * 32 * packs;
    Pack own[packs];
    double upto[packs];
#pragma unroll
    for (int i = 0; i < packs; ++i) own[i] = from[32 * i + lane];
#pragma unroll
    for (int i = 0; i < packs; ++i) upto[i] = scanned(product(own[i]), lane);
    double before = 1.0;  // of all runs up to here
#pragma unroll
    for (int i = 0; i < packs; ++i) {
        const double in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
        to[32 * i + lane] = products(own[i], before * (lane > 0 ? in_run : 1.0));
        before *= __shfl_sync(0xffffffffu, upto[i], 31);
    }
}
