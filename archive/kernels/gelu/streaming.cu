/*---
op = "gelu"
note = "16-byte loads, all of a thread's before the first use; 2-byte types take the normal distribution from one exp2 of a polynomial instead of erff, which is bound by instructions, not by memory"
when = "n * itemsize(x) % 16 == 0"
require = ["THREADS * MIN_BLOCKS <= 2048", "THREADS * MIN_BLOCKS * UNROLL <= 4096"]

[knobs]
THREADS = [256, 128, 512, 1024]
UNROLL = [4, 1, 2, 8]
MIN_BLOCKS = [1, 2, 4]

[let]
vectors = "n * itemsize(x) // 16"

[[launch]]
entry = "gelu"
grid = ["ceil_div(vectors, THREADS * UNROLL)"]
block = ["THREADS"]
args = ["x", "out", "vectors"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int VEC = 16 / sizeof(x_t);
struct alignas(16) Vec { x_t at[VEC]; };

__device__ __forceinline__ void put(float* to, float a, float b) { to[0] = a, to[1] = b; }
__device__ __forceinline__ void put(__half* to, float a, float b) {
    *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}
__device__ __forceinline__ void put(__nv_bfloat16* to, float a, float b) {
    *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

__device__ __forceinline__ float gelu_of(float x) {
    if constexpr (sizeof(x_t) == 4) {
        return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    } else {
        // log2 of the lower tail Phi(-|x|), a minimax polynomial on [0, 6]: the tail is within 5e-5 of itself,
        // a tenth of float16's rounding. Beyond, the tail times |x| is below 1e-8.
        const float size = fminf(fabsf(x), 6.0f);
        float p = 2.29900633712532e-05f;
        p = fmaf(p, size, -0.0006111000548116863f);
        p = fmaf(p, size, 0.0071955653838813305f);
        p = fmaf(p, size, -0.05118533596396446f);
        p = fmaf(p, size, -0.4612719416618347f);
        p = fmaf(p, size, -1.1501742601394653f);
        p = fmaf(p, size, -1.000064730644226f);
        // x * Phi(x) = max(x, 0) - |x| * Phi(-|x|), the maximum written so that NaN stays NaN.
        return fmaf(-size, exp2f(p), fmaf(0.5f, x, 0.5f * fabsf(x)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
gelu(const x_t* __restrict__ x, out_t* __restrict__ out, long long vectors) {
    const long long first = (long long)blockIdx.x * THREADS * UNROLL + threadIdx.x;
    Vec v[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        if (first + i * THREADS < vectors) v[i] = reinterpret_cast<const Vec*>(x)[first + i * THREADS];
    }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
        Vec y;
#pragma unroll
        for (int e = 0; e < VEC; e += 2) put(&y.at[e], gelu_of(float(v[i].at[e])), gelu_of(float(v[i].at[e + 1])));
        if (first + i * THREADS < vectors) reinterpret_cast<Vec*>(out)[first + i * THREADS] = y;
    }
}
