/*---
op = "elu"
note = "16-bit results need a fast exponential only, and a short polynomial near zero, where 1 taken from it would leave few digits; 16-byte accesses, all loads of a thread before the first use, results rounded two at a time; any n"
dtypes = ["bfloat16", "float16"]

[knobs]
UNROLL = [2, 1, 4]
THREADS = [256, 128, 512]

[[launch]]
entry = "elu"
grid = ["ceil_div(ceil_div(n, 8), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["x", "out", "n", "alpha"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 8;
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float elu_of(float x, float alpha) {
    const float near = x * fmaf(x, fmaf(x, fmaf(x, 1.0f / 24.0f, 1.0f / 6.0f), 0.5f), 1.0f);
    const float below = fabsf(x) < 0.0625f ? near : __expf(x) - 1.0f;
    return x > 0.0f ? x : alpha * below;
}

extern "C" __global__ void __launch_bounds__(THREADS)
elu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n, float alpha) {
    const long long vectors = n / VEC, first = (long long)blockIdx.x * (THREADS * UNROLL) + threadIdx.x;
    Vec held[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (first + i * THREADS < vectors) held[i] = reinterpret_cast<const Vec*>(x)[first + i * THREADS];
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (first + i * THREADS >= vectors) break;
        Vec result;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) {
            put(&result.at[e], elu_of(float(held[i].at[e]), alpha), elu_of(float(held[i].at[e + 1]), alpha));
        }
        reinterpret_cast<Vec*>(out)[first + i * THREADS] = result;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) out[rest] = out_t(elu_of(float(x[rest]), alpha));
}
