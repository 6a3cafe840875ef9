/*---
op = "max_pool2d"
note = "for small planes of 16-bit values: a block brings several planes into shared memory, turns each value with its place into one word whose maximum is the first greatest value or the last NaN, takes maxima along rows and of those along columns, so that a window costs twice its side and a comparison one instruction, and writes pairs"
when = "h * w <= 2048 and kernel <= 16"
dtypes = ["bfloat16", "float16"]
specialize = ["kernel", "stride", "padding", "h", "w", "oh", "ow", "planes"]

[knobs]
KILOBYTES = [32, 16, 64]
THREADS = [256, 128, 512]

[let]
of_plane = "h * w * 6 + h * ow * 4"
planes = "8 * max(1, KILOBYTES * 1024 // (8 * of_plane))"

[[launch]]
entry = "max_pool_keys"
grid = ["ceil_div(n * c, planes)"]
block = ["THREADS"]
shared = "planes * of_plane"
args = ["x", "out", "indices", "n * c"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using Raw = unsigned short;
constexpr int AREA = h * w, OUT = oh * ow, PAIR = OUT % 2 == 0 ? 2 : 1;
extern __shared__ uint4 memory[];

template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };

// Greater for greater values, and for lower places among equal ones; of NaN, for higher places.
__device__ __forceinline__ unsigned key_of(Raw bits, int place) {
    const float value = float(*reinterpret_cast<const x_t*>(&bits));
    if (value != value) return 0xffff0000u | unsigned(place);
    if (value == 0.0f) bits = 0;
    const unsigned order = bits & 0x8000 ? 0xffffu & ~unsigned(bits) : bits | 0x8000u;
    return order << 16 | (0xffffu - place);
}

extern "C" __global__ void __launch_bounds__(THREADS)
max_pool_keys(const x_t* __restrict__ x, out_t* __restrict__ out, long long* __restrict__ indices, long long all) {
    Raw* const held = reinterpret_cast<Raw*>(memory);
    unsigned* const keys = reinterpret_cast<unsigned*>(held + planes * AREA);
    unsigned* const of_rows = keys + planes * AREA;
    const long long first = (long long)blockIdx.x * planes;
    const int own = int(min((long long)planes, all - first)), values = own * AREA;
    const Raw* const from = reinterpret_cast<const Raw*>(x) + first * AREA;
    for (int piece = threadIdx.x; piece < values / 8; piece += THREADS) {
        const unsigned at = (unsigned)__cvta_generic_to_shared(memory + piece);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from + piece * 8) : "memory");
    }
    for (int at = values / 8 * 8 + threadIdx.x; at < values; at += THREADS) held[at] = from[at];
    asm volatile("cp.async.commit_group;\ncp.async.wait_all;" ::: "memory");
    __syncthreads();
    for (int at = threadIdx.x; at < values; at += THREADS) keys[at] = key_of(held[at], at % AREA);
    __syncthreads();
    for (int at = threadIdx.x; at < own * h * ow; at += THREADS) {
        const int row = at / ow, left = at % ow * stride - padding;
        unsigned most = 0;  // less than any key
#pragma unroll
        for (int j = 0; j < kernel; ++j) {
            if (left + j >= 0 && left + j < w) most = max(most, keys[row * w + left + j]);
        }
        of_rows[at] = most;
    }
    __syncthreads();
    for (int at = threadIdx.x * PAIR; at < own * OUT; at += THREADS * PAIR) {
        Pack<Raw, PAIR> results;
        Pack<long long, PAIR> places;
#pragma unroll
        for (int v = 0; v < PAIR; ++v) {
            const int plane = (at + v) / OUT, line = (at + v) % OUT / ow, col = (at + v) % ow, top = line * stride - padding;
            unsigned most = 0;
#pragma unroll
            for (int i = 0; i < kernel; ++i) {
                if (top + i >= 0 && top + i < h) most = max(most, of_rows[(plane * h + top + i) * ow + col]);
            }
            const int place = int(most >= 0xffff0000u ? most & 0xffffu : 0xffffu - (most & 0xffffu));
            results.at[v] = held[plane * AREA + place], places.at[v] = place;
        }
        *reinterpret_cast<Pack<Raw, PAIR>*>(reinterpret_cast<Raw*>(out) + first * OUT + at) = results;
        *reinterpret_cast<Pack<long long, PAIR>*>(indices + first * OUT + at) = places;
    }
}
