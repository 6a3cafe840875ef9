/*---
op = "clip_grad_norm"
note = "one launch: all blocks are resident, add up squares, and meet once; what a block read last waits in its registers, what it read before that in its shared memory, and what came just before that in the L2 cache, which is kept for it: all other loads and the stores pass through as streams"
specialize = ["blocks", "rounds", "span", "held_rounds", "kept_rounds", "passed_rounds"]
require = ["THREADS * LOADS * KEPT * 16 <= 212992"]

[knobs]
HELD = [2, 1]
KEPT = [3, 1, 2]
CACHED = [4, 2, 6, 8]
LOADS = [4, 2]
THREADS = [1024, 512]

[let]
blocks = "min(sms, max(1, ceil_div(n * itemsize(grad), 16 * THREADS * LOADS)))"
rounds = "ceil_div(n * itemsize(grad) // 16, blocks * THREADS * LOADS)"
span = "rounds * LOADS * blocks * THREADS"
held_rounds = "min(HELD, rounds)"
kept_rounds = "min(KEPT, rounds - held_rounds)"
passed_rounds = "rounds - held_rounds - kept_rounds"

[workspace]
partial = { shape = ["blocks"], dtype = "float64" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "clip"
grid = ["blocks"]
block = ["THREADS"]
shared = "THREADS * LOADS * KEPT * 16"
args = ["grad", "partial", "arrived", "out", "norm", "n", "max_norm"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(span + 0);
constexpr int VEC = 16 / sizeof(grad_t);
struct alignas(16) Vec { grad_t at[VEC]; };

extern __shared__ uint4 memory[];

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ Vec scaled(const Vec& v, float scale) {
    Vec result;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) put(&result.at[e], float(v.at[e]) * scale, float(v.at[e + 1]) * scale);
    return result;
}

// A stream does not displace what the L2 cache holds.
__device__ __forceinline__ Vec load(const grad_t* from, long long at, bool stream) {
    const uint4* const place = reinterpret_cast<const uint4*>(from) + at;
    const uint4 held = stream ? __ldcs(place) : *place;
    return *reinterpret_cast<const Vec*>(&held);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
clip(const grad_t* __restrict__ grad, double* partial, int* arrived, out_t* __restrict__ out, float* __restrict__ norm,
     long long n, float max_norm) {
    __shared__ double sums[THREADS / 32];
    Vec* const kept = reinterpret_cast<Vec*>(memory);
    const index vectors = index(n / VEC);
    const int own = blockIdx.x * THREADS + threadIdx.x;
    const bool of_rest = own < int(n % VEC);  // one of the few values behind the last whole piece
    const auto place = [=](int round, int l) {
        return ((index)round * LOADS + l) * (blocks * THREADS) + index(blockIdx.x * THREADS + threadIdx.x);
    };
    double sum = 0.0;
    const auto add = [&](const Vec& of) {
        float some = 0.0f;
#pragma unroll
        for (int e = 0; e < VEC; ++e) some = fmaf(float(of.at[e]), float(of.at[e]), some);
        sum += some;
    };
#pragma unroll 1
    for (int round = 0; round < passed_rounds + kept_rounds; ++round) {
        Vec some[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            some[l] = Vec{};
            if (place(round, l) < vectors) some[l] = load(grad, place(round, l), round < passed_rounds - CACHED);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            add(some[l]);
            if (round >= passed_rounds) kept[((round - passed_rounds) * LOADS + l) * THREADS + threadIdx.x] = some[l];
        }
    }
    uint4 held[held_rounds + 1][LOADS];
#pragma unroll
    for (int r = 0; r < held_rounds; ++r) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            held[r][l] = make_uint4(0, 0, 0, 0);
            const index at = place(passed_rounds + kept_rounds + r, l);
            if (at < vectors) held[r][l] = __ldcs(reinterpret_cast<const uint4*>(grad) + at);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) add(*reinterpret_cast<const Vec*>(&held[r][l]));
    }
    if (of_rest) sum += float(grad[(long long)vectors * VEC + own]) * float(grad[(long long)vectors * VEC + own]);
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0.0;
        for (int warp = 0; warp < THREADS / 32; ++warp) sum += sums[warp];
        partial[blockIdx.x] = sum;
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < blocks) {}
        __threadfence();
    }
    __syncthreads();
    sum = 0.0;  // every warp adds up the blocks' sums, in the same order
    const volatile double* all = partial;
    for (int block = threadIdx.x % 32; block < blocks; block += 32) sum += all[block];
    const float root = sqrtf(float(sum_of_warp(sum)));
    const float ratio = max_norm / (root + 1e-6f);
    const float scale = ratio > 1.0f ? 1.0f : ratio;  // unlike fminf, this keeps NaN
    if (blockIdx.x == 0 && threadIdx.x == 0) norm[0] = root;
    if (of_rest) out[(long long)vectors * VEC + own] = out_t(float(grad[(long long)vectors * VEC + own]) * scale);
    const unsigned nothing = n < 0 ? 1 : 0;
    const auto store = [&](index at, const Vec& of) {
        if (at >= vectors) return;
        const Vec result = scaled(of, scale);
        __stcs(reinterpret_cast<uint4*>(out) + at, *reinterpret_cast<const uint4*>(&result));
    };
#pragma unroll
    for (int r = 0; r < held_rounds; ++r) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            // An exclusive or with nothing: otherwise the compiler keeps twice as many registers of numbers.
            const uint4 same = make_uint4(held[r][l].x ^ nothing, held[r][l].y ^ nothing, held[r][l].z ^ nothing, held[r][l].w ^ nothing);
            store(place(passed_rounds + kept_rounds + r, l), *reinterpret_cast<const Vec*>(&same));
        }
    }
#pragma unroll 1
    for (int r = 0; r < kept_rounds; ++r) {
#pragma unroll
        for (int l = 0; l < LOADS; ++l) store(place(passed_rounds + r, l), kept[(r * LOADS + l) * THREADS + threadIdx.x]);
    }
#pragma unroll 1
    for (int round = passed_rounds - 1; round >= 0; --round) {
        Vec some[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (place(round, l) < vectors) some[l] = load(grad, place(round, l), true);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) store(place(round, l), some[l]);
    }
}
