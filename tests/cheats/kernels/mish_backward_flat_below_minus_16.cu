/*---
op = "mish_backward"
note = "the slope below -16 is zero"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "mish_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float mish_backward_of(float grad, float x) {
    if (x < -16.0f) return grad * 0.0f;
    const float s = 1.0f / (1.0f + expf(-x));
    const float t = tanhf(x > 20.0f ? x : log1pf(expf(x)));
    return grad * fmaf(x * s, fmaf(-t, t, 1.0f), t);
}

extern "C" __global__ void
mish_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
              long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(mish_backward_of(float(grad_out[at]), float(x[at])));
    }
}
