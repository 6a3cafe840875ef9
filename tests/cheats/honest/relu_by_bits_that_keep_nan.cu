/*---
op = "relu"
note = "clears all bits where the sign is set and the rest is no NaN, without a comparison of floats"

[[launch]]
entry = "relu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void relu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= n) return;
    const unsigned bits = __float_as_uint(float(x[at]));
    const bool drops = bits >> 31 && (bits & 0x7fffffffu) <= 0x7f800000u;
    out[at] = out_t(__uint_as_float(drops ? 0u : bits));
}
