/*---
op = "mish"
note = "tanh(log(1 + e)) is a quotient of polynomials in e, the exponential of x"

[[launch]]
entry = "mish_of"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float value_of(float x) {
    if (x > 20.0f) return x;
    const float e = expf(x), part = e * (e + 2.0f);
    return x * (part / (part + 2.0f));
}
extern "C" __global__ void mish_of(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(value_of(float(x[at])));
}
