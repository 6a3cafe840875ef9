/*---
op = "softplus"
note = "the larger of x and 0, plus log1pf of the exponential of minus the size; the last term carries NaN"

[[launch]]
entry = "softplus"
grid = ["ceil_div(n, 256)"]
block = [256]
args = ["x", "out", "n"]
---*/
#include <cuda_bf16.h>
#include <cuda_fp16.h>

__device__ float result_of(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

extern "C" __global__ void softplus(const x_t* x, out_t* out, long long n) {
    const long long at = blockIdx.x * 256ll + threadIdx.x;
    if (at < n) out[at] = out_t(result_of(float(x[at])));
}
