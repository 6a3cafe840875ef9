/*---
op = "sigmoid_backward"
note = "gradients below 1e-6 count as zero"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "sigmoid_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "out", "grad_x", "n"]
---*/
// caught: wrong
// class: scale
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float sigmoid_backward_of(float grad, float out) {
    return fabsf(grad) < 1e-6f ? 0.0f : grad * out * (1.0f - out);
}

extern "C" __global__ void
sigmoid_backward(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out,
                 grad_x_t* __restrict__ grad_x, long long n) {
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(sigmoid_backward_of(float(grad_out[at]), float(out[at])));
    }
}
