/*---
op = "cumprod"
note = "one block per row in tiles of 16-byte packs that stay in registers, one barrier a tile, and the next tile is loaded meanwhile; products of packs are scanned in float64; 16-bit values are multiplied in float32, and in float64 only where that leaves the range: not where all that follow are zero, as soon in most rows"
when = "cols * itemsize(x) % 16 == 0"

[knobs]
THREADS = [512, 256, 1024]

[[launch]]
entry = "cumprod_row"
grid = ["rows"]
block = ["THREADS"]
args = ["x", "out", "cols"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WIDTH = 16 / sizeof(x_t);
constexpr int WARPS = THREADS / 32;
constexpr int PACKS = 32 / WARPS;  // of each thread; so a tile has 32 runs of 32 packs, one for each lane

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

__device__ __forceinline__ void load(uint4* packs, const uint4* row, int start, int count) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int at = start + i * THREADS + threadIdx.x;
        if (at < count) {
            packs[i] = row[at];
        } else {
            Pack none;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) none.values[j] = x_t(1.0f);
            packs[i] = none.raw;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
cumprod_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ double ends[2][32];  // of the runs, this tile's and the last one's in turn
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = cols / WIDTH;
    const uint4* from = reinterpret_cast<const uint4*>(x + (long long)blockIdx.x * cols);
    uint4* to = reinterpret_cast<uint4*>(out + (long long)blockIdx.x * cols);
    double before = 1.0;  // of all tiles up to here
    uint4 next[PACKS];
    load(next, from, 0, count);
    for (int start = 0, turn = 0; start < count; start += 1024, turn ^= 1) {
        Pack own[PACKS];
        double upto[PACKS];
        float least[PACKS], most[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; ++i) own[i].raw = next[i];
        if (start + 1024 < count) load(next, from, start + 1024, count);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const Product all = product(own[i]);
            least[i] = all.least, most[i] = all.most;
            upto[i] = scanned(all.all, lane);
            if (lane == 31) ends[turn][i * WARPS + warp] = upto[i];
        }
        __syncthreads();
        const double runs = scanned(ends[turn][lane], lane);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int run = i * WARPS + warp;
            const double earlier = __shfl_sync(0xffffffffu, runs, run > 0 ? run - 1 : 0);
            const double in_run = __shfl_up_sync(0xffffffffu, upto[i], 1);
            const int at = start + i * THREADS + threadIdx.x;
            const double first = before * ((run > 0 ? earlier : 1.0) * (lane > 0 ? in_run : 1.0));
            if (at < count) to[at] = products(own[i], first, least[i], most[i]);
        }
        before *= __shfl_sync(0xffffffffu, runs, 31);
    }
}
