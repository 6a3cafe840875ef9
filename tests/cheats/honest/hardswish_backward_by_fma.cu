/*---
op = "hardswish_backward"
note = "the slope by one fma, and a choice instead of a clamp"

[[launch]]
entry = "hardswish_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "x", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float x) {
    const float slope = fmaf(x, 0.33333333333f, 0.5f);
    return x <= -3.0f ? 0.0f : grad * (x >= 3.0f ? 1.0f : slope);
}

extern "C" __global__ void hardswish_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(x[at])));
    }
}
