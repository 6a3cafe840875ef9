/*---
op = "softmax_backward"
note = "a persistent block, or several that meet, per row; each has slots in shared memory for two rows, filled by cp.async and refilled as soon as a value of grad_x is written out, so that while one row is summed the next is on its way; the sum is kept in two floats, because conversions to float64 are slow"
when = "cols * itemsize(out) % 16 == 0 and cols * itemsize(out) >= 2048"
specialize = ["cols", "total", "threads", "parts", "share", "per_sm", "teams"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [72, 54, 108, 144]
THREADS = [256, 128, 512]
PACKS = [4, 2, 8]
RESIDENT = [1024, 768, 1536]

[let]
total = "cols * itemsize(out) // 16"
first_parts = "ceil_div(total * 64, KILOBYTES * 1024)"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "max(1, min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 64 + 1536)))"
rounds = "ceil_div(rows, max(1, min(rows, sms * per_sm // first_parts)))"
teams = "ceil_div(rows, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["rows * several", "parts"], dtype = "float64" }
arrived = { shape = ["rows * several"], dtype = "int32", zero = true }

[[launch]]
entry = "softmax_backward_by_turns"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 64"
args = ["grad_out", "out", "grad_x", "met", "arrived", "rows"]
cooperative = true

[[launch]]
entry = "softmax_backward_by_turns"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 64"
args = ["grad_out", "out", "grad_x", "met", "arrived", "rows"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(out_t), WARPS = threads / 32;
extern __shared__ uint4 memory[];  // two halves, for two rows; each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    out_t at[VEC];
};

__device__ __forceinline__ void fetch(uint4* to, const out_t* from) {
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

// Adds a product and keeps what is rounded away, so that little but rounding is not left where the gradient is about as large.
__device__ __forceinline__ void add(float& sum, float& rest, float a, float b) {
    const float product = __fmul_rn(a, b), next = __fadd_rn(sum, product), added = __fsub_rn(next, sum);
    rest += __fsub_rn(sum, __fsub_rn(next, added)) + __fsub_rn(product, added);
    if constexpr (sizeof(out_t) == 4) rest += fmaf(a, b, -product);  // in 16 bits products are exact
    sum = next;
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// The sum over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ double sum_of_block(double sum, int turn) {
    sum = sum_of_warp(sum);
    if constexpr (WARPS > 1) {
        __shared__ double sums[2][WARPS];
        if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) sum += sums[turn][warp];
    }
    return sum;
}

// The sum of all blocks of a row, in every thread.
__device__ __forceinline__ double sum_of_parts(double sum, double* met, int* arrived, int part, int turn) {
    __shared__ double joint[2];
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            met[part] = sum;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < parts) {}
            __threadfence();
        }
        __syncwarp();
        const volatile double* of = met;
        sum = 0.0;
        for (int p = threadIdx.x; p < parts; p += 32) sum += of[p];
        sum = sum_of_warp(sum);
        if (threadIdx.x == 0) joint[turn] = sum;
    }
    __syncthreads();
    return joint[turn];
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
softmax_backward_by_turns(const out_t* __restrict__ grad_out, const out_t* __restrict__ out, out_t* __restrict__ grad_x,
                          double* met, int* arrived, int rows) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    int row = blockIdx.x / parts;
    const auto place = [&](int of, int slot) { return of * (long long)cols + (first + slot) * VEC; };
    const auto request = [&](uint4* to, long long from) { fetch(to, grad_out + from), fetch(to + share, out + from); };
    for (int half = 0; half < 2; ++half) {
        const int of = row + half * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own && of < rows; slot += threads) {
            request(memory + half * 2 * share + slot, place(of, slot));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int turn = 0; row < rows; row += teams, turn ^= 1) {
        uint4* const grads = memory + turn * 2 * share;
        const uint4* const values = grads + share;
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        double all = 0.0;
        {
            float sum[2] = {}, rest[2] = {};
#pragma unroll 2
            for (int slot = threadIdx.x; slot < own; slot += threads) {
                Pack grad, held;
                grad.raw = grads[slot], held.raw = values[slot];
#pragma unroll
                for (int j = 0; j < VEC; ++j) add(sum[j % 2], rest[j % 2], float(grad.at[j]), float(held.at[j]));
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) all += fabsf(sum[i]) < INFINITY ? double(sum[i]) + double(rest[i]) : double(sum[i]);
        }
        all = sum_of_block(all, turn);
        if constexpr (parts > 1) all = sum_of_parts(all, met + (long long)row * parts, arrived + row, part, turn);
        const float sum = float(all), rest = fabsf(sum) < INFINITY ? float(all - double(sum)) : 0.0f;
        const int next = row + 2 * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack grad, held;
            grad.raw = grads[slot], held.raw = values[slot];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = float(held.at[j]) * (__fsub_rn(float(grad.at[j]), sum) - rest);
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&grad.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(grad_x + place(row, slot)), grad.raw);
            if (next < rows) request(grads + slot, place(next, slot));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
