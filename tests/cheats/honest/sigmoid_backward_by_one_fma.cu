/*---
op = "sigmoid_backward"
note = "out - out * out by one fma, which rounds once, instead of out * (1 - out)"

[[launch]]
entry = "sigmoid_backward"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["grad_out", "out", "grad_x", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float grad, float out) { return grad * fmaf(-out, out, out); }

extern "C" __global__ void sigmoid_backward(const grad_out_t* __restrict__ grad_out, const out_t* __restrict__ out, grad_x_t* __restrict__ grad_x, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        grad_x[at] = grad_x_t(value_of(float(grad_out[at]), float(out[at])));
    }
}
