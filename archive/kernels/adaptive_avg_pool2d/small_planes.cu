/*---
op = "adaptive_avg_pool2d"
note = "the mean of small planes: 16-byte loads through many planes, each added up at once in registers, as the part of the plane that it begins in and the part of the next; then a thread per plane adds up the few parts of it in shared memory"
when = "oh == 1 and ow == 1 and h * w * itemsize(x) >= 16 and h * w * itemsize(x) <= 1024"
specialize = ["area", "planes", "packs"]
require = ["packs * 8 <= 196608"]

[knobs]
LOADS = [4, 2, 8]
THREADS = [256, 128]

[let]
area = "h * w"
full = "16 // itemsize(x)"
unit = "max(1, full // (1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8))))"
planes = "unit * max(1, THREADS * LOADS // (unit * area // full))"
packs = "planes * area // full"

[[launch]]
entry = "means"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "packs * 8"
args = ["x", "out", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), ROUNDS = (packs + THREADS - 1) / THREADS;
struct alignas(16) Pack { x_t at[VEC]; };
extern __shared__ float2 parts[];  // of each pack, in the plane it begins in and in the next

extern "C" __global__ void __launch_bounds__(THREADS)
means(const x_t* __restrict__ x, out_t* __restrict__ out, long long all) {
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), count = own * area;
    const x_t* const from = x + first * area;  // a multiple of 16 bytes
    Pack held[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int at = (i * THREADS + threadIdx.x) * VEC;
        if (at + VEC <= count) {
            held[i] = *reinterpret_cast<const Pack*>(from + at);
        } else {
#pragma unroll
            for (int e = 0; e < VEC; ++e) held[i].at[e] = at + e < count ? from[at + e] : x_t(0.0f);
        }
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int at = (i * THREADS + threadIdx.x) * VEC, left = area - at % area;
        float here = 0.0f, next = 0.0f;
#pragma unroll
        for (int e = 0; e < VEC; ++e) {
            if (e < left) here += float(held[i].at[e]);
            else next += float(held[i].at[e]);
        }
        if (at < count) parts[i * THREADS + threadIdx.x] = make_float2(here, next);
    }
    __syncthreads();
    for (int plane = threadIdx.x; plane < own; plane += THREADS) {
        const int begin = plane * area, end = begin + area;
        float sum = begin % VEC == 0 ? parts[begin / VEC].x : parts[begin / VEC].y;
        for (int pack = begin / VEC + 1; pack * VEC < end; ++pack) sum += parts[pack].x;
        out[first + plane] = out_t(sum / area);
    }
}
