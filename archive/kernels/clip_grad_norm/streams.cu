/*---
op = "clip_grad_norm"
note = "one launch: all blocks are resident, add up squares, and meet once; what a block read last waits in its shared memory, and what it read just before that in the L2 cache, which is kept for it: all other loads and the stores pass through as streams"
specialize = ["blocks", "rounds"]
require = ["THREADS * LOADS * KEPT * 16 <= 212992"]

[knobs]
KEPT = [3, 1, 2]
CACHED = [3, 2, 4, 6]
LOADS = [4, 2, 8]
THREADS = [1024, 512]

[let]
blocks = "min(sms, max(1, ceil_div(n * itemsize(grad), 16 * THREADS * LOADS)))"
rounds = "ceil_div(n * itemsize(grad) // 16, blocks * THREADS * LOADS)"

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
    const long long vectors = n / VEC, tail = vectors * VEC + (long long)blockIdx.x * THREADS + threadIdx.x;
    const auto place = [=](int round, int l) {
        return ((long long)round * LOADS + l) * (blocks * THREADS) + blockIdx.x * THREADS + threadIdx.x;
    };
    double sum = 0.0;
    for (int round = 0; round < rounds; ++round) {
        Vec held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            held[l] = Vec{};
            if (place(round, l) < vectors) held[l] = load(grad, place(round, l), round < rounds - KEPT - CACHED);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            float some = 0.0f;
#pragma unroll
            for (int e = 0; e < VEC; ++e) some = fmaf(float(held[l].at[e]), float(held[l].at[e]), some);
            sum += some;
            if (round >= rounds - KEPT) kept[(round % KEPT * LOADS + l) * THREADS + threadIdx.x] = held[l];
        }
    }
    if (tail < n) sum += float(grad[tail]) * float(grad[tail]);
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
    if (tail < n) out[tail] = out_t(float(grad[tail]) * scale);
    for (int round = rounds - 1; round >= 0; --round) {
        Vec held[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (round >= rounds - KEPT) held[l] = kept[(round % KEPT * LOADS + l) * THREADS + threadIdx.x];
            else if (place(round, l) < vectors) held[l] = load(grad, place(round, l), true);
        }
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (place(round, l) >= vectors) continue;
            const Vec result = scaled(held[l], scale);
            __stcs(reinterpret_cast<uint4*>(out) + place(round, l), *reinterpret_cast<const uint4*>(&result));
        }
    }
}
