/*---
op = "gelu"
note = "x times the normal distribution's function, which the library computes by erfc"

[[launch]]
entry = "gelu"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void gelu(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(float(x[at]) * normcdff(float(x[at])));
}
