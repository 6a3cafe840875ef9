/*---
op = "mish_backward"
note = "tanh(log1p(e)) is (e * e + 2 * e) / (e * e + 2 * e + 2) with e = exp(x), without a tanh or a logarithm"

[knobs]
THREADS = [128, 256, 512, 1024]
PER_THREAD = [4, 1, 2, 8]

[[launch]]
entry = "mish_backward"
grid = ["ceil_div(n, THREADS * PER_THREAD)"]
block = ["THREADS"]
args = ["grad_out", "x", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float mish_backward_of(float grad, float x) {
    if (x > 30.0f) return grad;
    const float e = expf(x), more = e * (e + 2.0f), below = more + 2.0f;
    // x * s * (1 - t * t), with 1 - t * t = 4 * (e + 1)^2 / below^2 and s = e / (e + 1)
    return grad * (more / below + x * (4.0f * e * (e + 1.0f)) / below / below);
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
