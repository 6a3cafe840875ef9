/*---
op = "cumprod"
note = "one block per row in tiles of 16-byte packs that stay in registers, one barrier a tile, and the next tile is loaded meanwhile; products of packs are scanned in float64, whose range does not end before float32's result does; 16-bit values are multiplied in float32 inside a pack, and again in float64 only where that leaves the range"
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

__device__ __forceinline__ void load(Pack* packs, const Pack* row, int start, int count) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int at = start + i * THREADS + threadIdx.x;
        if (at < count) {
            packs[i] = row[at];
        } else {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) packs[i].values[j] = x_t(1.0f);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
cumprod_row(const x_t* __restrict__ x, out_t* __restrict__ out, int cols) {
    __shared__ double ends[2][32];  // of the runs, this tile's and the last one's in turn
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, count = cols / WIDTH;
    const Pack* from = reinterpret_cast<const Pack*>(x + (long long)blockIdx.x * cols);
    Pack* to = reinterpret_cast<Pack*>(out + (long long)blockIdx.x * cols);
    double before = 1.0;  // of all tiles up to here
    Pack next[PACKS];
    load(next, from, 0, count);
    for (int start = 0, turn = 0; start < count; start += 1024, turn ^= 1) {
        Pack own[PACKS];
        double upto[PACKS];
#pragma unroll
        for (int i = 0; i < PACKS; ++i) own[i] = next[i];
        if (start + 1024 < count) load(next, from, start + 1024, count);
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            upto[i] = scanned(product(own[i]), lane);
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
            if (at < count) to[at] = products(own[i], first);
        }
        before *= __shfl_sync(0xffffffffu, runs, 31);
    }
}
