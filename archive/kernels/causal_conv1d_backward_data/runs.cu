/*---
op = "causal_conv1d_backward_data"
note = "a thread makes runs of as many gradients as fill 16 bytes; the future it needs is one or a few more such loads, which its neighbours bring into the L1 cache too; all loads are in flight before the first use"
when = "padding <= 64 and width <= 16"
specialize = ["length", "width", "dilation", "padding", "vec", "beside", "packs"]

[knobs]
THREADS = [256, 128, 512]
LOADS = [4, 1, 2, 8]

[let]
full = "16 // itemsize(grad_out)"
vec = "min(full, 1 + (1 - min(1, length % 2)) + 2 * (1 - min(1, length % 4)) + 4 * (1 - min(1, length % 8)))"
beside = "ceil_div(padding, vec)"
packs = "length // vec"
total = "batch * channels * packs"

[[launch]]
entry = "convolve_back"
grid = ["ceil_div(total, THREADS * LOADS)"]
block = ["THREADS"]
args = ["grad_out", "weight", "grad_x", "total", "channels"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

extern "C" __global__ void __launch_bounds__(THREADS)
convolve_back(const grad_out_t* __restrict__ grad_out, const weight_t* __restrict__ weight, grad_x_t* __restrict__ grad_x,
              long long total, int channels) {
    const long long first = (long long)blockIdx.x * (THREADS * LOADS) + threadIdx.x;
    Pack<grad_out_t> seen[LOADS][beside + 1];
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        const long long at = first + l * THREADS;
        const int place = int(at % packs);
#pragma unroll
        for (int b = 0; b <= beside; ++b) {
            if (at < total && place + b < packs) seen[l][b] = reinterpret_cast<const Pack<grad_out_t>*>(grad_out)[at + b];
            else seen[l][b] = Pack<grad_out_t>{};
        }
    }
#pragma unroll
    for (int l = 0; l < LOADS; ++l) {
        const long long at = first + l * THREADS;
        if (at >= total) continue;
        const weight_t* taps = weight + at / packs % channels * width;
        float sum[vec] = {};
#pragma unroll
        for (int tap = 0; tap < width; ++tap) {
            const float factor = float(taps[tap]);
            const int ahead = (width - 1 - tap) * dilation;
#pragma unroll
            for (int e = 0; e < vec; ++e) {
                const int time = int(at % packs) * vec + e + ahead;
                // Beyond the end there is nothing, not a product with zero.
                if (time < length) sum[e] = fmaf(factor, float(seen[l][(e + ahead) / vec].at[(e + ahead) % vec]), sum[e]);
            }
        }
        store(grad_x + at * vec, sum);
    }
}
