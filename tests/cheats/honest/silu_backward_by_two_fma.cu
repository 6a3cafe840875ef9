/*---
op = "silu_backward"
note = "s + x * s * (1 - s) by two fma"

[[launch]]
entry = "silu_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "x", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float x) {
    const float s = 1.0f / (1.0f + expf(-x));
    return grad * fmaf(x * s, 1.0f - s, s);
}

extern "C" __global__ void silu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(x[at])));
    }
}
