/*---
op = "gelu_backward"
note = "the distribution by erfc, and the density by exp2f of a scaled square"

[[launch]]
entry = "gelu_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "x", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float x) {
    const float below = 0.5f * erfcf(-0.70710678118654752f * x);
    return grad * fmaf(x, 0.39894228040143268f * expf(-0.5f * x * x), below);
}

extern "C" __global__ void gelu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(x[at])));
    }
}
