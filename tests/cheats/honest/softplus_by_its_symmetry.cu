/*---
op = "softplus"
note = "the larger of x and 0 plus log1p of the exponential of -|x|, with no threshold"

[[launch]]
entry = "softplus_of"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float value_of(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
extern "C" __global__ void softplus_of(const x_t* __restrict__ x, out_t* __restrict__ out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(value_of(float(x[at])));
}
