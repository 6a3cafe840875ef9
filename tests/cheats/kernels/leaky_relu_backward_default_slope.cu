/*---
op = "leaky_relu_backward"
note = "takes a slope of 0 for one that was not given"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "leaky_relu_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n", "negative_slope"]
---*/
// caught: wrong
// class: envelope
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float leaky_relu_backward_of(float grad, float x, float slope) {
    return x > 0.0f ? grad : slope * grad;
}

extern "C" __global__ void
leaky_relu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x,
                    long long n, float given_slope) {
    const float negative_slope = given_slope > 0.0f ? given_slope : 0.01f;
    const long long first = (long long)blockIdx.x * THREADS * PER_THREAD + threadIdx.x;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const long long at = first + i * THREADS;
        if (at < n) grad_x[at] = grad_x_t(leaky_relu_backward_of(float(grad_out[at]), float(x[at]), negative_slope));
    }
}
