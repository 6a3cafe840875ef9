/*---
op = "group_norm"
note = "a persistent block, or several that meet, per group of an image: cp.async fills private slots in shared memory, refilled as soon as they are written out; only whole 16-byte pieces go through the slots, without masks or divisions, and the few values before the first and behind the last piece of a set that begins anywhere are of one thread each; the statistics of a thread round the mean of its own values, joined in double"
when = "per_group * itemsize(x) >= 256"
specialize = ["threads", "parts", "share", "per_sm", "teams", "per", "count", "area", "in_group", "sets"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]
PACKS = [8, 4, 16]
RESIDENT = [1024, 768, 1536]

[let]
area = "height * width"
per = "per_group"
count = "batch * sets"
in_group = "channels // sets"
full = "16 // itemsize(x)"
total = "max(1, per // full)"
whole = "min(1, max(0, total * 16 - (KILOBYTES + 20) * 1024))"
first_parts = "max(1, whole * ceil_div(total * 16, KILOBYTES * 1024))"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "max(1, min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 16 + 2048)))"
rounds = "ceil_div(count, max(1, min(count, sms * per_sm // first_parts)))"
teams = "ceil_div(count, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (threads * PACKS)))"
share = "ceil_div(total, parts)"
several = "min(1, parts - 1)"

[workspace]
met = { shape = ["count * several", "parts", 2], dtype = "float64" }
arrived = { shape = ["count * several"], dtype = "int32", zero = true }

[[launch]]
entry = "group_norm_ragged"
grid = ["teams * parts * several"]
block = ["threads"]
shared = "share * 16"
args = ["x", "weight", "bias", "out", "mean", "rstd", "met", "arrived", "eps"]
cooperative = true

[[launch]]
entry = "group_norm_ragged"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 16"
args = ["x", "weight", "bias", "out", "mean", "rstd", "met", "arrived", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, SLOTS = (share + threads - 1) / threads;
static_assert(threads >= 2 * VEC, "a thread for each value that is in no whole piece");
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

// A block's whole pieces of a set, and the value in none that is this thread's.
struct Part {
    long long start, begin;  // of the set, and of the first piece
    int own;
    long long extra;  // -1 if none

    __device__ __forceinline__ Part(int set, int part) {
        start = set * (long long)per;
        const int ahead = per % VEC == 0 ? 0 : int(-start & (VEC - 1));
        const int head = ahead < per ? ahead : per, pieces = (per - head) / VEC, tail = per - head - pieces * VEC;
        begin = start + head + (long long)part * share * VEC;
        own = max(min(share, pieces - part * share), 0);
        extra = -1;
        if (per % VEC == 0 || part > 0) return;
        const int at = threadIdx.x % VEC;
        if (threadIdx.x < VEC && at < head) extra = start + at;
        if (threadIdx.x / VEC == 1 && at < tail) extra = start + per - tail + at;
    }
};

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

__device__ __forceinline__ void put_pair(float*, float, float) {}
__device__ __forceinline__ void put_pair(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put_pair(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void put(x_t* to, float a, float b) {
    if constexpr (sizeof(x_t) == 4) to[0] = x_t(a), to[1] = x_t(b);
    else put_pair(to, a, b);
}

extern "C" __global__ void __launch_bounds__(threads, per_sm)
group_norm_ragged(const x_t* __restrict__ x, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
           out_t* __restrict__ out, mean_t* __restrict__ mean, rstd_t* __restrict__ rstd, double* met, int* arrived, float eps) {
    const int part = blockIdx.x % parts;
    int set = blockIdx.x / parts;
    Part now(set, part);
#pragma unroll 4
    for (int slot = threadIdx.x; slot < now.own; slot += threads) fetch(held + slot, x + now.begin + slot * VEC);
    asm volatile("cp.async.commit_group;" ::: "memory");
    float extra = now.extra >= 0 ? float(x[now.extra]) : 0.0f;
    float pivot = finite(float(x[now.start]));  // of a set far from zero, the sums keep their last digits
    for (int turn = 0; set < count; set += teams, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        double sum = 0.0, squares = 0.0;
        {
            const int slots = now.own > int(threadIdx.x) ? (now.own - threadIdx.x + threads - 1) / threads : 0;
            const int values = slots * VEC + (now.extra >= 0 ? 1 : 0);
            constexpr float PART = 1.0f / (VEC * SLOTS + 1);  // applied before adding: great values do not overflow
            float near = now.extra >= 0 ? extra * PART : 0.0f, off = 0.0f, spread = 0.0f;
#pragma unroll 4
            for (int slot = threadIdx.x; slot < now.own; slot += threads) {
                Pack some;
                some.raw = held[slot];
                float few = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; ++j) few = fmaf(float(some.at[j]), PART, few);
                near += few;
            }
            near = values > 0 ? finite(near * (float(VEC * SLOTS + 1) / values)) : 0.0f;  // about the mean of the thread's values
            if (now.extra >= 0) off = extra - near, spread = off * off;
#pragma unroll 4
            for (int slot = threadIdx.x; slot < now.own; slot += threads) {
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
        const double moved = sum / per, middle = double(pivot) + moved;
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(squares / per - moved * moved), variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) mean[set] = mean_t(rough), rstd[set] = rstd_t(scale);
        const int before = set % sets * in_group;
        const int next = set + teams;
        Part then(next < count ? next : set, part);
        if (next >= count) then.own = 0;
        int slot = threadIdx.x;
        const auto write = [&] {
            Pack some;
            some.raw = held[slot];
            float result[VEC];
            const int offset = int(now.begin - now.start) + slot * VEC, channel = offset / area, border = (channel + 1) * area - offset;
            const float gain = scale * float(weight[before + channel]), start = fmaf(-lost, gain, float(bias[before + channel]));
            if ((per % VEC == 0 && area % VEC == 0) || border >= VEC) {  // all values are of one channel
#pragma unroll
                for (int j = 0; j < VEC; ++j) result[j] = fmaf(float(some.at[j]) - rough, gain, start);
            } else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    const int its = before + (offset + j) / area;
                    const float its_gain = scale * float(weight[its]);
                    result[j] = fmaf(float(some.at[j]) - rough, its_gain, fmaf(-lost, its_gain, float(bias[its])));
                }
            }
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            __stcs(reinterpret_cast<uint4*>(out + now.begin + slot * VEC), some.raw);
        };
        const int both = min(now.own, then.own);
#pragma unroll 4
        for (; slot < both; slot += threads) {
            write();
            fetch(held + slot, x + then.begin + slot * VEC);
        }
        for (; slot < max(now.own, then.own); slot += threads) {  // of the last set, and of one with a piece more
            if (slot < now.own) write();
            if (slot < then.own) fetch(held + slot, x + then.begin + slot * VEC);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (now.extra >= 0) {
            const int its = before + int(now.extra - now.start) / area;
            const float gain = scale * float(weight[its]);
            out[now.extra] = out_t(fmaf(extra - rough, gain, fmaf(-lost, gain, float(bias[its]))));
        }
        if (next < count) {
            pivot = finite(float(x[then.start]));
            if (then.extra >= 0) extra = float(x[then.extra]);
        }
        now = then;
    }
}
