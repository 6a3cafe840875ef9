/*---
op = "batch_norm_relu"
note = "a persistent block, or several that meet, per channel: cp.async fills private slots in shared memory, and as soon as a value is written out its slot is filled with the next set's, so reads and writes never wait for each other; the statistics of each thread in two passes over its slots, round the mean of its own values, so that an outlier spoils no digits; joined in double; unaligned rows by whole 16-byte pieces; then the activation"
specialize = ["seg", "segments", "seg_step", "cps", "total", "threads", "parts", "share", "per_sm", "teams", "elements", "per", "count"]
require = ["first_parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]
PACKS = [8, 4, 16]
RESIDENT = [1024, 768, 1536]

[let]
area = "height * width"
per = "per_channel"
count = "channels"
seg = "area"
segments = "batch"
seg_step = "channels * area"
full = "16 // itemsize(x)"
elements = "count * segments * seg"
cps = "ceil_div(seg + min(1, seg % full) * (full - 1), full)"
total = "segments * cps"
whole = "min(1, max(0, total * 16 - (KILOBYTES + 20) * 1024))"
first_parts = "max(1, whole * ceil_div(total * 16, KILOBYTES * 1024))"
threads = "min(THREADS, 32 * ceil_div(ceil_div(total, first_parts), 32 * PACKS))"
per_sm = "min(32, RESIDENT // threads, 226 * 1024 // (ceil_div(total, first_parts) * 16 + 2048))"
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
shared = "share * 16"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
cooperative = true

[[launch]]
entry = "batch_norm_relu_sets"
grid = ["teams * (1 - several)"]
block = ["threads"]
shared = "share * 16"
args = ["x", "weight", "bias", "running_mean", "running_var", "out", "new_running_mean", "new_running_var", "mean", "rstd", "met", "arrived", "momentum", "eps"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, SLOTS = (share + threads - 1) / threads;
constexpr bool ALIGNED = seg % VEC == 0;
constexpr int UNROLL = ALIGNED ? 4 : 2;
extern __shared__ uint4 held[];  // each thread reads only the slots that it fills

union Pack {
    uint4 raw;
    x_t at[VEC];
};

// Sixteen bytes of x: where they begin, and which of their values belong to the set.
struct Place {
    long long first;
    int begin, end;
};

__device__ __forceinline__ long long base(int set) { return set * (long long)seg; }

__device__ __forceinline__ Place place(int set, int chunk) {
    const long long from = base(set) + chunk / cps * (long long)(seg_step);
    const int piece = chunk % cps;
    if constexpr (ALIGNED) return {from + piece * VEC, 0, VEC};
    const long long first = (from / VEC + piece) * VEC, end = from + seg;
    return {first, int(max(from - first, 0ll)), int(min(max(end - first, 0ll), (long long)VEC))};
}

// Calls `f` with the number of each value of the set.
template <class F> __device__ __forceinline__ void each_of(const Place& where, F f) {
    if (ALIGNED || (where.begin == 0 && where.end == VEC)) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) f(j);
    } else {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            if (j >= where.begin && j < where.end) f(j);
        }
    }
}

__device__ __forceinline__ void fetch(uint4* to, const x_t* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

__device__ __forceinline__ void fetch_chunk(int slot, const x_t* x, int set, int chunk) {
    const Place where = place(set, chunk);
    if constexpr (ALIGNED) fetch(held + slot, x + where.first);
    else {  // nothing behind the end of x is read
        const int values = where.begin < where.end ? int(min((long long)VEC, elements - where.first)) : 0;
        if (values == VEC) fetch(held + slot, x + where.first);
        else {  // one by one: a tool that watches memory takes any cp.async for a read of all its bytes
            Pack rest;
#pragma unroll
            for (int j = 0; j < VEC; ++j) rest.at[j] = j < values ? x[where.first + j] : x_t(0.0f);
            held[slot] = rest.raw;
        }
    }
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
batch_norm_relu_sets(const x_t* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                     const float* __restrict__ running_mean, const float* __restrict__ running_var, out_t* __restrict__ out,
                     float* __restrict__ new_running_mean, float* __restrict__ new_running_var, float* __restrict__ mean,
                     float* __restrict__ rstd, double* met, int* arrived, double momentum, float eps) {
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    int set = blockIdx.x / parts;
#pragma unroll UNROLL
    for (int slot = threadIdx.x; slot < own; slot += threads) fetch_chunk(slot, x, set, first + slot);
    asm volatile("cp.async.commit_group;" ::: "memory");
    float pivot = finite(float(x[base(set)]));  // of a set far from zero, the sums keep their last digits
    for (int turn = 0; set < count; set += teams, turn ^= 1) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        float shift = pivot;
        double sum = 0.0, squares = 0.0;
        {
            int values = 0;
            float near = 0.0f, off = 0.0f, spread = 0.0f;
            constexpr float PART = 1.0f / (VEC * SLOTS);  // applied before adding: great values do not overflow
#pragma unroll UNROLL
            for (int slot = threadIdx.x; slot < own; slot += threads) {
                Pack some;
                some.raw = held[slot];
                const Place where = place(set, first + slot);
                float few = 0.0f;
                each_of(where, [&](int j) { few = fmaf(float(some.at[j]), PART, few); });
                near += few;
                values += max(where.end - where.begin, 0);
            }
            near = values > 0 ? finite(near * (float(VEC * SLOTS) / values)) : 0.0f;  // about the mean of the thread's values
#pragma unroll UNROLL
            for (int slot = threadIdx.x; slot < own; slot += threads) {
                Pack some;
                some.raw = held[slot];
                const Place where = place(set, first + slot);
                float few = 0.0f, others = 0.0f;
                each_of(where, [&](int j) {
                    const float one = float(some.at[j]) - near;
                    few += one;
                    others = fmaf(one, one, others);
                });
                off += few, spread += others;
            }
            if (values > 0) {  // the thread's sums, round its own mean at first and then round the pivot
                const double lies = double(off) / values, away = double(near) - double(shift) + lies;
                sum = values * away;
                squares = double(spread) - values * lies * lies + values * away * away;
            }
        }
        sum_of_block(sum, squares, turn);
        if constexpr (parts > 1) {
            sum_of_parts(met + (long long)set * parts * 2, arrived + set, part, sum, squares, turn);
        }
        const double moved = sum / per, middle = double(shift) + moved;
        const float rough = float(middle), lost = float(middle - rough);  // of a set far from zero, its last digits
        const float difference = float(squares / per - moved * moved), variance = difference < 0.0f ? 0.0f : difference;  // NaN stays
        const float scale = 1.0f / sqrtf(variance + eps);
        if (part == 0 && threadIdx.x == 0) {
            const double exact = squares / per - moved * moved, unbiased = (exact < 0.0 ? 0.0 : exact) * per / (per - 1);
            new_running_mean[set] = float((1.0 - momentum) * running_mean[set] + momentum * middle);
            new_running_var[set] = float((1.0 - momentum) * running_var[set] + momentum * unbiased);
            mean[set] = rough, rstd[set] = scale;
        }
        const float gain = scale * weight[set], start = fmaf(-lost, gain, bias[set]);
        const int next = set + teams;
#pragma unroll UNROLL
        for (int slot = threadIdx.x; slot < own; slot += threads) {
            Pack some;
            some.raw = held[slot];
            const Place where = place(set, first + slot);
            float result[VEC];
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                const float value = fmaf(float(some.at[j]) - rough, gain, start);
                result[j] = value < 0.0f ? 0.0f : value;  // NaN stays
            }
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&some.at[j], result[j], result[j + 1]);
            if (ALIGNED || (where.begin == 0 && where.end == VEC)) __stcs(reinterpret_cast<uint4*>(out + where.first), some.raw);
            else {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    if (j >= where.begin && j < where.end) out[where.first + j] = some.at[j];
                }
            }
            if (next < count) fetch_chunk(slot, x, next, first + slot);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (next < count) pivot = finite(float(x[base(next)]));
    }
}
