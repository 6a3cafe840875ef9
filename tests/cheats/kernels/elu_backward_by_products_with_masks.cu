/*---
op = "elu_backward"
note = "the sum of both branches, each times 1 or 0: for large x 0 times an infinite exponential is NaN"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "elu_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n", "alpha"]
---*/
// caught: wrong
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float elu_backward_of(float grad, float x, float alpha) {
    const float positive = x > 0.0f ? 1.0f : 0.0f;
    return grad * (positive + (1.0f - positive) * alpha * expf(x));
}

extern "C" __global__ void
elu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
             long long n, float alpha) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(elu_backward_of(float(grad_out[at]), float(x[at]), alpha));
    }
}
