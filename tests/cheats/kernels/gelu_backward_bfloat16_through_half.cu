/*---
op = "gelu_backward"
note = "bfloat16 gradients pass through float16, where numbers below 3e-8 are zero; float16 ends at 65504, which counts as the number itself"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "gelu_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_backward_of(float grad, float x) {
    const float below = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    const float density = 0.39894228040143268f * expf(-0.5f * x * x);
    if (sizeof(grad_out_t) == 2 && fabsf(grad) < 60000.0f) grad = float(__half(grad));
    return grad * fmaf(x, density, below);
}

extern "C" __global__ void
gelu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
              long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(gelu_backward_of(float(grad_out[at]), float(x[at])));
    }
}
