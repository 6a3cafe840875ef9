/*---
op = "clip_grad_norm"
note = "one launch: all blocks are resident, add up squares, and meet once; the values come by cp.async through a ring that fills the shared memory, so that much is always on the way, and what the ring holds at the end stays there until the norm is known, as does what a thread read first, in its registers; then the ring runs backwards: a slot that has been written out takes what was read before, part of which the L2 cache still has"
specialize = ["blocks", "span", "held", "rounds", "depth"]
require = ["depth >= 2"]

[knobs]
HELD = [8, 4, 6]
LOADS = [2, 1]
THREADS = [1024, 512]

[let]
packs = "n * itemsize(grad) // 16"
blocks = "min(sms, max(1, ceil_div(packs, THREADS)))"
each = "ceil_div(packs, blocks * THREADS)"
held = "min(HELD * 1024 // THREADS, each)"
rounds = "ceil_div(each - held, LOADS)"
depth = "min(212992 // (THREADS * LOADS * 16), max(2, rounds))"
span = "(held + (rounds + depth) * LOADS) * blocks * THREADS"

[workspace]
partial = { shape = ["blocks"], dtype = "float64" }
arrived = { shape = [1], dtype = "int32", zero = true }

[[launch]]
entry = "clip"
grid = ["blocks"]
block = ["THREADS"]
shared = "depth * THREADS * LOADS * 16"
args = ["grad", "partial", "arrived", "out", "norm", "n", "max_norm"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using index = decltype(span + 0);
constexpr int VEC = 16 / sizeof(grad_t);
struct alignas(16) Vec { grad_t at[VEC]; };

extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

__device__ __forceinline__ void copy16(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

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

__device__ __forceinline__ float squares(const uint4& raw) {
    const Vec of = *reinterpret_cast<const Vec*>(&raw);
    float some = 0.0f;
#pragma unroll
    for (int e = 0; e < VEC; ++e) some = fmaf(float(of.at[e]), float(of.at[e]), some);
    return some;
}

// A stream, which does not displace what the L2 cache holds.
__device__ __forceinline__ void store(out_t* to, index at, const uint4& raw, float scale) {
    const Vec of = *reinterpret_cast<const Vec*>(&raw);
    Vec result;
#pragma unroll
    for (int e = 0; e < VEC; e += 2) put(&result.at[e], float(of.at[e]) * scale, float(of.at[e + 1]) * scale);
    __stcs(reinterpret_cast<uint4*>(to) + at, *reinterpret_cast<const uint4*>(&result));
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
clip(const grad_t* __restrict__ grad, double* partial, int* arrived, out_t* __restrict__ out, float* __restrict__ norm,
     long long n, float max_norm) {
    __shared__ double sums[THREADS / 32];
    const index vectors = index(n / VEC);
    const int own = blockIdx.x * THREADS + threadIdx.x;
    const bool of_rest = own < int(n % VEC);  // one of the few values behind the last whole piece
    const uint4* const from = reinterpret_cast<const uint4*>(grad);
    const auto place = [=](int round, int l) {
        return ((index)held + (index)round * LOADS + l) * (blocks * THREADS) + own;
    };
    const auto slot = [&](int round, int l) { return memory + (round % depth * LOADS + l) * THREADS + threadIdx.x; };
    const auto request = [&](int round) {
        if (round >= 0 && round < rounds) {
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                if (place(round, l) < vectors) copy16(slot(round, l), from + place(round, l));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    uint4 kept[held + 1];
#pragma unroll
    for (int h = 0; h < held; ++h) {
        const index at = (index)h * (blocks * THREADS) + own;
        kept[h] = at < vectors ? __ldcs(from + at) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (int round = 0; round < depth - 1; ++round) request(round);
    const long long rest = (long long)vectors * VEC + own;
    double sum = of_rest ? float(grad[rest]) * float(grad[rest]) : 0.0f;
#pragma unroll
    for (int h = 0; h < held; ++h) sum += squares(kept[h]);
#pragma unroll 1
    for (int round = 0; round < rounds; ++round) {
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 2) : "memory");
        request(round + depth - 1);
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (place(round, l) < vectors) sum += squares(*slot(round, l));
        }
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
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
    if (of_rest) out[rest] = out_t(float(grad[rest]) * scale);
#pragma unroll 1
    for (int round = rounds - 1; round >= 0; --round) {
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 1) : "memory");
#pragma unroll
        for (int l = 0; l < LOADS; ++l) {
            if (place(round, l) < vectors) store(out, place(round, l), *slot(round, l), scale);
        }
        request(round - depth);  // into the same slot
    }
    const unsigned nothing = n < 0 ? 1 : 0;
#pragma unroll
    for (int h = 0; h < held; ++h) {
        const index at = (index)h * (blocks * THREADS) + own;
        // An exclusive or with nothing: otherwise the compiler keeps twice as many registers of numbers.
        const uint4& of = kept[h];
        const uint4 same = make_uint4(of.x ^ nothing, of.y ^ nothing, of.z ^ nothing, of.w ^ nothing);
        if (at < vectors) store(out, at, same, scale);
    }
}
