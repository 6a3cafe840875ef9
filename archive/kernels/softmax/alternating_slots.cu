/*---
op = "softmax"
note = "persistent blocks, or several that meet for a long row: private slots in shared memory for two rows, filled by cp.async and refilled as soon as a value is written out, so that while one row is summed the next is on its way; only whole 16-byte pieces go through the slots, without any masks, and the few values before the first and behind the last piece of a row that begins anywhere are of one thread each"
when = "cols * itemsize(out) >= 4096"
specialize = ["cols", "threads", "parts", "share", "per_sm", "teams"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [72, 54, 108, 216]
THREADS = [256, 512, 1024]
PACKS = [8, 4, 16]
RESIDENT = [1024, 1536, 2048]

[let]
full = "16 // itemsize(out)"
total = "max(1, cols // full)"
first_parts = "ceil_div(total * 32, KILOBYTES * 1024)"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "max(1, min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 32 + 1536)))"
rounds = "ceil_div(rows, max(1, min(rows, sms * per_sm // first_parts)))"
teams = "ceil_div(rows, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["rows * several", "parts", 2], dtype = "float32" }
arrived = { shape = ["rows * several"], dtype = "int32", zero = true }

[[launch]]
entry = "softmax_by_turns"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 32"
args = ["x", "out", "met", "arrived", "rows"]
cooperative = true

[[launch]]
entry = "softmax_by_turns"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 32"
args = ["x", "out", "met", "arrived", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t), WARPS = threads / 32;
static_assert(threads >= 2 * VEC, "a thread for each value that is in no whole piece");
extern __shared__ uint4 memory[];  // two halves, for two rows; each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    out_t at[VEC];
};

// A block's whole pieces of a row, and the value in none that is this thread's.
struct Part {
    long long begin;  // of the first piece
    int own;
    long long extra;  // -1 if none

    __device__ __forceinline__ Part(int row, int part) {
        const long long start = row * (long long)cols;
        const int ahead = cols % VEC == 0 ? 0 : int(-start & (VEC - 1));
        const int head = ahead < cols ? ahead : cols, pieces = (cols - head) / VEC, tail = cols - head - pieces * VEC;
        begin = start + head + (long long)part * share * VEC;
        own = max(min(share, pieces - part * share), 0);
        extra = -1;
        if (cols % VEC == 0 || part > 0) return;
        const int at = threadIdx.x % VEC;
        if (threadIdx.x < VEC && at < head) extra = start + at;
        if (threadIdx.x / VEC == 1 && at < tail) extra = start + cols - tail + at;
    }
};

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
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

__device__ __forceinline__ float exp_of(float x) {
    if constexpr (sizeof(out_t) == 4) return expf(x);
    float result;  // without the steps that keep subnormal numbers
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.4426950408889634f));
    return result;
}

constexpr float LOWEST = -3.402823466e+38f;  // finite, so that the difference of two of them is no NaN

// The maximum over a warp and the sum of exponentials relative to it.
__device__ __forceinline__ void reduce_warp(float& most, float& sum) {
    float all = most;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, step));
    sum *= exp_of(most - all);
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    most = all;
}

// The same over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void reduce_block(float& most, float& sum, int turn) {
    reduce_warp(most, sum);
    if constexpr (WARPS > 1) {
        __shared__ float2 all[2][WARPS];
        const int lane = threadIdx.x % 32;
        if (lane == 0) all[turn][threadIdx.x / 32] = make_float2(most, sum);
        __syncthreads();
        const float2 one = lane < WARPS ? all[turn][lane] : make_float2(LOWEST, 0.0f);
        most = one.x, sum = one.y;
        reduce_warp(most, sum);
    }
}

// The same over all blocks of a row.
__device__ __forceinline__ void reduce_parts(float* met, int* arrived, int part, float& most, float& sum, int turn) {
    __shared__ float2 joint[2];
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            met[2 * part] = most, met[2 * part + 1] = sum;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < parts) {}
            __threadfence();
        }
        __syncwarp();
        const volatile float* of = met;
        most = LOWEST, sum = 0.0f;
        for (int p = threadIdx.x; p < parts; p += 32) {
            const float other = of[2 * p], higher = fmaxf(most, other);
            sum = sum * exp_of(most - higher) + of[2 * p + 1] * exp_of(other - higher);
            most = higher;
        }
        reduce_warp(most, sum);
        if (threadIdx.x == 0) joint[turn] = make_float2(most, sum);
    }
    __syncthreads();
    most = joint[turn].x, sum = joint[turn].y;
}

// The greatest of some values; NaN is left to the sum.
__device__ __forceinline__ float most_of(const Pack& some) {
    float most = float(some.at[0]);
#pragma unroll
    for (int j = 1; j < VEC; ++j) most = fmaxf(most, float(some.at[j]));
    return most;
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
softmax_by_turns(const x_t* __restrict__ x, out_t* __restrict__ out, float* met, int* arrived, int rows) {
    const int part = blockIdx.x % parts;
    int row = blockIdx.x / parts;
    const auto part_of = [&](int of) {
        Part result(of < rows ? of : row, part);
        if (of >= rows) result.own = 0, result.extra = -1;
        return result;
    };
    Part now = part_of(row), coming = part_of(row + teams);
#pragma unroll 4
    for (int slot = threadIdx.x; slot < now.own; slot += threads) fetch(memory + slot, x + now.begin + slot * VEC);
    asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll 4
    for (int slot = threadIdx.x; slot < coming.own; slot += threads) fetch(memory + share + slot, x + coming.begin + slot * VEC);
    asm volatile("cp.async.commit_group;" ::: "memory");
    float extra = now.extra >= 0 ? float(x[now.extra]) : 0.0f, coming_extra = coming.extra >= 0 ? float(x[coming.extra]) : 0.0f;
    for (int turn = 0; row < rows; row += teams, turn ^= 1) {
        uint4* const held = memory + turn * share;
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        float most = now.extra >= 0 ? fmaxf(extra, LOWEST) : LOWEST;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < now.own; slot += threads) {
            Pack some;
            some.raw = held[slot];
            most = fmaxf(most, most_of(some));
        }
        float sum = now.extra >= 0 ? exp_of(extra - most) : 0.0f;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < now.own; slot += threads) {
            Pack some;
            some.raw = held[slot];
            float few = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; ++j) few += exp_of(float(some.at[j]) - most);
            sum += few;
        }
        reduce_block(most, sum, turn);
        if constexpr (parts > 1) reduce_parts(met + (long long)row * parts * 2, arrived + row, part, most, sum, turn);
        const float inverse = 1.0f / sum;
        if (now.extra >= 0) out[now.extra] = out_t(exp_of(extra - most) * inverse);
        const Part then = part_of(row + 2 * teams);
        const float then_extra = then.extra >= 0 ? float(x[then.extra]) : 0.0f;
        const int both = min(now.own, then.own);
        int slot = threadIdx.x;
        const auto write = [&] {
            Pack some;
            some.raw = held[slot];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = exp_of(float(some.at[j]) - most) * inverse;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(out + now.begin + slot * VEC), some.raw);
        };
#pragma unroll 4
        for (; slot < both; slot += threads) {
            write();
            fetch(held + slot, x + then.begin + slot * VEC);
        }
        for (; slot < max(now.own, then.own); slot += threads) {  // of the last rows, and of one with a piece more
            if (slot < now.own) write();
            if (slot < then.own) fetch(held + slot, x + then.begin + slot * VEC);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        now = coming, extra = coming_extra;
        coming = then, coming_extra = then_extra;
    }
}
