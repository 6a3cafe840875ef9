/*---
op = "group_norm_silu_backward"
note = "a warp takes a few kilobytes of one channel: the gradient behind the activation is computed once and stays in registers as float32 until the sums of the set are known, so there is one exponential and one quotient per value; persistent blocks, several per group of an image; each publishes its two sums as one word of 64 bits, which is its own flag, so they meet in one write and one read of the L2, without fences or counters; two sets of slots in shared memory, filled by cp.async and refilled once read; a second launch adds up the images"
when = "height * width * itemsize(x) % 16 == 0 and height * width * itemsize(x) >= 128"
specialize = ["per", "area", "chunks", "of_channel", "warps", "parts", "per_sm", "teams", "in_group", "sets"]
require = ["parts <= sms * per_sm"]

[knobs]
PACKS = [4, 2]
WARPS = [8, 4, 16]
RESIDENT = [768, 1024]

[let]
per = "per_group"
count = "batch * sets"
in_group = "channels // sets"
area = "height * width"
of_channel = "ceil_div(area * itemsize(x), 512 * PACKS)"
chunks = "in_group * of_channel"
warps = "ceil_div(chunks, ceil_div(chunks, WARPS))"
parts = "ceil_div(chunks, warps)"
bytes = "warps * PACKS * 2048"
per_sm = "max(1, min(32, RESIDENT // (32 * warps), 226 * 1024 // (bytes + 2048)))"
slots = "max(1, sms * per_sm // parts)"
teams = "ceil_div(count, ceil_div(count, slots))"

[workspace]
plain_sums = { shape = ["count", "chunks"], dtype = "float32" }
along_sums = { shape = ["count", "chunks"], dtype = "float32" }
words = { shape = ["count", "parts"], dtype = "int64", zero = true }

[[launch]]
entry = "grad_of_groups"
grid = ["teams * parts"]
block = ["32 * warps"]
shared = "bytes"
args = ["grad_out", "x", "mean", "rstd", "weight", "bias", "grad_x", "plain_sums", "along_sums", "words", "count"]
cooperative = true

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [128]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), BLOCK_THREADS = 32 * warps;
constexpr int ROUNDS_OF_32 = (parts + 31) / 32;
constexpr int POLLING = ROUNDS_OF_32 < warps ? ROUNDS_OF_32 : warps;  // warps that wait for other blocks
constexpr int OF_LANE = (ROUNDS_OF_32 + POLLING - 1) / POLLING;
constexpr double SHARE = 1.0 / per;
constexpr bool EVEN = area % (PACKS * 32 * VEC) == 0;  // no lane is idle
constexpr bool SHORT = sizeof(x_t) == 2;  // a few roundings of float32 more do not show
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

// Neighbouring values that one access moves.
struct alignas(16) Pack { grad_x_t at[VEC]; };

// The numbers of sixteen bytes, with one instruction each.
__device__ __forceinline__ float2 pair_of(unsigned two, const __nv_bfloat16*) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}
__device__ __forceinline__ float2 pair_of(unsigned two, const __half*) {
    return __half22float2(*reinterpret_cast<const __half2*>(&two));
}
template <class T> __device__ __forceinline__ void read(float (&to)[VEC], uint4 raw, const T* type) {
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        if constexpr (sizeof(T) == 4) to[k] = __uint_as_float(words[k]);
        else {
            const float2 pair = pair_of(words[k], type);
            to[2 * k] = pair.x, to[2 * k + 1] = pair.y;
        }
    }
}

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ void fetch(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

template <class T> __device__ __forceinline__ T sum_of_warp(T sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

// Publishes the sums of a block, in one lane, as a word. Zero says that a part is not there yet; two sums of +0 become
// -0 and +0.
__device__ __forceinline__ void publish(long long* word, double a, double b) {
    const unsigned low = __float_as_uint(float(a)), high = __float_as_uint(float(b));
    const unsigned long long both = (unsigned long long)high << 32 | low;
    *reinterpret_cast<volatile unsigned long long*>(word) = both == 0 ? 0x80000000ull : both;
}

// Reads a word that another block writes. `__ldcv` would not do: the compiler moves it out of a loop.
__device__ __forceinline__ unsigned long long polled(const unsigned long long* word) {
    return *reinterpret_cast<const volatile unsigned long long*>(word);
}

// Waits for the parts that are this thread's and returns their sums.
__device__ __forceinline__ double2 sums_of_others(const long long* words) {
    const unsigned long long* const all = reinterpret_cast<const unsigned long long*>(words) + threadIdx.x;
    unsigned long long found[OF_LANE];
#pragma unroll
    for (int k = 0; k < OF_LANE; ++k) {
        found[k] = int(threadIdx.x) + 32 * POLLING * k < parts ? polled(all + 32 * POLLING * k) : 0x80000000ull;
    }
    double2 sums = make_double2(0.0, 0.0);
#pragma unroll
    for (int k = 0; k < OF_LANE; ++k) {
        while (found[k] == 0) found[k] = polled(all + 32 * POLLING * k);
        sums.x += __uint_as_float(unsigned(found[k])), sums.y += __uint_as_float(unsigned(found[k] >> 32));
    }
    __syncwarp();
    return sums;
}

// e to the power of -y.
__device__ __forceinline__ float falling(float y) {
    if constexpr (!SHORT) return expf(-y);
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(y * -1.4426950408889634f));
    return result;
}

// What the gradient of y * sigmoid(y) makes of a gradient.
__device__ __forceinline__ float through(float grad, float y) {
    const float s = __fdividef(1.0f, 1.0f + falling(y));
    return grad * s * (1.0f + fmaf(-s, y, y));
}

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, per_sm)
grad_of_groups(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const mean_t* __restrict__ mean,
               const rstd_t* __restrict__ rstd, const weight_t* __restrict__ weight, const bias_t* __restrict__ bias,
               grad_x_t* __restrict__ grad_x, float* __restrict__ plain_sums, float* __restrict__ along_sums,
               long long* words, int count) {
    __shared__ double2 of_warp[warps], met[POLLING];
    const int part = blockIdx.x % parts, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int chunk = part * warps + warp, in_channel = (chunk % of_channel * PACKS * 32 + lane) * VEC;
    const int offset = chunk / of_channel * area + in_channel;
    const bool busy = chunk < chunks;
    const auto inside = [&](int i) { return EVEN || in_channel + i * 32 * VEC < area; };
    const auto slot = [&](int half, int input, int i) {
        return memory + ((half * 2 + input) * PACKS + i) * BLOCK_THREADS + threadIdx.x;
    };
    const auto place = [&](int set, int i) { return set * (long long)per + offset + i * 32 * VEC; };
    const auto channel_of = [&](int set) { return set % sets * in_group + (busy ? chunk / of_channel : 0); };
    int set = blockIdx.x / parts;
    for (int half = 0; half < 2; ++half) {
        const int its = set + half * teams;
        if (busy && its < count) {
#pragma unroll
            for (int i = 0; i < PACKS; ++i) {
                if (!inside(i)) continue;
                fetch(slot(half, 0, i), grad_out + place(its, i)), fetch(slot(half, 1, i), x + place(its, i));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float centre = float(mean[set]), scale = float(rstd[set]);
    float gain = float(weight[channel_of(set)]), shift = float(bias[channel_of(set)]);
    for (int half = 0; set < count; set += teams, half ^= 1) {
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        const int after = set + teams, next = after + teams;
        const bool refill = busy && next < count;
        float kept[PACKS][VEC];  // the gradients behind the activation
        float plain = 0.0f, along = 0.0f;
        if (busy) {
            const float steep = scale * gain;
#pragma unroll
            for (int i = 0; i < PACKS; ++i) {
                if (!inside(i)) continue;
                float grad[VEC], value[VEC], few = 0.0f, others = 0.0f;
                read(grad, *slot(half, 0, i), grad_out), read(value, *slot(half, 1, i), x);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const float away = value[e] - centre, normed = SHORT ? away : away * scale;
                    const float y = SHORT ? fmaf(away, steep, shift) : fmaf(normed, gain, shift);
                    const float one = through(grad[e], y);
                    kept[i][e] = one;
                    few += one;
                    others = fmaf(one, normed, others);
                }
                plain += few, along += others;
                if (refill) fetch(slot(half, 0, i), grad_out + place(next, i));
            }
            plain = sum_of_warp(plain), along = sum_of_warp(along);
            if constexpr (SHORT) along *= scale;
        }
        if (lane == 0) {
            if (busy) {
                const long long at = (long long)set * chunks + chunk;
                plain_sums[at] = plain, along_sums[at] = along;
            }
            of_warp[warp] = busy ? make_double2(double(plain) * gain, double(along) * gain) : make_double2(0.0, 0.0);
        }
        // What the next set needs comes while the blocks meet.
        const int soon = after < count ? after : set;
        const mean_t next_centre = mean[soon];
        const rstd_t next_scale = rstd[soon];
        const weight_t next_gain = weight[channel_of(soon)];
        const bias_t next_shift = bias[channel_of(soon)];
        __syncthreads();
        if (warp < POLLING) {
            double2 some = warp == 0 && lane < warps ? of_warp[lane] : make_double2(0.0, 0.0);
            if (warp == 0) some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            if constexpr (parts > 1) {
                if (threadIdx.x == 0) publish(words + (long long)set * parts + part, some.x, some.y);
                some = sums_of_others(words + (long long)set * parts);
                some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            }
            if (lane == 0) met[warp] = some;
        }
        __syncthreads();
        if (busy) {
            double a = 0.0, b = 0.0;
#pragma unroll
            for (int w = 0; w < POLLING; ++w) a += met[w].x, b += met[w].y;
            const float shared = float(a * SHARE), slope = float(b * SHARE);
            const float of_kept = scale * gain, of_away = -scale * scale * slope, fixed = -scale * shared;
#pragma unroll
            for (int i = 0; i < PACKS; ++i) {
                if (!inside(i)) continue;
                float value[VEC], result[VEC];
                read(value, *slot(half, 1, i), x);
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    const float away = value[e] - centre;
                    if constexpr (SHORT) result[e] = fmaf(kept[i][e], of_kept, fmaf(away, of_away, fixed));
                    else result[e] = scale * fmaf(kept[i][e], gain, fmaf(-(away * scale), slope, -shared));
                }
                Pack made;
#pragma unroll
                for (int e = 0; e < VEC; e += 2) put(&made.at[e], result[e], result[e + 1]);
                __stcs(reinterpret_cast<uint4*>(grad_x + place(set, i)), *reinterpret_cast<const uint4*>(&made));
                if (refill) fetch(slot(half, 1, i), x + place(next, i));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        centre = float(next_centre), scale = float(next_scale), gain = float(next_gain), shift = float(next_shift);
    }
}

// A block per channel: its sums of all images.
extern "C" __global__ void __launch_bounds__(128)
sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
           grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias, int batch) {
    const int set = blockIdx.x / in_group, first = blockIdx.x % in_group * of_channel;
    double plain = 0.0, along = 0.0;
#pragma unroll 4
    for (long long i = threadIdx.x; i < (long long)batch * of_channel; i += 128) {
        const long long at = (i / of_channel * sets + set) * chunks + first + i % of_channel;
        plain += plain_sums[at], along += along_sums[at];
    }
    __shared__ double2 of_warp[4];
    plain = sum_of_warp(plain), along = sum_of_warp(along);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = make_double2(plain, along);
    __syncthreads();
    if (threadIdx.x > 0) return;
    plain = along = 0.0;
#pragma unroll
    for (int w = 0; w < 4; ++w) plain += of_warp[w].x, along += of_warp[w].y;
    grad_weight[blockIdx.x] = grad_weight_t(float(along)), grad_bias[blockIdx.x] = grad_bias_t(float(plain));
}
