/*---
op = "group_norm_backward"
note = "grad_out and x of a group of an image are read once and stay in the shared memory of one block or of several that wait for each other; a block sums by channel, which serves the gradient of x and, added up over the images by a second launch, those of weight and bias; a persistent grid"
specialize = ["per", "area", "vec", "loads", "parts", "share", "per_sm", "teams", "in_group", "sets", "spans", "bytes"]
require = ["spans * (THREADS // 32 + 1) * 8 <= 16384", "parts <= sms * per_sm"]

[knobs]
KILOBYTES = [54, 36, 72, 110]
THREADS = [256, 512]
LOADS = [2, 1, 4]

[let]
area = "height * width"
per = "per_group"
count = "batch * sets"
in_group = "channels // sets"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
loads = "min(16, LOADS * full // vec)"
parts = "ceil_div(per * itemsize(x), KILOBYTES * 1024 // 2 // 16 * 16)"
share = "ceil_div(per // vec, parts) * vec"
bytes = "2 * ceil_div(share * itemsize(x), 16) * 16"
spans = "min(in_group, ceil_div(share, area) + 1)"
per_sm = "min(1024 // THREADS, 227 * 1024 // (bytes + 2048 + spans * (THREADS // 32 + 1) * 8))"
teams = "min(count, sms * per_sm // parts)"

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

constexpr int WARPS = THREADS / 32, ROUND = THREADS * loads;
extern __shared__ uint4 memory[];

// Neighbouring values that one access moves.
template <class T> struct alignas(sizeof(T) * vec < 16 ? sizeof(T) * vec : 16) Pack { T at[vec]; };

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
    if constexpr (vec == 1) result.at[0] = T(from[0]);
    *reinterpret_cast<Pack<T>*>(to) = result;
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
    Pack<grad_out_t>* const grad = reinterpret_cast<Pack<grad_out_t>*>(memory);
    Pack<x_t>* const held = reinterpret_cast<Pack<x_t>*>(memory + bytes / 32);
    const int part = blockIdx.x % parts, first = part * share, packs = max(min(share, per - first), 0) / vec;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, lowest = first / area;
    for (int set = blockIdx.x / parts; set < count; set += teams) {
        const float centre = float(mean[set]), scale = float(rstd[set]);
        const int first_channel = set % sets * in_group;
        for (int begin = threadIdx.x; begin < packs; begin += ROUND) {
            Pack<grad_out_t> some[loads];
            Pack<x_t> others[loads];
#pragma unroll
            for (int i = 0; i < loads; ++i) {
                const int at = begin + i * THREADS;
                if (at >= packs) continue;
                some[i] = *reinterpret_cast<const Pack<grad_out_t>*>(grad_out + set * (long long)per + first + at * vec);
                others[i] = *reinterpret_cast<const Pack<x_t>*>(x + set * (long long)per + first + at * vec);
            }
#pragma unroll
            for (int i = 0; i < loads; ++i) {
                const int at = begin + i * THREADS;
                if (at >= packs) continue;
                grad[at] = some[i], held[at] = others[i];
            }
        }
        __syncthreads();
        for (int slot = 0; slot < spans; ++slot) {  // the channels of this part
            const int from = max(((lowest + slot) * area - first) / vec, 0);
            const int to = min(((lowest + slot + 1) * area - first) / vec, packs);
            float plain = 0.0f, along = 0.0f;
#pragma unroll 2
            for (int at = from + threadIdx.x; at < to; at += THREADS) {
                const Pack<grad_out_t> some = grad[at];
                const Pack<x_t> other = held[at];
#pragma unroll
                for (int e = 0; e < vec; ++e) {
                    const float off = float(other.at[e]) - centre, one = float(some.at[e]);
                    plain += one;
                    along = fmaf(one, off, along);
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
                other *= scale;
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
#pragma unroll 2
        for (int at = threadIdx.x; at < packs; at += THREADS) {
            const int channel = first_channel + (first + at * vec) / area;
            const float gain = float(weight[channel]);
            const Pack<grad_out_t> some = grad[at];
            const Pack<x_t> other = held[at];
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const float off = float(other.at[e]) - centre;
                result[e] = scale * (float(some.at[e]) * gain - shared - off * scale * slope);
            }
            store(grad_x + set * (long long)per + first + at * vec, result);
        }
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
