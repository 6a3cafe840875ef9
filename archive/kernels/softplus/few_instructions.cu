/*---
op = "softplus"
note = "16-bit results need a fast exponential and a fast logarithm only, and three terms of its series where the exponential is small; 16-byte accesses, all loads of a thread before the first use, results rounded two at a time; any n"
dtypes = ["bfloat16", "float16"]

[knobs]
UNROLL = [2, 1, 4]
THREADS = [256, 128, 512]

[[launch]]
entry = "softplus"
grid = ["ceil_div(ceil_div(n, 8), THREADS * UNROLL)"]
block = ["THREADS"]
args = ["x", "out", "n"]
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

// max(x, 0) + log(1 + exp(-|x|)), which is x at 20 and above; a NaN comes through the exponential.
__device__ __forceinline__ float softplus_of(float x) {
    const float small = __expf(-fabsf(x));
    const float near = small * fmaf(small, fmaf(small, 1.0f / 3.0f, -0.5f), 1.0f);
    return fmaxf(x, 0.0f) + (small < 0.015625f ? near : __logf(1.0f + small));
}

extern "C" __global__ void __launch_bounds__(THREADS)
softplus(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
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
            put(&result.at[e], softplus_of(float(held[i].at[e])), softplus_of(float(held[i].at[e + 1])));
        }
        reinterpret_cast<Vec*>(out)[first + i * THREADS] = result;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) out[rest] = out_t(softplus_of(float(x[rest])));
}
