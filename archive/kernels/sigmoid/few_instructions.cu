/*---
op = "sigmoid"
note = "16-bit results need a fast exponential and a fast quotient only, of numbers between 0 and 2 whatever the sign; 16-byte accesses, all loads of a thread before the first use, results rounded two at a time; any n"
dtypes = ["bfloat16", "float16"]

[knobs]
UNROLL = [2, 1, 4]
THREADS = [256, 128, 512]

[[launch]]
entry = "sigmoid"
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

// The exponential is of -|x|, so that no divisor is large.
__device__ __forceinline__ float sigmoid_of(float x) {
    const float small = __expf(-fabsf(x));
    return __fdividef(x < 0.0f ? small : 1.0f, 1.0f + small);
}

extern "C" __global__ void __launch_bounds__(THREADS)
sigmoid(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
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
            put(&result.at[e], sigmoid_of(float(held[i].at[e])), sigmoid_of(float(held[i].at[e + 1])));
        }
        reinterpret_cast<Vec*>(out)[first + i * THREADS] = result;
    }
    const long long rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < n) out[rest] = out_t(sigmoid_of(float(x[rest])));
}
