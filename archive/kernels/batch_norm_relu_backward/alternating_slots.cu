/*---
op = "batch_norm_relu_backward"
note = "a persistent block, or several that meet, per channel; each has slots in shared memory for two sets, filled by cp.async and refilled as soon as a value of grad_x is written out, so that while a block sums one set and waits for the others the next is on its way; the gradient behind the activation replaces the one before it in its slot"
when = "height * width * itemsize(x) % 16 == 0"
specialize = ["area", "channels", "per_channel", "total", "threads", "parts", "share", "per_sm", "teams", "count"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]
PACKS = [4, 2, 8]
RESIDENT = [1024, 768, 1536]

[let]
area = "height * width"
count = "channels"
total = "batch * area * itemsize(x) // 16"
first_parts = "max(1, min(1, max(0, total * 96 - (KILOBYTES + 20) * 1024)) * ceil_div(total * 96, KILOBYTES * 1024))"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 96 + 2048))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["count * several", "parts", 2], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_of_sets"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 96"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
cooperative = true

[[launch]]
entry = "grad_of_sets"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 96"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "met", "arrived"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32;
extern __shared__ uint4 memory[];  // two halves, for two sets; each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

// Where a set begins, and where a piece of it lies from there: in the channel's row of each image.
__device__ __forceinline__ long long base(int set) { return set * (long long)area; }
__device__ __forceinline__ long long place(int chunk) {
    constexpr int PIECES = area / VEC;
    return chunk / PIECES * (long long)(channels * area) + chunk % PIECES * VEC;
}

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Two sums over the block, in every thread; `turn` alternates, so that one barrier suffices.
__device__ __forceinline__ void sum_of_block(double& a, double& b, int turn) {
    a = sum_of_warp(a), b = sum_of_warp(b);
    if constexpr (WARPS > 1) {
        __shared__ double2 sums[2][WARPS];
        if (threadIdx.x % 32 == 0) sums[turn][threadIdx.x / 32] = make_double2(a, b);
        __syncthreads();
        a = 0.0, b = 0.0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) a += sums[turn][warp].x, b += sums[turn][warp].y;
    }
}

// The sums of all blocks of a set, in every thread.
__device__ __forceinline__ void sum_of_parts(double* met, int* arrived, int part, double& a, double& b, int turn) {
    __shared__ double2 joint[2];
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            met[2 * part] = a, met[2 * part + 1] = b;
            __threadfence();
            atomicAdd(arrived, 1);
            while (atomicAdd(arrived, 0) < parts) {}
            __threadfence();
        }
        __syncwarp();
        const volatile double* of = met;
        a = 0.0, b = 0.0;
        for (int p = threadIdx.x; p < parts; p += 32) a += of[2 * p], b += of[2 * p + 1];
        a = sum_of_warp(a), b = sum_of_warp(b);
        if (threadIdx.x == 0) joint[turn] = make_double2(a, b);
    }
    __syncthreads();
    a = joint[turn].x, b = joint[turn].y;
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
grad_of_sets(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ out, const float* __restrict__ mean,
             const float* __restrict__ rstd, const float* __restrict__ weight, x_t* __restrict__ grad_x,
             float* __restrict__ grad_weight, float* __restrict__ grad_bias, double* met, int* arrived) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    int set = blockIdx.x / parts;
    const auto request = [&](uint4* to, long long from) {
        fetch(to, grad_out + from), fetch(to + share, x + from);
        fetch(to + 2 * share, out + from);
    };
    for (int half = 0; half < 2; ++half) {
        const int of = set + half * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own && of < count; slot += threads) {
            request(memory + half * 3 * share + slot, base(of) + place(first + slot));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float next_centre = mean[set], next_scale = rstd[set];
    for (int turn = 0; set < count; set += teams, turn ^= 1) {
        uint4* const grads = memory + turn * 3 * share;
        const uint4* const values = grads + share;
        const float centre = next_centre, scale = next_scale, gain = weight[set];
        if (set + teams < count) next_centre = mean[set + teams], next_scale = rstd[set + teams];
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        double plain = 0.0, along = 0.0;  // what is far from zero all but cancels
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack grad, some;
            grad.raw = grads[slot], some.raw = values[slot];
            Pack made;
            made.raw = (values + share)[slot];
#pragma unroll
            for (int j = 0; j < VEC; ++j) grad.at[j] = float(made.at[j]) <= 0.0f ? x_t(0.0f) : grad.at[j];
            grads[slot] = grad.raw;
            float few = 0.0f, others = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float one = float(grad.at[j]);
                few += one;
                others = fmaf(one, float(some.at[j]) - centre, others);
            }
            plain += few, along += others;
        }
        sum_of_block(plain, along, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, plain, along, turn);
        }
        along *= scale;
        if (part == 0 && threadIdx.x == 0) grad_weight[set] = float(along), grad_bias[set] = float(plain);
        const float shared = float(plain / per_channel), slope = scale * float(along / per_channel), factor = scale * gain;
        const int next = set + 2 * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            const long long at = place(first + slot);
            Pack grad, some;
            grad.raw = grads[slot], some.raw = values[slot];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = factor * (float(grad.at[j]) - shared - (float(some.at[j]) - centre) * slope);
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(grad_x + base(set) + at), some.raw);
            if (next < count) request(grads + slot, base(next) + at);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
