/*---
op = "sigmoid"
note = "by tanh for positive values, by the exponential for negative ones, where tanh would cancel"

[[launch]]
entry = "sigmoid_of"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float value_of(float x) {
    if (x >= 0.0f) return 0.5f + 0.5f * tanhf(0.5f * x);
    const float part = expf(x);
    return part / (1.0f + part);
}
extern "C" __global__ void sigmoid_of(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(value_of(float(x[at])));
}
