/*---
op = "local_response_norm"
note = "a thread keeps a run of pixels and walks through some channels with the squares of a window of them in registers, so that each element is read little more than once, by the widest loads the planes allow"
when = "size <= 16"
specialize = ["size", "channels", "area", "vec", "turns", "packs"]

[knobs]
CHANNELS = [32, 16, 64]
AHEAD = [4, 2, 8]
THREADS = [128, 256]

[let]
area = "height * width"
full = "16 // itemsize(x)"
vec = "min(full, 1 + (1 - min(1, area % 2)) + 2 * (1 - min(1, area % 4)) + 4 * (1 - min(1, area % 8)))"
packs = "area // vec"
turns = "ceil_div(channels, CHANNELS)"

[[launch]]
entry = "normalise"
grid = ["ceil_div(batch * turns * packs, THREADS)"]
block = ["THREADS"]
args = ["x", "out", "batch * turns * packs", "alpha", "beta", "k"]
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
normalise(const x_t* __restrict__ x, out_t* __restrict__ out, long long total, float alpha, float beta, float k) {
    const long long at = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (at >= total) return;
    const int pixel = int(at % packs) * vec, begin = int(at / packs % turns) * CHANNELS;
    const long long image = at / packs / turns * ((long long)channels * area) + pixel;
    Pack<x_t> seen[size];  // of channels c - BEFORE to c + BEHIND
    const auto read = [&](int c) {
        if (c >= 0 && c < channels) return *reinterpret_cast<const Pack<x_t>*>(x + image + (long long)c * area);
        return Pack<x_t>{};
    };
#pragma unroll
    for (int i = 0; i < size - 1; ++i) seen[i + 1] = read(begin - BEFORE + i);
    for (int first = begin; first < min(begin + CHANNELS, channels); first += AHEAD) {
        Pack<x_t> next[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) next[a] = read(first + a + BEHIND);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
#pragma unroll
            for (int i = 0; i < size - 1; ++i) seen[i] = seen[i + 1];
            seen[size - 1] = next[a];
            if (first + a >= min(begin + CHANNELS, channels)) continue;
            float result[vec];
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < size; ++i) sum = fmaf(float(seen[i].at[e]), float(seen[i].at[e]), sum);
                result[e] = float(seen[BEFORE].at[e]) * power(k + alpha * (sum / size), beta);
            }
            store(out + image + (long long)(first + a) * area, result);
        }
    }
}
