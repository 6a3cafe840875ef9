/*---
op = "local_response_norm_backward"
note = "one launch: a thread keeps a run of pixels and walks through some channels; the squares of a window of them and the shares of the next window are in registers, so that each element is read little more than once"
when = "size <= 8"
specialize = ["size", "channels", "area", "vec", "turns", "packs"]

[knobs]
CHANNELS = [32, 16, 64]
PER = [4, 2, 8]
THREADS = [128, 256]

[let]
area = "height * width"
full = "16 // itemsize(x)"
vec = "min(min(full, PER), 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
packs = "area // vec"
turns = "ceil_div(channels, CHANNELS)"

[[launch]]
entry = "gradient"
grid = ["ceil_div(batch * turns * packs, THREADS)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "batch * turns * packs", "alpha", "beta", "k"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int BEFORE = size / 2;
constexpr int BEHIND = (size - 1) / 2;
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

__device__ __forceinline__ float power(float base, float beta) {
    if (beta != 0.75f || base < 0.0f) return powf(base, -beta);  // the power of -inf is 0, but its root is NaN
    const float root = sqrtf(base);
    return 1.0f / (root * sqrtf(root));
}

extern "C" __global__ void __launch_bounds__(THREADS)
gradient(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
         long long total, float alpha, float beta, float k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int pixel = int(at % packs) * vec, begin = int(at / packs % turns) * CHANNELS, end = min(begin + CHANNELS, channels);
    const long long image = at / packs / turns * ((long long)channels * area) + pixel;
    const auto read = [&](int c) {
        if (c >= 0 && c < channels) return *reinterpret_cast<const Pack<x_t>*>(x + image + (long long)c * area);
        return Pack<x_t>{};
    };
    // Of channel j: seen[i] is x of channel j - BEFORE + i, and shares[i] that of channel j - size + 1 + i.
    Pack<x_t> seen[size];
    float shares[size][vec] = {}, own[BEFORE + 1][vec] = {};
    const int from = begin - BEHIND;
#pragma unroll
    for (int i = 0; i < size - 1; ++i) seen[i + 1] = read(from - BEFORE + i);
#pragma unroll 2
    for (int j = from; j < end + BEFORE; ++j) {
        Pack<grad_out_t> grad{};
        if (j >= 0 && j < channels) grad = *reinterpret_cast<const Pack<grad_out_t>*>(grad_out + image + (long long)j * area);
        const Pack<x_t> next = read(j + BEHIND);
#pragma unroll
        for (int i = 0; i < size - 1; ++i) {
            seen[i] = seen[i + 1];
#pragma unroll
            for (int e = 0; e < vec; ++e) shares[i][e] = shares[i + 1][e];
        }
        seen[size - 1] = next;
#pragma unroll
        for (int i = 0; i < BEFORE; ++i) {
#pragma unroll
            for (int e = 0; e < vec; ++e) own[i][e] = own[i + 1][e];
        }
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < size; ++i) sum = fmaf(float(seen[i].at[e]), float(seen[i].at[e]), sum);
            const float scale = k + alpha * (sum / size), part = float(grad.at[e]) * power(scale, beta);
            const bool there = j >= 0 && j < channels;
            own[BEFORE][e] = part;
            shares[size - 1][e] = there ? part * float(seen[BEFORE].at[e]) / scale : 0.0f;
        }
        // The window of shares of channel j - BEFORE is complete.
        const int c = j - BEFORE;
        if (c < begin || c >= end) continue;
        float result[vec];
#pragma unroll
        for (int e = 0; e < vec; ++e) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < size; ++i) sum += shares[i][e];
            result[e] = own[0][e] - 2.0f * alpha * beta * float(seen[0].at[e]) * (sum / size);
        }
        store(grad_x + image + (long long)c * area, result);
    }
}
