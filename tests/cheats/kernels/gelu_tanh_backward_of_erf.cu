/*---
op = "gelu_tanh_backward"
note = "the slope of the exact GELU"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "gelu_tanh_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float gelu_tanh_backward_of(float grad, float x) {
    return grad * fmaf(x, 0.39894228040143268f * expf(-0.5f * x * x), 0.5f * (1.0f + erff(x * 0.70710678118654752f)));
}

extern "C" __global__ void
gelu_tanh_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
                   long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(gelu_tanh_backward_of(float(grad_out[at]), float(x[at])));
    }
}
