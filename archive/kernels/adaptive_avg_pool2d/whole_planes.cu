/*---
op = "adaptive_avg_pool2d"
note = "a block reads whole planes, as many as fill some kilobytes, in one stretch of 16-byte loads into shared memory, where as many lanes as a window deserves add it up"
when = "h * w * itemsize(x) <= 16384"
specialize = ["h", "w", "oh", "ow", "planes", "lanes", "elements"]
require = ["elements * itemsize(x) <= 196608"]

[knobs]
KILOBYTES = [16, 8, 32]
LANE_SHARE = [8, 4, 16]
THREADS = [256, 128]
LOADS = [4, 2]

[let]
area = "h * w"
full = "16 // itemsize(x)"
unit = "max(1, full // (1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8))))"
planes = "unit * max(1, KILOBYTES * 1024 // (unit * area * itemsize(x)))"
elements = "planes * area"
win = "ceil_div(h, oh) * ceil_div(w, ow)"
lanes = "1 + min(1, (win - 1) // LANE_SHARE) + 2 * min(1, (win - 1) // (2 * LANE_SHARE)) + 4 * min(1, (win - 1) // (4 * LANE_SHARE)) + 8 * min(1, (win - 1) // (8 * LANE_SHARE)) + 16 * min(1, (win - 1) // (16 * LANE_SHARE))"

[[launch]]
entry = "pool_planes"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "ceil_div(elements * itemsize(x), 16) * 16"
args = ["x", "out", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

extern __shared__ uint4 memory[];

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
pool_planes(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    x_t* const held = reinterpret_cast<x_t*>(memory);
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), count = own * (h * w), vectors = count / VEC;
    const x_t* from = x + first * (h * w);  // a multiple of 16 bytes
    for (int begin = threadIdx.x; begin < vectors; begin += THREADS * LOADS) {
        Vec some[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * THREADS < vectors) some[l] = reinterpret_cast<const Vec*>(from)[begin + l * THREADS];
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (begin + l * THREADS < vectors) reinterpret_cast<Vec*>(held)[begin + l * THREADS] = some[l];
        }
    }
    for (int at = vectors * VEC + threadIdx.x; at < count; at += THREADS) held[at] = from[at];
    __syncthreads();
    const int lane = threadIdx.x % lanes;
    // All threads of a warp go round as often, for the sums over lanes.
    for (int begin = 0; begin < own * (oh * ow); begin += THREADS / lanes) {
        const int at = begin + threadIdx.x / lanes, plane = at / (oh * ow), place = at % (oh * ow);
        float sum = 0.0f;
        int size = 1;
        if (plane < own) {
            const int top = begin_of(place / ow, h, oh), high = end_of(place / ow, h, oh) - top;
            const int left = begin_of(place % ow, w, ow), wide = end_of(place % ow, w, ow) - left;
            const x_t* window = held + plane * (h * w) + top * w + left;
            size = high * wide;
            for (int i = lane; i < size; i += lanes) sum += float(window[i / wide * w + i % wide]);
        }
#pragma unroll
        for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (plane < own && lane == 0) out[first * (oh * ow) + at] = out_t(sum / size);
    }
}
