/*---
op = "mish"
note = "tanh(log1p(e)) is (e * e + 2 * e) / (e * e + 2 * e + 2), with one exponential; from 20 on mish is x"

[[launch]]
entry = "mish"
grid = ["min(ceil_div(n, 256), 64)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ __forceinline__ float value_of(float x) {
    if (x > 20.0f) return x;
    const float e = expf(x), part = e * (e + 2.0f);
    return x * (part / (part + 2.0f));
}

extern "C" __global__ void mish(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    for (long long at = blockIdx.x * 256ll + threadIdx.x; at < n; at += gridDim.x * 256ll) {
        out[at] = out_t(value_of(float(x[at])));
    }
}
