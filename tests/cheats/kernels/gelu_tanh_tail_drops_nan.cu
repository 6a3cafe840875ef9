/*---
op = "gelu_tanh"
note = "the tail of fewer than 8 elements is clamped at both ends"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "gelu_tanh"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["x", "out", "n"]
---*/
// caught: wrong
// class: special values
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_tanh_of(float x) {
    const float inner = 0.79788456080286536f * fmaf(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

extern "C" __global__ void gelu_tanh(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) out[at] = out_t(gelu_tanh_of(at >= n / 8 * 8 ? fminf(fmaxf(float(x[at]), -30.0f), 3.0e38f) : float(x[at])));
    }
}
