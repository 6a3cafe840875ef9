/*---
op = "group_norm_backward"
note = "persistent blocks, one or several that meet per group of an image; each has slots in shared memory for two sets, filled by cp.async and refilled as soon as a value of grad_x is written out, so that while a block sums one set and waits for the others the next is on its way; a block sums by channel, and a second launch adds up the images"
when = "height * width * itemsize(x) % 16 == 0"
specialize = ["per", "area", "vec", "parts", "share", "per_sm", "teams", "in_group", "sets", "spans", "bytes"]
require = ["spans * (THREADS // 32 + 1) * 8 <= 16384", "parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 128, 512]

[let]
area = "height * width"
per = "per_group"
count = "batch * sets"
in_group = "channels // sets"
vec = "16 // itemsize(x)"
first_parts = "ceil_div(per * itemsize(x), KILOBYTES * 1024 // 4 // 16 * 16)"
most = "1024 // THREADS"
rounds = "ceil_div(count, max(1, sms * most // first_parts))"
parts = "max(first_parts, min(per // vec // (2 * THREADS), sms * most // ceil_div(count, rounds)))"
share = "ceil_div(per // vec, parts) * vec"
bytes = "4 * ceil_div(share * itemsize(x), 16) * 16"
spans = "min(in_group, ceil_div(share, area) + 1)"
per_sm = "min(1024 // THREADS, 227 * 1024 // (bytes + 2048 + spans * (THREADS // 32 + 1) * 8))"
slots = "max(1, sms * per_sm // parts)"
teams = "ceil_div(count, ceil_div(count, slots))"

[workspace]
plain_sums = { shape = ["count", "parts", "spans"], dtype = "float32" }
along_sums = { shape = ["count", "parts", "spans"], dtype = "float32" }
met = { shape = ["count", "parts", 2], dtype = "float64" }
arrived = { shape = ["count"], dtype = "int32", zero = true }

[[launch]]
entry = "grad_of_groups"
grid = ["teams * parts"]
block = ["THREADS"]
shared = "bytes"
args = ["grad_out", "x", "mean", "rstd", "weight", "grad_x", "plain_sums", "along_sums", "met", "arrived", "count"]
cooperative = true

[[launch]]
entry = "sum_images"
grid = ["channels"]
block = [32]
args = ["plain_sums", "along_sums", "grad_weight", "grad_bias", "batch"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int WARPS = THREADS / 32;
extern __shared__ uint4 memory[];  // each thread reads only the slots that it fills

// Neighbouring values that one access moves.
template <class T> struct alignas(16) Pack { T at[vec]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

template <class T> __device__ __forceinline__ void store(T* to, const float (&from)[vec]) {
    Pack<T> result;
#pragma unroll
    for (int e = 0; e + 1 < vec; e += 2) put(&result.at[e], from[e], from[e + 1]);
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&result));
}

__device__ __forceinline__ void fetch(void* to, const void* from) {
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

// What the parts of a set found, in the first warp of each part's block.
__device__ __forceinline__ void meet(double* met, int* arrived, int part, double a, double b) {
    if (threadIdx.x == 0) {
        met[2 * part] = a, met[2 * part + 1] = b;
        __threadfence();
        atomicAdd(arrived, 1);
        while (atomicAdd(arrived, 0) < parts) {}
        __threadfence();
    }
    __syncwarp();
}

__device__ __forceinline__ double sum_of_warp(double sum) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, per_sm)
grad_of_groups(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, const mean_t* __restrict__ mean,
               const rstd_t* __restrict__ rstd, const weight_t* __restrict__ weight,
               grad_x_t* __restrict__ grad_x, float* __restrict__ plain_sums, float* __restrict__ along_sums,
               double* met, int* arrived, int count) {
    __shared__ float of_plain[spans][WARPS + 1], of_along[spans][WARPS + 1];
    __shared__ double joint[2];
    const int part = blockIdx.x % parts, first = part * share, packs = max(min(share, per - first), 0) / vec;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lowest = first / area;
    const auto begin_of = [&](int slot) { return max(((lowest + slot) * area - first) / vec, 0); };
    const auto end_of = [&](int slot) { return min(((lowest + slot + 1) * area - first) / vec, packs); };
    const auto grads = [&](int half) { return reinterpret_cast<Pack<grad_out_t>*>(memory + half * (bytes / 32)); };
    const auto values = [&](int half) { return reinterpret_cast<Pack<x_t>*>(memory + half * (bytes / 32) + bytes / 64); };
    const auto request = [&](int set, int half, int at) {
        const long long from = set * (long long)per + first + at * vec;
        fetch(grads(half) + at, grad_out + from), fetch(values(half) + at, x + from);
    };
    int set = blockIdx.x / parts;
    for (int half = 0; half < 2; ++half) {
        for (int slot = 0; slot < spans && set + half * teams < count; ++slot) {
#pragma unroll 2
            for (int at = begin_of(slot) + threadIdx.x; at < end_of(slot); at += THREADS) request(set + half * teams, half, at);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int half = 0; set < count; set += teams, half ^= 1) {
        const float centre = float(mean[set]), scale = float(rstd[set]);
        const int first_channel = set % sets * in_group;
        Pack<grad_out_t>* const grad = grads(half);
        const Pack<x_t>* const held = values(half);
        asm volatile("cp.async.wait_group 1;" ::: "memory");  // the other half may still be on its way
        for (int slot = 0; slot < spans; ++slot) {  // the channels of this part
            float plain = 0.0f, along = 0.0f;
#pragma unroll 2
            for (int at = begin_of(slot) + threadIdx.x; at < end_of(slot); at += THREADS) {
                const Pack<grad_out_t> some = grad[at];
                const Pack<x_t> other = held[at];
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float normed = (float(other.at[e]) - centre) * scale, one = float(some.at[e]);
                    plain += one;
                    along = fmaf(one, normed, along);
                }
            }
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                plain += __shfl_xor_sync(0xffffffffu, plain, step);
                along += __shfl_xor_sync(0xffffffffu, along, step);
            }
            if (lane == 0) of_plain[slot][warp] = plain, of_along[slot][warp] = along;
        }
        __syncthreads();
        if (warp == 0) {
            double a = 0.0, b = 0.0;
            for (int slot = lane; slot < spans; slot += 32) {
                double one = 0.0, other = 0.0;
#pragma unroll
                for (int w = 0; w < WARPS; ++w) one += of_plain[slot][w], other += of_along[slot][w];
                const long long at = ((long long)set * parts + part) * spans + slot;
                plain_sums[at] = float(one), along_sums[at] = float(other);
                if (lowest + slot < in_group) {
                    const float gain = float(weight[first_channel + lowest + slot]);
                    a += one * gain, b += other * gain;
                }
            }
            a = sum_of_warp(a), b = sum_of_warp(b);
            if constexpr (parts > 1) {
                double* all = met + (long long)set * parts * 2;
                meet(all, arrived + set, part, a, b);
                const volatile double* of = all;
                a = b = 0.0;
                for (int p = lane; p < parts; p += 32) a += of[2 * p], b += of[2 * p + 1];
                a = sum_of_warp(a), b = sum_of_warp(b);
            }
            if (lane == 0) joint[0] = a, joint[1] = b;
        }
        __syncthreads();
        const float shared = float(joint[0] / per), slope = float(joint[1] / per);
        const int next = set + 2 * teams;
        for (int slot = 0; slot < spans; ++slot) {
            const float gain = float(weight[first_channel + min(lowest + slot, in_group - 1)]);
#pragma unroll 2
            for (int at = begin_of(slot) + threadIdx.x; at < end_of(slot); at += THREADS) {
                const Pack<grad_out_t> some = grad[at];
                const Pack<x_t> other = held[at];
                float result[vec];
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float normed = (float(other.at[e]) - centre) * scale, one = float(some.at[e]);
                    result[e] = scale * fmaf(one, gain, fmaf(-normed, slope, -shared));
                }
                store(grad_x + set * (long long)per + first + at * vec, result);
                if (next < count) request(next, half, at);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
}

// A warp per channel: its sums of all images, from the parts that hold some of it.
extern "C" __global__ void __launch_bounds__(32)
sum_images(const float* __restrict__ plain_sums, const float* __restrict__ along_sums,
           grad_weight_t* __restrict__ grad_weight, grad_bias_t* __restrict__ grad_bias, int batch) {
    const int set = blockIdx.x / in_group, channel = blockIdx.x % in_group;
    const int first = channel * area / share, last = (channel * area + area - 1) / share;
    double plain = 0.0, along = 0.0;
    for (long long image = threadIdx.x; image < batch; image += 32) {
        for (int p = first; p <= last; ++p) {
            const long long at = ((image * sets + set) * parts + p) * spans + channel - p * share / area;
            plain += plain_sums[at], along += along_sums[at];
        }
    }
    plain = sum_of_warp(plain), along = sum_of_warp(along);
    if (threadIdx.x == 0) {
        grad_weight[blockIdx.x] = grad_weight_t(float(along)), grad_bias[blockIdx.x] = grad_bias_t(float(plain));
    }
}
