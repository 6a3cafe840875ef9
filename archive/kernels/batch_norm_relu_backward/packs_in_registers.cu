/*---
op = "batch_norm_relu_backward"
note = "a thread takes its packs of grad_out, x and out out of slots in shared memory once, keeps them in registers until the sums of the channel are known, and refills each slot at once by cp.async, so that the next channel is on its way while the blocks sum, meet and write; each block publishes its two sums as one word of 64 bits, which is its own flag, so they meet in one write and one read of the L2, without fences or counters; where a thread's packs lie in a channel is computed once; what is kept of grad_out is what the activation lets through"
when = "height * width * itemsize(x) % 16 == 0"
specialize = ["seg", "channels", "total", "threads", "parts", "share", "per_sm", "teams", "per"]
require = ["first_parts <= sms * per_sm"]

[knobs]
PACKS = [4, 3, 6]
THREADS = [256, 128, 512]

[let]
seg = "height * width * itemsize(x) // 16"
per = "per_channel"
total = "batch * seg"
threads = "min(THREADS, 32 * ceil_div(total, 32 * PACKS))"
bytes = "threads * PACKS * 48"
per_sm = "max(1, min(32, 65536 // (PACKS * 9 + 28) // threads, 226 * 1024 // (bytes + 2048)))"
first_parts = "ceil_div(total, threads * PACKS)"
rounds = "ceil_div(channels, max(1, min(channels, sms * per_sm // first_parts)))"
teams = "ceil_div(channels, rounds)"
parts = "max(first_parts, min(sms * per_sm // teams, total // (2 * threads)))"
share = "ceil_div(total, parts)"

[workspace]
words = { shape = ["channels", "parts"], dtype = "int64", zero = true }

[[launch]]
entry = "grad_of_channels"
grid = ["teams * parts"]
block = ["threads"]
shared = "ceil_div(share, threads) * threads * 48"
args = ["grad_out", "x", "out", "mean", "rstd", "weight", "grad_x", "grad_weight", "grad_bias", "words"]
cooperative = true
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t), WARPS = threads / 32, SLOTS = (share + threads - 1) / threads;
constexpr int ROUNDS_OF_32 = (parts + 31) / 32;
constexpr int POLLING = ROUNDS_OF_32 < WARPS ? ROUNDS_OF_32 : WARPS;  // warps that wait for other blocks
constexpr int OF_LANE = (ROUNDS_OF_32 + POLLING - 1) / POLLING;
constexpr double SHARE = 1.0 / per;
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

struct alignas(16) Pack { x_t at[VEC]; };

__device__ __forceinline__ uint4 raw_of(const Pack& pack) { return *reinterpret_cast<const uint4*>(&pack); }

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

__device__ __forceinline__ void fetch(uint4* to, const uint4* from) {
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

extern "C" __global__ void __launch_bounds__(threads, per_sm)
grad_of_channels(const x_t* __restrict__ grad_out, const x_t* __restrict__ x, const x_t* __restrict__ out,
                 const float* __restrict__ mean, const float* __restrict__ rstd, const float* __restrict__ weight,
                 x_t* __restrict__ grad_x, float* __restrict__ grad_weight, float* __restrict__ grad_bias,
                 long long* words) {
    __shared__ double2 of_warp[WARPS], met[POLLING];
    const int part = blockIdx.x % parts, first = part * share, own = max(min(share, total - first), 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const auto mine = [&](int i) { return i * threads + int(threadIdx.x) < own; };
    const auto slot = [&](int input, int i) { return memory + (input * SLOTS + i) * threads + threadIdx.x; };
    const auto pack_at = [&](const x_t* all, int set) {
        return reinterpret_cast<const uint4*>(all) + set * (long long)seg;
    };
    unsigned where[SLOTS];  // a thread's packs, from the first of the channel's packs in the first image
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const unsigned pack = first + i * threads + threadIdx.x, row = pack / seg;
        where[i] = pack + row * (unsigned)((channels - 1) * (long long)seg);
    }
    int set = blockIdx.x / parts;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        if (!mine(i)) continue;
        fetch(slot(0, i), pack_at(grad_out, set) + where[i]);
        fetch(slot(1, i), pack_at(x, set) + where[i]);
        fetch(slot(2, i), pack_at(out, set) + where[i]);
    }
    float centre = mean[set], scale = rstd[set], gain = weight[set];
    for (; set < channels; set += teams) {
        const int next = set + teams, soon = next < channels ? next : set;
        uint4 grads[SLOTS], values[SLOTS];
        float plain = 0.0f, along = 0.0f;
        asm volatile("cp.async.wait_all;" ::: "memory");
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            if (mine(i)) grads[i] = *slot(0, i), values[i] = *slot(1, i);
        }
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            if (!mine(i)) continue;
            float grad[VEC], value[VEC], few = 0.0f, others = 0.0f;
            read(grad, grads[i], x), read(value, values[i], x);
            float made[VEC];
            read(made, *slot(2, i), x);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                grad[j] = made[j] <= 0.0f ? 0.0f : grad[j];  // where the activation is NaN, all passes
                few += grad[j];
                others = fmaf(grad[j], value[j] - centre, others);
            }
            Pack passed;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&passed.at[j], grad[j], grad[j + 1]);  // exact
            grads[i] = raw_of(passed);
            plain += few, along += others;
            if (next < channels) {
                fetch(slot(0, i), pack_at(grad_out, next) + where[i]);
                fetch(slot(1, i), pack_at(x, next) + where[i]);
                fetch(slot(2, i), pack_at(out, next) + where[i]);
            }
        }
        plain = sum_of_warp(plain), along = sum_of_warp(along);
        if (lane == 0) of_warp[warp] = make_double2(plain, along);
        // What the next channel needs comes while the blocks meet.
        const float next_centre = mean[soon], next_scale = rstd[soon], next_gain = weight[soon];
        __syncthreads();
        if (warp < POLLING) {
            double2 some = warp == 0 && lane < WARPS ? of_warp[lane] : make_double2(0.0, 0.0);
            if (warp == 0) some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            if constexpr (parts > 1) {
                if (threadIdx.x == 0) publish(words + (long long)set * parts + part, some.x, some.y);
                some = sums_of_others(words + (long long)set * parts);
                some.x = sum_of_warp(some.x), some.y = sum_of_warp(some.y);
            }
            if (lane == 0) met[warp] = some;
        }
        __syncthreads();
        double a = 0.0, b = 0.0;
#pragma unroll
        for (int w = 0; w < POLLING; ++w) a += met[w].x, b += met[w].y;
        b *= scale;
        if (threadIdx.x == 0 && part == 0) grad_weight[set] = float(b), grad_bias[set] = float(a);
        const float shared = float(a * SHARE), slope = scale * float(b * SHARE), factor = scale * gain;
        uint4* const to = reinterpret_cast<uint4*>(grad_x) + set * (long long)seg;
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            if (!mine(i)) continue;
            float grad[VEC], value[VEC], result[VEC];
            read(grad, grads[i], x), read(value, values[i], x);
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                result[j] = factor * (grad[j] - shared - (value[j] - centre) * slope);
            }
            Pack made;
#pragma unroll
            for (int j = 0; j < VEC; j += 2) put(&made.at[j], result[j], result[j + 1]);
            __stcs(to + where[i], raw_of(made));
        }
        centre = next_centre, scale = next_scale, gain = next_gain;
    }
}
