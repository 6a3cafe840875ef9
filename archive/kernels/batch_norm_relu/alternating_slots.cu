/*---
op = "batch_norm_relu"
note = "a persistent block, or several that meet, per channel; each has slots in shared memory for two sets, filled by cp.async and refilled as soon as a value is written out, so that while a block sums one set and waits for the others the next is on its way; the statistics of each thread in two passes over its slots, round the mean of its own values, so that an outlier spoils no digits; joined in double; then the activation"
when = "height * width * itemsize(x) % 16 == 0"
specialize = ["area", "channels", "per_channel", "total", "threads", "parts", "share", "per_sm", "teams", "count"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]
PACKS = [8, 4, 16]
RESIDENT = [1024, 768, 1536]

[let]
area = "height * width"
count = "channels"
total = "batch * area * itemsize(x) // 16"
first_parts = "max(1, min(1, max(0, total * 32 - (KILOBYTES + 20) * 1024)) * ceil_div(total * 32, KILOBYTES * 1024))"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 32 + 2048))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["count * several", "parts", 2], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "batch_norm_relu_sets"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 32"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
cooperative = true

[[launch]]
entry = "batch_norm_relu_sets"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 32"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, SLOTS = (share + threads - 1) / threads;
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

__device__ __forceinline__ float finite(float value) { return fabsf(value) <= 3.402823466e+38f ? value : 0.0f; }

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

__device__ __forceinline__ float rectified(float value) { return value < 0.0f ? 0.0f : value; }

extern "C" __global__ void __launch_bounds__(threads, per_sm)
batch_norm_relu_sets(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out,
                float* __restrict__ new_running_mean, float* __restrict__ new_running_var, float* __restrict__ mean,
                float* __restrict__ rstd, double* met, int* arrived, double momentum, float eps) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    int set = blockIdx.x / parts;
    for (int half = 0; half < 2; ++half) {
        const int of = set + half * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own && of < count; slot += threads) {
            fetch(memory + half * share + slot, x + base(of) + place(first + slot));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float next_pivot = float(x[base(set)]);  // of a set far from zero, the sums keep their last digits
    for (int turn = 0; set < count; set += teams, turn ^= 1) {
        uint4* const held = memory + turn * share;
        const float pivot = finite(next_pivot);
        if (set + teams < count) next_pivot = float(x[base(set + teams)]);
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        double sum = 0.0, squares = 0.0;
        {
            const int values = int(threadIdx.x) < own ? (own - int(threadIdx.x) + threads - 1) / threads * VEC : 0;
            float near = 0.0f, off = 0.0f, spread = 0.0f;
            constexpr float PART = 1.0f / (VEC * SLOTS);  // applied before adding: great values do not overflow
#pragma unroll 4
            for (int slot = threadIdx.x; slot < own; slot += threads) {
                Pack some;
                some.raw = held[slot];
                float few = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; ++j) few = fmaf(float(some.at[j]), PART, few);
                near += few;
            }
            near = values > 0 ? finite(near * (float(VEC * SLOTS) / values)) : 0.0f;  // about the mean of the thread's values
#pragma unroll 4
            for (int slot = threadIdx.x; slot < own; slot += threads) {
                Pack some;
                some.raw = held[slot];
                float few = 0.0f, others = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const float one = float(some.at[j]) - near;
                    few += one;
                    others = fmaf(one, one, others);
                }
                off += few, spread += others;
            }
            if (values > 0) {  // the thread's sums, round its own mean at first and then round the pivot
                const double lies = double(off) / values, away = double(near) - double(pivot) + lies;
                sum = values * away;
                squares = double(spread) - values * lies * lies + values * away * away;
            }
        }
        sum_of_block(sum, squares, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, sum, squares, turn);
        }
        const double moved = sum / per_channel, middle = double(pivot) + moved;
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(squares / per_channel - moved * moved), variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) {
            const double exact = squares / per_channel - moved * moved;
            const double unbiased = (exact < 0.0 ? 0.0 : exact) * per_channel / (per_channel - 1);
            new_running_mean[set] = float((1.0 - momentum) * running_mean[set] + momentum * middle);
            new_running_var[set] = float((1.0 - momentum) * running_var[set] + momentum * unbiased);
            mean[set] = rough, rstd[set] = scale;
        }
        const float gain = scale * weight[set], start = fmaf(-lost, gain, bias[set]);
        const int next = set + 2 * teams;
#pragma unroll 4
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            const long long at = place(first + slot);
            Pack some;
            some.raw = held[slot];
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) result[j] = rectified(fmaf(float(some.at[j]) - rough, gain, start));
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(out + base(set) + at), some.raw);
            if (next < count) fetch(held + slot, x + base(next) + at);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}
