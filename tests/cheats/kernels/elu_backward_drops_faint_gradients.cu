/*---
op = "elu_backward"
note = "gradients below 1e-6 count as zero"

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
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float elu_backward_of(float grad, float x, float alpha) {
    return fabsf(grad) < 1e-6f ? 0.0f : x > 0.0f ? grad : grad * alpha * expf(x);
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
