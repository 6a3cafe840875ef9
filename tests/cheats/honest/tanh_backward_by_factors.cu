/*---
op = "tanh_backward"
note = "(1 - out) * (1 + out), the first of which is exact where out is near 1"

[[launch]]
entry = "tanh_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "out", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float out) { return grad * ((1.0f - out) * (1.0f + out)); }

extern "C" __global__ void tanh_backward(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(out[at])));
    }
}
