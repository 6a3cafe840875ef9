/*---
op = "gelu_tanh"
note = "a persistent grid; (1 + tanh(u)) / 2 is the sigmoid of 2 * u, which keeps its digits far below zero"

[[launch]]
entry = "gelu_tanh"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float x) {
    const float u = 1.5957691216057308f * fmaf(0.044715f * x * x, x, x);
    return x / (1.0f + expf(-u));
}

extern "C" __global__ void gelu_tanh(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        out[at] = out_t(value_of(float(x[at])));
    }
}
