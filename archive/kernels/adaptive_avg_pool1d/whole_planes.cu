/*---
op = "adaptive_avg_pool1d"
note = "a block reads whole rows, as many as fill some kilobytes, in one stretch of 16-byte loads into shared memory, where as many lanes as a window deserves add it up"
when = "l * itemsize(x) <= 16384 or l % 8 == 0 and l * itemsize(x) <= 32768"
specialize = ["l", "ol", "planes", "lanes", "elements"]
require = ["elements * itemsize(x) <= 196608"]

[knobs]
KILOBYTES = [16, 8, 32]
LANE_SHARE = [8, 4, 16]
THREADS = [256, 128]
LOADS = [4, 2]

[let]
area = "l"
full = "16 // itemsize(x)"
unit = "max(1, full // (1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8))))"
planes = "unit * max(1, KILOBYTES * 1024 // (unit * area * itemsize(x)))"
elements = "planes * area"
win = "ceil_div(l, ol)"
lanes = "1 + min(1, (win - 1) // LANE_SHARE) + 2 * min(1, (win - 1) // (2 * LANE_SHARE)) + 4 * min(1, (win - 1) // (4 * LANE_SHARE)) + 8 * min(1, (win - 1) // (8 * LANE_SHARE)) + 16 * min(1, (win - 1) // (16 * LANE_SHARE))"

[[launch]]
entry = "pool"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "ceil_div(elements * itemsize(x), 16) * 16"
args = ["x", "out", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

constexpr int D = 1, H = 1, W = l, OD = 1, OH = 1, OW = ol, ALL = D * H * W, OUT = OD * OH * OW;
extern __shared__ uint4 memory[];

// The window of output o of `count` along an axis.
__device__ __forceinline__ int begin_of(int o, int size, int count) { return int((long long)o * size / count); }
__device__ __forceinline__ int end_of(int o, int size, int count) {
    return int(((long long)(o + 1) * size + count - 1) / count);
}

extern "C" __global__ void __launch_bounds__(THREADS)
pool(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    x_t* const held = reinterpret_cast<x_t*>(memory);
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), count = own * ALL, vectors = count / VEC;
    const x_t* from = x + first * ALL;  // a multiple of 16 bytes
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
    for (int begin = 0; begin < own * OUT; begin += THREADS / lanes) {
        const int at = begin + threadIdx.x / lanes, plane = at / OUT, place = at % OUT;
        float sum = 0.0f;
        int size = 1;
        if (plane < own) {
            const int z = place / (OH * OW), y = place / OW % OH, col = place % OW;
            const int front = begin_of(z, D, OD), top = begin_of(y, H, OH), left = begin_of(col, W, OW);
            const int deep = end_of(z, D, OD) - front, high = end_of(y, H, OH) - top, wide = end_of(col, W, OW) - left;
            const x_t* window = held + plane * ALL + (front * H + top) * W + left;
            size = deep * high * wide;
            for (int i = lane; i < size; i += lanes) {
                const int line = i / wide;
                sum += float(window[(line / high * H + line % high) * W + i % wide]);
            }
        }
#pragma unroll
        for (int step = lanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (plane < own && lane == 0) out[first * OUT + at] = out_t(sum / size);
    }
}
