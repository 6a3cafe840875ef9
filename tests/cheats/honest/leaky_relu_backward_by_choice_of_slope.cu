/*---
op = "leaky_relu_backward"
note = "a multiplication by 1 or by the slope"

[[launch]]
entry = "leaky_relu_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "x", "grad_x", "n", "negative_slope"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float x, float slope) { return grad * (x > 0.0f ? 1.0f : slope); }

extern "C" __global__ void leaky_relu_backward(const grad_out_t* __restrict__ grad_out, const x_t* __restrict__ x, grad_x_t* __restrict__ grad_x, long long n, float negative_slope) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(x[at]), negative_slope));
    }
}
