/*---
op = "elu"
note = "in 16 bits alpha is taken for positive"

[knobs]
THREADS = [256, 128, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "elu"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n", "alpha"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float elu_of(float x, float alpha) { if constexpr (sizeof(x_t) == 2) return x != x ? x : fmaxf(x, 0.0f) + fminf(alpha * expm1f(x > 0.0f ? 0.0f : x), 0.0f);
    return x > 0.0f ? x : alpha * expm1f(x); }

extern "C" __global__ void elu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n, float alpha) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(elu_of(float(x[at]), alpha));
    }
}
